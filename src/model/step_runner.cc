#include "model/step_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "cost/op_cost.h"

namespace fathom::model {
namespace {

template <class T>
const T* At(const void* base, size_t offset) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(base) + offset);
}

}  // namespace

// Each array begins at a multiple of 16 bytes of one host buffer.
struct StepRunner::Inputs {
  std::vector<std::byte> bytes;

  template <class T>
  size_t Add(const std::vector<T>& values) {
    const size_t offset = (bytes.size() + 15) / 16 * 16;
    bytes.resize(offset + values.size() * sizeof(T));
    if (!values.empty())
      std::memcpy(bytes.data() + offset, values.data(), values.size() * sizeof(T));
    return offset;
  }
};

Result<StepRunner> StepRunner::Make(Model& model, const Setup& setup) {
  FATHOM_CHECK(setup.device != nullptr && setup.pool != nullptr && setup.cpu != nullptr);
  StepRunner runner(model, setup);
  runner.lengths_.resize(static_cast<size_t>(setup.sequences));
  const int64_t page_tokens = model.cache_formats()[0].page_tokens;
  runner.pages_per_sequence_ = (setup.max_tokens + page_tokens - 1) / page_tokens;
  const int64_t num_pages = runner.pages_per_sequence_ * setup.sequences;
  runner.page_ids_.resize(static_cast<size_t>(num_pages));
  std::iota(runner.page_ids_.begin(), runner.page_ids_.end(), 0);
  if (setup.page_seed != 0) {
    std::shuffle(runner.page_ids_.begin(), runner.page_ids_.end(),
                 std::mt19937_64(setup.page_seed));
  }
  for (const ops::CacheFormat& format : model.cache_formats()) {
    const auto bytes = static_cast<size_t>(num_pages * format.page_bytes * format.num_layers);
    FATHOM_ASSIGN_OR_RETURN(runner.pages_.emplace_back(),
                            ops::DeviceBuffer::Make(*setup.device, bytes));
    FATHOM_TRY(runner.Poison(runner.pages_.back()));
    runner.caches_.push_back(
        {.format = format, .base = runner.pages_.back().data(), .num_pages = num_pages});
  }
  return runner;
}

Result<void*> StepRunner::Reserve(ops::DeviceBuffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) {
    FATHOM_TRY(setup_.device->Wait(setup_.device->Record(ops::kDefaultStream)));
    buffer = ops::DeviceBuffer();  // gives the old memory back first
    FATHOM_ASSIGN_OR_RETURN(buffer, ops::DeviceBuffer::Make(*setup_.device, bytes));
  }
  FATHOM_TRY(Poison(buffer));
  return buffer.data();
}

Status StepRunner::Poison(const ops::DeviceBuffer& buffer) {
  if (!setup_.poison) return {};
  // All bits set: NaN as f32 and bf16, and an impossible index.
  const std::vector<char> poison(buffer.size(), '\xff');
  setup_.device->CopyIn(ops::kDefaultStream, buffer.data(), poison.data(), poison.size());
  return {};
}

void StepRunner::Truncate(int sequence, int64_t length) {
  int64_t& current = lengths_[static_cast<size_t>(sequence)];
  FATHOM_CHECK(length <= current);
  current = length;
}

Result<std::vector<float>> StepRunner::Step(std::span<const Piece> pieces, Rows rows) {
  return Step(
      pieces, rows, [this](const ops::StepBucket& bucket) { return model_->Plan(bucket); },
      [this](const StepPlan& plan, const ops::StepInputs& inputs,
             std::span<const ops::CacheView> caches, ops::Context& context,
             const TensorView& logits) {
        return model_->Forward(plan, inputs, caches, context, logits);
      });
}

