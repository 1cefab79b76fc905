#pragma once
// Memory traffic by token, channel and bank: from recorded accesses whose addresses a bit map
// splits, or whose tokens a page map places; without accesses, from what attention must read by
// that page map. No GPU counts single accesses today: recordings come from simulators and from
// instrumented kernels.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

// One bit of a channel or bank number: the exclusive or of these address bits. Memory controllers
// hash so; a plain bit field has one address bit each.
using AddressBit = std::vector<int>;

struct MappedPage {
  int64_t token = 0;  // the first of its tokens
  int64_t page = 0;
  uint32_t channel = 0;
  uint32_t bank = 0;
};

// A --page-map file: either address bits or pages.
struct PageMap {
  std::vector<AddressBit> channel_bits, bank_bits;  // most significant first; empty with pages
  std::vector<MappedPage> pages;                    // by token
  int64_t page_tokens = 0;
  int64_t page_bytes = 0;  // 0: not stated
  uint32_t num_channels = 0, num_banks = 0;

  bool by_address() const { return pages.empty(); }
};

// {"schema": "fathom.page-map/1", "address_bits": {"bank": [7, 6], "channel": [[5, 13], 4]}} or
// {"schema": "fathom.page-map/1", "page_tokens": 64, "page_bytes": 73728,
//  "pages": [{"token": 0, "page": 12, "channel": 3, "bank": 1}, ...]}.
Result<PageMap> ParsePageMap(std::string_view json);

enum class AddressValue : uint8_t {
  kAccesses,   // a token, recorded
  kLatencyNs,  // mean of the recorded accesses
  kBytes,      // read to generate a token: modelled
};

struct AddressHeatMap {
  AddressValue value_kind = AddressValue::kAccesses;
  bool by_address = false;
  uint32_t num_channels = 0, num_banks = 0;
  int64_t first_token = 0, last_token = 0;
  int64_t tokens_per_column = 1;  // the last column may have fewer
  size_t num_columns = 0;
  std::vector<double> values;  // [num_channels, num_banks, num_columns]; NaN: no access
  uint64_t placed = 0;         // accesses in the picture
  uint64_t unplaced = 0;       // accesses without a token, or with one that no page holds
};

// With `latency`, the mean latency of accesses instead of their number. Errors: the map is by
// address and nothing was recorded; latencies that no access has.
Result<AddressHeatMap> MakeAddressHeatMap(const Timeline& timeline, const PageMap& map,
                                          bool latency, size_t max_columns = 256);

}  // namespace fathom::diagnose
