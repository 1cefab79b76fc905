#include "ops/cuda/tuning.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "cost/hardware.h"

namespace fathom::ops {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSchema = "fathom.attention_tuning/1";
constexpr int64_t kMiB = int64_t{1} << 20;

// Reads one JSON object: a key that nobody asked for is an error.
class Object {
 public:
  Object(const ordered_json& json, std::string where) : json_(json), where_(std::move(where)) {}

  // `value` keeps what it has when the key is missing and not required.
  template <class T>
  Status Integer(const char* key, int64_t low, int64_t high, T* value, bool required = false) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) {
      if (!required) return {};
      return Err(Code::kInvalidArgument, "{}: \"{}\" is missing: expected {} to {}", where_, key,
                 low, high);
    }
    if (!found->is_number_integer() || found->get<int64_t>() < low ||
        found->get<int64_t>() > high) {
      return Err(Code::kInvalidArgument, "{}: \"{}\" is {}: expected an integer from {} to {}",
                 where_, key, found->dump(), low, high);
    }
    *value = static_cast<T>(found->get<int64_t>());
    return {};
  }

  Result<std::string> Text(const char* key, std::string_view expected) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_string()) {
      return Err(Code::kInvalidArgument, "{}: \"{}\" is {}: expected {}", where_, key,
                 found == json_.end() ? "missing" : found->dump(), expected);
    }
    return found->get<std::string>();
  }

  Status Finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (known_.contains(key)) continue;
      std::string legal;
      for (const std::string& name : known_) legal += " " + name;
      return Err(Code::kInvalidArgument, "{}: unknown key \"{}\"; the keys are:{}", where_, key,
                 legal);
    }
    return {};
  }

  void Allow(const char* key) { known_.insert(key); }

 private:
  const ordered_json& json_;
  std::string where_;
  std::set<std::string> known_;
};

Result<TuningTable::Entry> ParseEntry(const ordered_json& json, const std::string& where) {
  if (!json.is_object()) {
    return Err(Code::kInvalidArgument, "{}: expected an object, found {}", where, json.dump());
  }
  Object object(json, where);
  FATHOM_ASSIGN_OR_RETURN(const std::string op, object.Text("op", "\"decode\" or \"prefill\""));
  if (op != "decode" && op != "prefill") {
    return Err(Code::kInvalidArgument, "{}: \"op\" is \"{}\": expected \"decode\" or \"prefill\"",
               where, op);
  }
  TuningTable::Entry entry;
  entry.decode = op == "decode";
  constexpr int64_t kMaxDim = 1024;
  FATHOM_TRY(object.Integer("head_dim_qk", 1, kMaxDim, &entry.head_dim_qk, true));
  FATHOM_TRY(object.Integer("head_dim_v", 1, kMaxDim, &entry.head_dim_v, true));
  if (entry.decode) {
    DecodeTuning& tuning = entry.decode_tuning;
    FATHOM_TRY(object.Integer("max_rows", 1, 1 << 20, &entry.max_rows));
    FATHOM_TRY(object.Integer("rows", 8, 64, &tuning.rows));
    FATHOM_TRY(object.Integer("parts_per_sm", 1, 8, &tuning.parts_per_sm));
    FATHOM_TRY(object.Integer("warp_merge_partials", 0, 1024, &tuning.warp_merge_partials));
    FATHOM_TRY(object.Integer("min_segment_tokens", 256, 1 << 20, &tuning.min_segment_tokens));
    FATHOM_TRY(object.Integer("max_segments", 1, 1 << 20, &tuning.max_segments));
    if (tuning.min_segment_tokens % 256 != 0) {
      return Err(Code::kInvalidArgument,
                 "{}: \"min_segment_tokens\" is {}: expected a multiple of 256, the span of a "
                 "reduction",
                 where, tuning.min_segment_tokens);
    }
    if (tuning.rows != 0 && tuning.rows != 8 && tuning.rows != 16 && tuning.rows != 32 &&
        tuning.rows != 64) {
      return Err(Code::kInvalidArgument, "{}: \"rows\" is {}: expected 8, 16, 32 or 64", where,
                 tuning.rows);
    }
  } else {
    int64_t mib = 0;
    FATHOM_TRY(object.Integer("l2_section_mib", 1, 1024, &mib));
    entry.prefill_tuning.l2_section_bytes = mib * kMiB;
  }
  FATHOM_TRY(object.Finish());
  return entry;
}

}  // namespace

DecodeTuning TuningTable::Decode(int32_t head_dim_qk, int32_t head_dim_v, int32_t rows) const {
  for (const Entry& entry : entries) {
    if (entry.decode && entry.head_dim_qk == head_dim_qk && entry.head_dim_v == head_dim_v &&
        (entry.max_rows == 0 || rows <= entry.max_rows)) {
      return entry.decode_tuning;
    }
  }
  return {};
}

