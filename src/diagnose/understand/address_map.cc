#include "diagnose/understand/address_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "fathom.page-map/1";
constexpr int kMaxFieldBits = 10;  // 1024 channels or banks: more than a picture can show
constexpr uint32_t kMaxCells = 4096;
constexpr int64_t kMaxToken = int64_t{1} << 40;

Status CheckKeys(const Json& object, std::string_view where,
                 std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return Err(Code::kInvalidArgument, "{}: unknown key '{}'; legal: {}", where, key,
               fmt::join(known, ", "));
  }
  return {};
}

Result<int64_t> Integer(const Json& object, const char* key, std::string_view where, int64_t least,
                        int64_t most) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer() || it->get<int64_t>() < least ||
      it->get<int64_t>() > most) {
    return Err(Code::kInvalidArgument, "{}: expected \"{}\", an integer from {} to {}, found {}",
               where, key, least, most, it == object.end() ? "none" : it->dump());
  }
  return it->get<int64_t>();
}

Result<int> Bit(const Json& value, std::string_view where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > 63) {
    return Err(Code::kInvalidArgument, "{}: expected an address bit from 0 to 63, found {}", where,
               value.dump());
  }
  return value.get<int>();
}

// [7, 6] or [[7, 13], 6].
Result<std::vector<AddressBit>> Bits(const Json& object, const char* key) {
  const std::string where = fmt::format("address_bits.{}", key);
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array() || it->size() > kMaxFieldBits) {
    return Err(Code::kInvalidArgument,
               "{}: expected a list of at most {} address bits, most significant first, found {}",
               where, kMaxFieldBits, it == object.end() ? "none" : it->dump());
  }
  std::vector<AddressBit> bits;
  for (const Json& entry : *it) {
    AddressBit bit;
    if (entry.is_array() && !entry.empty()) {
      for (const Json& part : entry) {
        FATHOM_ASSIGN_OR_RETURN(const int number, Bit(part, where));
        bit.push_back(number);
      }
    } else {
      FATHOM_ASSIGN_OR_RETURN(const int number, Bit(entry, where));
      bit.push_back(number);
    }
    bits.push_back(std::move(bit));
  }
  return bits;
}

Status ReadPages(const Json& document, PageMap& map) {
  FATHOM_ASSIGN_OR_RETURN(map.page_tokens,
                          Integer(document, "page_tokens", "page map", 1, 1 << 20));
  if (document.contains("page_bytes")) {
    FATHOM_ASSIGN_OR_RETURN(map.page_bytes,
                            Integer(document, "page_bytes", "page map", 1, int64_t{1} << 40));
  }
  const Json& pages = document["pages"];
  if (!pages.is_array() || pages.empty()) {
    return Err(Code::kInvalidArgument, "pages: expected a list of at least one page, found {}",
               pages.dump());
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const std::string where = fmt::format("pages[{}]", i);
    if (!pages[i].is_object()) {
      return Err(Code::kInvalidArgument, "{}: expected an object, found {}", where,
                 pages[i].dump());
    }
    FATHOM_TRY(CheckKeys(pages[i], where, {"token", "page", "channel", "bank"}));
    constexpr int64_t kMost = (1 << kMaxFieldBits) - 1;
    FATHOM_ASSIGN_OR_RETURN(const int64_t token, Integer(pages[i], "token", where, 0, kMaxToken));
    FATHOM_ASSIGN_OR_RETURN(const int64_t page, Integer(pages[i], "page", where, 0, INT64_MAX));
    FATHOM_ASSIGN_OR_RETURN(const int64_t channel, Integer(pages[i], "channel", where, 0, kMost));
    FATHOM_ASSIGN_OR_RETURN(const int64_t bank, Integer(pages[i], "bank", where, 0, kMost));
    map.pages.push_back({token, page, static_cast<uint32_t>(channel), static_cast<uint32_t>(bank)});
    map.num_channels = std::max(map.num_channels, static_cast<uint32_t>(channel) + 1);
    map.num_banks = std::max(map.num_banks, static_cast<uint32_t>(bank) + 1);
  }
  std::sort(map.pages.begin(), map.pages.end(),
            [](const MappedPage& a, const MappedPage& b) { return a.token < b.token; });
  for (size_t i = 1; i < map.pages.size(); ++i) {
    if (map.pages[i].token - map.pages[i - 1].token < map.page_tokens) {
      return Err(Code::kInvalidArgument,
                 "pages: expected pages of {} tokens that do not overlap, found pages that begin "
                 "at tokens {} and {}",
                 map.page_tokens, map.pages[i - 1].token, map.pages[i].token);
    }
  }
  return {};
}