Result<std::vector<float>> StepRunner::Step(std::span<const Piece> pieces, Rows rows,
                                            const PlanFn& plan_of, const ForwardFn& forward) {
  std::vector<int32_t> ids, positions, starts = {0}, kv_lengths, rope_rows, table, logits_tokens;
  std::vector<ops::Role> roles;
  ops::StepInputs inputs;
  ops::StepBucket& bucket = inputs.bucket;
  const int64_t page_tokens = caches_[0].format.page_tokens;
  for (const Piece& piece : pieces) {
    int64_t& length = lengths_[static_cast<size_t>(piece.sequence)];
    const auto count = static_cast<int32_t>(piece.tokens.size());
    FATHOM_CHECK(count > 0 && length + count <= setup_.max_tokens);
    for (const int32_t token : piece.tokens) {
      ids.push_back(token);
      positions.push_back(static_cast<int32_t>(length++));
    }
    if (rows == Rows::kLast) logits_tokens.push_back(static_cast<int32_t>(ids.size()) - 1);
    starts.push_back(static_cast<int32_t>(ids.size()));
    kv_lengths.push_back(static_cast<int32_t>(length));
    rope_rows.push_back(piece.rope_row);
    roles.push_back(piece.role);
    bucket.max_query_tokens = std::max(bucket.max_query_tokens, count);
    bucket.max_kv_tokens = std::max(bucket.max_kv_tokens, static_cast<int32_t>(length));
    const int32_t* pages = page_ids_.data() + piece.sequence * pages_per_sequence_;
    const int64_t used = (length + page_tokens - 1) / page_tokens;
    for (int64_t p = 0; p < pages_per_sequence_; ++p) {
      table.push_back(p < used ? pages[p] : std::numeric_limits<int32_t>::max());
    }
    ops::RoleWork& work =
        piece.role == ops::Role::kPrompt ? inputs.prompt_work : inputs.generated_work;
    work.query_tokens += count;
    work.kv_tokens += length;
    work.pairs += static_cast<int64_t>(cost::CausalPairs(count, static_cast<double>(length)));
  }
  if (rows == Rows::kAll) {
    logits_tokens.resize(ids.size());
    std::iota(logits_tokens.begin(), logits_tokens.end(), 0);
  }
  bucket.num_tokens = static_cast<int32_t>(ids.size());
  bucket.num_sequences = static_cast<int32_t>(pieces.size());
  bucket.num_logits = static_cast<int32_t>(logits_tokens.size());

  Inputs host;
  const size_t live_at =
      host.Add(std::vector<int32_t>{bucket.num_tokens, bucket.num_sequences, bucket.num_logits});
  const size_t ids_at = host.Add(ids);
  const size_t positions_at = host.Add(positions);
  const size_t starts_at = host.Add(starts);
  const size_t lengths_at = host.Add(kv_lengths);
  const size_t roles_at = host.Add(roles);
  const size_t rope_at = host.Add(rope_rows);
  const size_t logits_at = host.Add(logits_tokens);
  const size_t table_at = host.Add(table);
  ops::Device& device = *setup_.device;
  FATHOM_ASSIGN_OR_RETURN(void* uploaded, Reserve(upload_, host.bytes.size()));
  device.CopyIn(ops::kDefaultStream, uploaded, host.bytes.data(), host.bytes.size());
  inputs.live_counts = At<int32_t>(uploaded, live_at);
  inputs.token_ids = At<int32_t>(uploaded, ids_at);
  inputs.positions = At<int32_t>(uploaded, positions_at);
  inputs.query_starts = At<int32_t>(uploaded, starts_at);
  inputs.kv_lengths = At<int32_t>(uploaded, lengths_at);
  inputs.roles = At<ops::Role>(uploaded, roles_at);
  inputs.rope_rows = At<int32_t>(uploaded, rope_at);
  inputs.logits_tokens = At<int32_t>(uploaded, logits_at);
  for (size_t group = 0; group < caches_.size(); ++group) {
    inputs.page_tables[group] = At<int32_t>(uploaded, table_at);
    inputs.page_table_stride[group] = static_cast<int32_t>(pages_per_sequence_);
  }

  const StepPlan plan = plan_of(bucket);
  FATHOM_ASSIGN_OR_RETURN(void* scratch, Reserve(scratch_, plan.workspace_bytes));
  Arena arena({static_cast<std::byte*>(scratch), plan.workspace_bytes});
  std::vector<float> result(static_cast<size_t>(bucket.num_logits) *
                            static_cast<size_t>(model_->vocab_size()));
  const size_t logits_bytes = result.size() * sizeof(float);
  FATHOM_ASSIGN_OR_RETURN(void* logits, Reserve(logits_, logits_bytes));
  ops::Comm comm;
  ops::Context context{.device = device,
                       .pool = *setup_.pool,
                       .cpu = *setup_.cpu,
                       .comm = comm,
                       .arena = arena,
                       .sink = setup_.sink};
  FATHOM_TRY(forward(
      plan, inputs, caches_, context,
      TensorView::Contiguous(logits, DType::kF32, {bucket.num_logits, model_->vocab_size()})));
  device.CopyOut(ops::kDefaultStream, result.data(), logits, logits_bytes);
  FATHOM_TRY(device.Wait(device.Record(ops::kDefaultStream)));
  arena_peak_ = arena.peak();
  arena_planned_ = plan.workspace_bytes;
  return result;
}

}  // namespace fathom::model