PrefillTuning TuningTable::Prefill(int32_t head_dim_qk, int32_t head_dim_v) const {
  for (const Entry& entry : entries) {
    if (!entry.decode && entry.head_dim_qk == head_dim_qk && entry.head_dim_v == head_dim_v) {
      return entry.prefill_tuning;
    }
  }
  return {};
}

std::string TuningTable::ToJson() const {
  ordered_json rows = ordered_json::array();
  for (const Entry& entry : entries) {
    ordered_json row = {{"op", entry.decode ? "decode" : "prefill"},
                        {"head_dim_qk", entry.head_dim_qk},
                        {"head_dim_v", entry.head_dim_v}};
    if (entry.decode) {
      const DecodeTuning& tuning = entry.decode_tuning;
      if (entry.max_rows != 0) row["max_rows"] = entry.max_rows;
      if (tuning.rows != 0) row["rows"] = tuning.rows;
      if (tuning.parts_per_sm != 0) row["parts_per_sm"] = tuning.parts_per_sm;
      row["warp_merge_partials"] = tuning.warp_merge_partials;
      row["min_segment_tokens"] = tuning.min_segment_tokens;
      if (tuning.max_segments != 0) row["max_segments"] = tuning.max_segments;
    } else if (entry.prefill_tuning.l2_section_bytes != 0) {
      row["l2_section_mib"] = entry.prefill_tuning.l2_section_bytes / kMiB;
    }
    rows.push_back(std::move(row));
  }
  return ordered_json{{"schema", kSchema}, {"gpu", gpu}, {"entries", rows}}.dump(1) + "\n";
}

Result<TuningTable> ParseTuningTable(std::string_view text, std::string_view gpu) {
  const auto json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return Err(Code::kInvalidArgument, "tuning table: expected a JSON object of schema {}",
               kSchema);
  }
  Object object(json, "tuning table");
  FATHOM_ASSIGN_OR_RETURN(const std::string schema, object.Text("schema", kSchema));
  if (schema != kSchema) {
    return Err(Code::kInvalidArgument, "tuning table: \"schema\" is \"{}\": expected \"{}\"",
               schema, kSchema);
  }
  TuningTable table;
  FATHOM_ASSIGN_OR_RETURN(table.gpu, object.Text("gpu", "a GPU's product name"));
  const cost::Hardware* wanted = cost::FindHardware(gpu);
  const bool same = wanted != nullptr ? cost::FindHardware(table.gpu) == wanted : table.gpu == gpu;
  if (!same) {
    return Err(Code::kInvalidArgument, "tuning table: made for \"{}\", this GPU is \"{}\"",
               table.gpu, gpu);
  }
  object.Allow("entries");
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array()) {
    return Err(Code::kInvalidArgument, "tuning table: \"entries\" is {}: expected an array",
               entries == json.end() ? "missing" : entries->dump());
  }
  FATHOM_TRY(object.Finish());
  for (size_t i = 0; i < entries->size(); ++i) {
    FATHOM_ASSIGN_OR_RETURN(TuningTable::Entry entry,
                            ParseEntry((*entries)[i], fmt::format("tuning table, entries[{}]", i)));
    table.entries.push_back(entry);
  }
  return table;
}

Result<TuningTable> LoadTuningTable(const std::string& path, std::string_view gpu) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  auto table = ParseTuningTable(file.text(), gpu);
  if (!table) return tl::unexpected(WithContext(std::move(table.error()), path));
  return table;
}

std::vector<DecodeTuning> DecodeCandidates(int32_t kernel_blocks_per_sm, bool second_kernel) {
  std::vector<DecodeTuning> candidates = {{}};
  for (int32_t parts = 1; parts <= 2 * kernel_blocks_per_sm; ++parts) {
    if (parts != kernel_blocks_per_sm) candidates.push_back({.parts_per_sm = parts});
  }
  if (!second_kernel) return candidates;
  for (const int32_t partials : {4, 8, 32, 64}) {
    candidates.push_back({.warp_merge_partials = partials});
  }
  return candidates;
}

std::vector<PrefillTuning> PrefillCandidates(int64_t l2_bytes) {
  std::vector<PrefillTuning> candidates = {{}};
  for (const int eighths : {2, 3, 5, 6, 8}) {
    const int64_t mib = l2_bytes * eighths / 8 / kMiB;
    if (mib > 0) candidates.push_back({.l2_section_bytes = mib * kMiB});
  }
  return candidates;
}

}  // namespace fathom::ops