uint32_t Extract(const std::vector<AddressBit>& bits, uint64_t address) {
  uint32_t value = 0;
  for (const AddressBit& bit : bits) {
    uint64_t parity = 0;
    for (const int number : bit) parity ^= address >> number;
    value = value << 1 | static_cast<uint32_t>(parity & 1);
  }
  return value;
}

struct Place {
  uint32_t channel = 0, bank = 0;
};

std::optional<Place> PlaceOf(const PageMap& map, const AccessEvent& event) {
  if (event.token < 0 || event.token > kMaxToken) return std::nullopt;
  if (map.by_address()) {
    return Place{Extract(map.channel_bits, event.address), Extract(map.bank_bits, event.address)};
  }
  const auto after =
      std::upper_bound(map.pages.begin(), map.pages.end(), event.token,
                       [](int64_t token, const MappedPage& page) { return token < page.token; });
  if (after == map.pages.begin()) return std::nullopt;
  const MappedPage& page = *(after - 1);
  if (event.token >= page.token + map.page_tokens) return std::nullopt;
  return Place{page.channel, page.bank};
}

void Size(AddressHeatMap& heat, const PageMap& map, int64_t first, int64_t last,
          size_t max_columns) {
  heat.by_address = map.by_address();
  heat.num_channels = map.num_channels;
  heat.num_banks = map.num_banks;
  heat.first_token = first;
  heat.last_token = last;
  const auto most = static_cast<int64_t>(max_columns);
  heat.tokens_per_column = (last - first + most) / most;
  heat.num_columns = static_cast<size_t>((last - first) / heat.tokens_per_column + 1);
  heat.values.assign(size_t{heat.num_channels} * heat.num_banks * heat.num_columns,
                     std::numeric_limits<double>::quiet_NaN());
}

size_t CellOf(const AddressHeatMap& heat, Place place, int64_t token) {
  const size_t row = size_t{place.channel} * heat.num_banks + place.bank;
  const auto column = static_cast<size_t>((token - heat.first_token) / heat.tokens_per_column);
  return row * heat.num_columns + column;
}

// What attention reads to generate a token: every page that was begun before it.
Result<AddressHeatMap> Modelled(const PageMap& map, size_t max_columns) {
  if (map.page_bytes == 0) {
    return Err(Code::kInvalidArgument,
               "page map: expected \"page_bytes\", since no accesses were recorded and what a "
               "token reads has to be modelled; found none");
  }
  AddressHeatMap heat;
  heat.value_kind = AddressValue::kBytes;
  const int64_t last = map.pages.back().token + map.page_tokens - 1;
  Size(heat, map, map.pages.front().token, last, max_columns);
  for (size_t c = 0; c < heat.num_columns; ++c) {
    // The column's last token stands for it: the pages only become more.
    const int64_t token = std::min(
        last, heat.first_token + (static_cast<int64_t>(c) + 1) * heat.tokens_per_column - 1);
    for (const MappedPage& page : map.pages) {
      if (page.token > token) break;
      double& cell = heat.values[CellOf(heat, {page.channel, page.bank}, token)];
      cell = (std::isnan(cell) ? 0 : cell) + static_cast<double>(map.page_bytes);
    }
  }
  return heat;
}

}  // namespace

