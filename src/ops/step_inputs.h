#pragma once
// Everything a step reads that changes from step to step, in device memory. The engine writes one
// of two buffers while the device may still read the other; model code never branches on a length.
#include <array>
#include <cstdint>

namespace fathom::ops {

// The static shape a step is planned for: upper bounds on what StepInputs will hold. A CUDA graph
// is captured per bucket; the CPU plans each step with its exact sizes.
struct StepBucket {
  int32_t num_tokens = 0;
  int32_t num_sequences = 0;
  int32_t num_logits = 0;        // rows of the head and of sampling
  int32_t max_query_tokens = 0;  // of one sequence
  int32_t max_kv_tokens = 0;     // of one sequence

  bool operator==(const StepBucket&) const = default;
};

// A token's role, not its count, chooses the attention path: prompt tokens take the prefill path,
// generated tokens (also when recomputed after a preemption, many at once) the decode path.
enum class Role : uint8_t { kPrompt = 1, kGenerated = 2 };

inline constexpr int kMaxLayerGroups = 4;

// Where live_counts holds what; ops take `live_counts + kLiveTokens` as their live row count.
inline constexpr int kLiveTokens = 0;
inline constexpr int kLiveSequences = 1;
inline constexpr int kLiveLogits = 2;

// What the tokens of one role in a step amount to, as the host knows it. For cost accounting
// (Context::Mark) alone: nothing may branch on it. Zeros leave the cost of attention unstated.
struct RoleWork {
  int64_t query_tokens = 0;
  int64_t kv_tokens = 0;  // read from the cache: the sum of the role's kv_lengths
  int64_t pairs = 0;      // query-key pairs that the causal mask leaves (cost::CausalPairs)
};

struct StepInputs {
  StepBucket bucket;
  RoleWork prompt_work;
  RoleWork generated_work;

  // Device memory from here on. Entries past the live counts are never read.
  const int32_t* live_counts = nullptr;  // [3] = {tokens, sequences, logits rows}
  // [num_tokens] a token id, or -(row + 1): the id that `sampled` holds at that row.
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;     // [num_tokens]
  const int32_t* query_starts = nullptr;  // [num_sequences + 1], increasing
  const int32_t* kv_lengths = nullptr;    // [num_sequences], this step's tokens included
  const Role* roles = nullptr;            // [num_sequences]
  const int32_t* rope_rows = nullptr;     // [num_sequences] index of the sequence's RoPE table
  const int32_t* logits_tokens =
      nullptr;                       // [num_logits] which tokens' hidden states go to the head
  const int32_t* sampled = nullptr;  // [slots] ids sampled by earlier steps
  // Page table of each layer group: [num_sequences, page_table_stride]; ids past the sequence's
  // last page are never read.
  std::array<const int32_t*, kMaxLayerGroups> page_tables = {};
  std::array<int32_t, kMaxLayerGroups> page_table_stride = {};
};

}  // namespace fathom::ops
