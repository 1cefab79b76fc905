#pragma once
// What the attention planners may choose differently on each GPU, and the table file that says so.
//
//   {"schema": "fathom.attention_tuning/1", "gpu": "H200",
//    "entries": [
//      {"op": "decode", "head_dim_qk": 128, "head_dim_v": 128, "max_rows": 8,
//       "parts_per_sm": 2, "warp_merge_partials": 16, "min_segment_tokens": 256,
//       "max_segments": 32},
//      {"op": "prefill", "head_dim_qk": 128, "head_dim_v": 128, "l2_section_mib": 32}]}
//
// The first entry that fits a shape counts; what it leaves out keeps its default. max_rows: the
// entry is for at most so many query rows (query tokens x query heads of a kv head). Unknown keys,
// values out of range and another GPU's table are errors.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::ops {

struct DecodeTuning {
  int32_t rows = 0;                  // of a block; 0: the fewest that hold the query rows
  int32_t parts_per_sm = 0;          // blocks that share the keys, for each SM; 0: as many as fit
  int32_t warp_merge_partials = 16;  // a row's partial results that one warp still sums
  int32_t min_segment_tokens = 256;  // Reduction::kBatchInvariant: a multiple of 256
  int32_t max_segments = 0;          // ... and how many; 0: as many as fill the GPU

  bool operator==(const DecodeTuning&) const = default;
};

struct PrefillTuning {
  // Keys and values of the heads that are worked on together. 0: of the smallest equal sections of
  // heads that have four tiles for each SM, within 4/5 of L2.
  int64_t l2_section_bytes = 0;

  bool operator==(const PrefillTuning&) const = default;
};

struct TuningTable {
  struct Entry {
    bool decode = true;
    int32_t head_dim_qk = 0;
    int32_t head_dim_v = 0;
    int32_t max_rows = 0;  // 0: any; decode only
    DecodeTuning decode_tuning;
    PrefillTuning prefill_tuning;
  };

  std::string gpu;
  std::vector<Entry> entries;

  DecodeTuning Decode(int32_t head_dim_qk, int32_t head_dim_v, int32_t rows) const;
  PrefillTuning Prefill(int32_t head_dim_qk, int32_t head_dim_v) const;

  std::string ToJson() const;
};

// `gpu`: the product name of the GPU that the table is to be used on; names match as in
// cost::FindHardware.
Result<TuningTable> ParseTuningTable(std::string_view json, std::string_view gpu);
Result<TuningTable> LoadTuningTable(const std::string& path, std::string_view gpu);

// What a search tries: the default first, then one value changed at a time.
// second_kernel: there is one, which merges.
std::vector<DecodeTuning> DecodeCandidates(int32_t kernel_blocks_per_sm, bool second_kernel);
std::vector<PrefillTuning> PrefillCandidates(int64_t l2_bytes);

}  // namespace fathom::ops