Result<PageMap> ParsePageMap(std::string_view text) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || document.value("schema", Json()) != kSchema) {
    return Err(Code::kInvalidArgument,
               "page map: expected a JSON object with \"schema\": \"{}\", found {}", kSchema,
               document.is_discarded() ? "no JSON"
               : !document.is_object() ? document.type_name()
                                       : document.value("schema", Json()).dump());
  }
  FATHOM_TRY(CheckKeys(document, "page map",
                       {"schema", "address_bits", "page_tokens", "page_bytes", "pages"}));
  if (document.contains("address_bits") == document.contains("pages")) {
    return Err(Code::kInvalidArgument,
               "page map: expected either \"address_bits\" or \"pages\", found {}",
               document.contains("pages") ? "both" : "neither");
  }
  PageMap map;
  if (document.contains("pages")) {
    FATHOM_TRY(ReadPages(document, map));
  } else {
    const Json& bits = document["address_bits"];
    if (!bits.is_object() || document.contains("page_tokens") || document.contains("page_bytes")) {
      return Err(Code::kInvalidArgument,
                 "page map: expected \"address_bits\": {{\"bank\": [...], \"channel\": [...]}} "
                 "alone, found {}",
                 document.dump());
    }
    FATHOM_TRY(CheckKeys(bits, "address_bits", {"bank", "channel"}));
    FATHOM_ASSIGN_OR_RETURN(map.bank_bits, Bits(bits, "bank"));
    FATHOM_ASSIGN_OR_RETURN(map.channel_bits, Bits(bits, "channel"));
    map.num_banks = uint32_t{1} << map.bank_bits.size();
    map.num_channels = uint32_t{1} << map.channel_bits.size();
  }
  if (map.num_banks * map.num_channels > kMaxCells) {
    return Err(Code::kInvalidArgument,
               "page map: expected at most {} channels x banks, found {} x {}", kMaxCells,
               map.num_channels, map.num_banks);
  }
  return map;
}

Result<AddressHeatMap> MakeAddressHeatMap(const Timeline& timeline, const PageMap& map,
                                          bool latency, size_t max_columns) {
  const std::vector<AccessEvent>& events = timeline.access_events;
  if (events.empty()) {
    if (map.by_address() || latency) {
      return Err(Code::kInvalidArgument,
                 "{} need recorded accesses {{token_id, emit_ts, hbm_addr, latency}}; the inputs "
                 "have none",
                 latency ? "latencies" : "the page map's address bits");
    }
    return Modelled(map, max_columns);
  }
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  const auto placed = [&](const AccessEvent& event) {
    return (latency && event.latency_ns < 0) ? std::nullopt : PlaceOf(map, event);
  };
  for (const AccessEvent& event : events) {
    if (!placed(event)) continue;
    first = std::min(first, event.token);
    last = std::max(last, event.token);
  }
  if (first > last) {
    return Err(Code::kInvalidArgument,
               "none of the {} recorded accesses has {}a token that the page map places",
               events.size(), latency ? "a latency and " : "");
  }
  AddressHeatMap heat;
  heat.value_kind = latency ? AddressValue::kLatencyNs : AddressValue::kAccesses;
  Size(heat, map, first, last, max_columns);
  std::vector<uint64_t> counts(heat.values.size(), 0);
  for (const AccessEvent& event : events) {
    const std::optional<Place> place = placed(event);
    if (!place) {
      ++heat.unplaced;
      continue;
    }
    ++heat.placed;
    const size_t cell = CellOf(heat, *place, event.token);
    ++counts[cell];
    const double amount = latency ? static_cast<double>(event.latency_ns) : 1;
    heat.values[cell] = (counts[cell] == 1 ? 0 : heat.values[cell]) + amount;
  }
  for (size_t i = 0; i < heat.values.size(); ++i) {
    const int64_t begin =
        first + static_cast<int64_t>(i % heat.num_columns) * heat.tokens_per_column;
    const int64_t tokens = std::min(heat.tokens_per_column, last - begin + 1);
    heat.values[i] /= static_cast<double>(latency ? static_cast<int64_t>(counts[i]) : tokens);
  }
  return heat;
}

}  // namespace fathom::diagnose
