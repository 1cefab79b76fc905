#pragma once
// Lays a batch out as what the device reads: StepInputs and the arguments of sampling, in one
// buffer that goes over in one copy. There are two buffers on the device, so that one can be
// written while a step in flight reads the other.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/scheduler.h"
#include "ops/device.h"
#include "ops/sample.h"
#include "ops/step_inputs.h"

namespace fathom::engine {

// The largest step.
struct StepLimits {
  int32_t max_tokens = 0;
  int32_t max_sequences = 0;
  int32_t max_pages_per_sequence = 0;
  int32_t num_groups = 1;  // layer groups; all read the same page table
  int32_t vocab_size = 0;
};

// What requests need beyond the limits above.
struct SamplingNeeds {
  size_t occurrences = 0;
  size_t biases = 0;
  size_t mask_rows = 0;

  SamplingNeeds& operator+=(const SamplingNeeds& other);
  SamplingNeeds& operator-=(const SamplingNeeds& other);
};

class StepBuffers {
 public:
  static Result<StepBuffers> Make(ops::Device& device, const StepLimits& limits);
  // Bytes of device memory that Make will allocate.
  static size_t DeviceBytes(const StepLimits& limits);

  // Room for what all live requests together need. Grows the buffers, and so only while no step is
  // in flight; WouldGrow says whether it must.
  bool WouldGrow(const SamplingNeeds& needs) const;
  Status Reserve(const SamplingNeeds& needs);

  struct Step {
    ops::StepInputs inputs;
    ops::sample::Args sampling;  // all but the logits
  };
  // Builds the step in the next buffer and enqueues its copy. Constraints are asked for their
  // masks.
  Step Build(const Batch& batch, ops::StreamId stream);

  // Enqueues the copy of the choices of the step built last; `host` [num_logits].
  void CopyChoices(const Step& step, std::span<ops::sample::Choice> host, ops::StreamId stream);

 private:
  // Where a part of the buffer begins; each is aligned to 16 bytes.
  struct Layout {
    size_t live_counts, token_ids, positions, query_starts, kv_lengths, roles, rope_rows,
        logits_tokens, rows, page_table, occurrences, biases, masks, end;
  };
  static Layout LayoutFor(int32_t tokens, int32_t sequences, int32_t logits, size_t table_entries,
                          const SamplingNeeds& needs, int32_t vocab_size);
  static Layout LargestLayout(const StepLimits& limits, const SamplingNeeds& needs);

  template <class T>
  T* Host(size_t offset) {
    return reinterpret_cast<T*>(host_.data() + offset);
  }

  ops::Device* device_ = nullptr;
  StepLimits limits_;
  SamplingNeeds reserved_;
  std::vector<std::byte> host_;
  std::array<ops::DeviceBuffer, 2> buffers_;
  std::array<ops::DeviceBuffer, 2> choices_;
  ops::DeviceBuffer sampled_;
  size_t next_ = 0;
};

}  // namespace fathom::engine
