#pragma once
// Drives a model without an engine, for benchmarks, verification and tests: a fixed number of
// sequences with pages of their own, one step at a time, each waited for.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/model.h"

namespace fathom::model {

class StepRunner {
 public:
  struct Setup {
    ops::Device* device = nullptr;
    ThreadPool* pool = nullptr;
    const kernels::cpu::KernelTable* cpu = nullptr;
    int sequences = 1;
    int64_t max_tokens = 0;  // of one sequence
    event::Sink sink = {};
    // For tests: pages in shuffled order (0: as they come), and memory that a step must not read
    // before it is written full of NaN and impossible indices.
    uint64_t page_seed = 0;
    bool poison = false;
  };
  static Result<StepRunner> Make(Model& model, const Setup& setup);

  // Tokens that a sequence goes on with.
  struct Piece {
    int sequence = 0;
    std::vector<int32_t> tokens;
    ops::Role role = ops::Role::kPrompt;
    int32_t rope_row = 0;
  };
  enum class Rows : uint8_t { kNone, kLast, kAll };  // whose logits: of each piece

  // Runs one step; logits [rows, vocab_size] in the order of the tokens.
  Result<std::vector<float>> Step(std::span<const Piece> pieces, Rows rows);

  // The same for another pass over the step than Model::Forward.
  using PlanFn = std::function<StepPlan(const ops::StepBucket& bucket)>;
  using ForwardFn = std::function<Status(const StepPlan& plan, const ops::StepInputs& inputs,
                                         std::span<const ops::CacheView> caches,
                                         ops::Context& context, const TensorView& logits)>;
  Result<std::vector<float>> Step(std::span<const Piece> pieces, Rows rows, const PlanFn& plan,
                                  const ForwardFn& forward);

  void set_sink(event::Sink sink) { setup_.sink = sink; }

  // Forgets a sequence's tokens from `length` on.
  void Truncate(int sequence, int64_t length);
  int64_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  // Arena bytes of the last step: taken at most, and planned.
  size_t arena_peak() const { return arena_peak_; }
  size_t arena_planned() const { return arena_planned_; }

 private:
  StepRunner(Model& model, const Setup& setup) : model_(&model), setup_(setup) {}
  // Of at least this size; kept and reused.
  Result<void*> Reserve(ops::DeviceBuffer& buffer, size_t bytes);
  Status Poison(const ops::DeviceBuffer& buffer);

  // A step's host arrays, joined into one upload.
  struct Inputs;

  Model* model_;
  Setup setup_;
  std::vector<int64_t> lengths_;
  int64_t pages_per_sequence_ = 0;
  std::vector<int32_t> page_ids_;  // [sequences, pages_per_sequence]
  std::vector<ops::DeviceBuffer> pages_;
  std::vector<ops::CacheView> caches_;
  ops::DeviceBuffer upload_;
  ops::DeviceBuffer scratch_;
  ops::DeviceBuffer logits_;
  size_t arena_peak_ = 0;
  size_t arena_planned_ = 0;
};

}  // namespace fathom::model
