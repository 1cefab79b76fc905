#pragma once
// Drives a model step by step as an engine would, for tests: keeps pages, page tables and lengths,
// builds StepInputs in device memory, poisons whatever a step must not read, and gives the arena
// exactly what the plan asks for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "cost/op_cost.h"
#include "model/deepseek.h"
#include "model/load.h"
#include "model/safetensors.h"
#include "ops/cpu_isa.h"

namespace fathom::model {

class TestRunner {
 public:
  struct Setup {
    ops::Device* device = nullptr;
    int threads = 1;
    std::string isa;         // empty: the best
    uint64_t page_seed = 0;  // 0: pages in order, else shuffled
    int64_t pages_per_sequence = 64;
    int sequences = 1;
  };

  // A piece of a sequence in a step.
  struct Piece {
    int sequence = 0;
    std::vector<int32_t> tokens;
    ops::Role role = ops::Role::kPrompt;
    int32_t rope_row = 0;
  };

  TestRunner(Model& model, const Setup& setup)
      : model_(model),
        device_(*setup.device),
        pool_(setup.threads, 0),
        cpu_(*ops::SelectCpu(setup.isa).value()),
        lengths_(static_cast<size_t>(setup.sequences)),
        draft_lengths_(static_cast<size_t>(setup.sequences)),
        pages_per_sequence_(setup.pages_per_sequence) {
    const int64_t num_pages = pages_per_sequence_ * setup.sequences;
    page_ids_.resize(static_cast<size_t>(num_pages));
    std::iota(page_ids_.begin(), page_ids_.end(), 0);
    if (setup.page_seed != 0) {
      std::shuffle(page_ids_.begin(), page_ids_.end(), std::mt19937_64(setup.page_seed));
    }
    for (const ops::CacheFormat& format : model.cache_formats()) {
      const auto bytes = static_cast<size_t>(num_pages) * static_cast<size_t>(format.page_bytes) *
                         static_cast<size_t>(format.num_layers);
      pages_.push_back(Poisoned(bytes));
      caches_.push_back({.format = format, .base = pages_.back().data(), .num_pages = num_pages});
    }
  }

  // Runs one step over these pieces; logits of every token, in order: [tokens, vocab].
  std::vector<float> Step(std::span<const Piece> pieces) {
    const Prepared step = Prepare(pieces, lengths_);
    return Execute(step, model_.Plan(step.inputs.bucket),
                   [&](const StepPlan& plan, ops::Context& context, const TensorView& logits) {
                     return model_.Forward(plan, step.inputs, caches_, context, logits);
                   });
  }

  // The same, keeping the final hidden states of the step for Draft.
  std::vector<float> StepHidden(Decoder& model, std::span<const Piece> pieces) {
    const Prepared step = Prepare(pieces, lengths_);
    const int64_t hidden_size = model.config().hidden_size;
    const int64_t tokens = step.inputs.bucket.num_tokens;
    hidden_buffer_ = Poisoned(static_cast<size_t>(tokens * hidden_size) * sizeof(float));
    hidden_ = TensorView::Contiguous(hidden_buffer_.data(), DType::kF32, {tokens, hidden_size});
    return Execute(step, model.Plan(step.inputs.bucket),
                   [&](const StepPlan& plan, ops::Context& context, const TensorView& logits) {
                     return model.ForwardHidden(plan, step.inputs, caches_, context, hidden_,
                                                logits);
                   });
  }

  // A step of the MTP layer over next tokens, from the kept states [first_row, ...).
  std::vector<float> Draft(Deepseek& model, const Piece& next_tokens, int64_t first_row) {
    const Prepared step = Prepare({&next_tokens, 1}, draft_lengths_);
    TensorView hidden = hidden_;
    hidden.data = hidden_.As<float>() + first_row * hidden_.stride[0];
    hidden.shape[0] = step.inputs.bucket.num_tokens;
    return Execute(step, model.DraftPlan(step.inputs.bucket),
                   [&](const StepPlan& plan, ops::Context& context, const TensorView& logits) {
                     return model.Draft(plan, step.inputs, caches_, context, hidden, logits);
                   });
  }

  // One sequence in chunks; the tokens from `generated_from` on are generated ones.
  std::vector<float> Run(int sequence, std::span<const int32_t> tokens, size_t chunk,
                         size_t generated_from, int32_t rope_row = 0, size_t generated_chunk = 1) {
    std::vector<float> all;
    for (size_t begin = 0; begin < tokens.size();) {
      const bool prompt = begin < generated_from;
      const size_t limit =
          prompt ? std::min(begin + chunk, generated_from) : begin + generated_chunk;
      const size_t end = std::min(limit, tokens.size());
      const Piece piece{.sequence = sequence,
                        .tokens = {tokens.begin() + static_cast<int64_t>(begin),
                                   tokens.begin() + static_cast<int64_t>(end)},
                        .role = prompt ? ops::Role::kPrompt : ops::Role::kGenerated,
                        .rope_row = rope_row};
      const std::vector<float> logits = Step({&piece, 1});
      all.insert(all.end(), logits.begin(), logits.end());
      begin = end;
    }
    return all;
  }

  void SetSink(event::Sink sink) { sink_ = sink; }
  size_t arena_peak() const { return arena_peak_; }
  size_t planned() const { return planned_; }

 private:
  struct Prepared {
    ops::StepInputs inputs;
    std::vector<ops::DeviceBuffer> buffers;
  };

  Prepared Prepare(std::span<const Piece> pieces, std::vector<int32_t>& lengths) {
    std::vector<int32_t> ids, positions, starts = {0}, kv_lengths, rope_rows, table, logits_tokens;
    std::vector<ops::Role> roles;
    Prepared step;
    ops::StepInputs& inputs = step.inputs;
    ops::StepBucket& bucket = inputs.bucket;
    for (const Piece& piece : pieces) {
      int32_t& length = lengths[static_cast<size_t>(piece.sequence)];
      for (const int32_t token : piece.tokens) {
        ids.push_back(token);
        positions.push_back(length++);
      }
      const auto count = static_cast<int32_t>(piece.tokens.size());
      starts.push_back(starts.back() + count);
      kv_lengths.push_back(length);
      rope_rows.push_back(piece.rope_row);
      roles.push_back(piece.role);
      bucket.max_query_tokens = std::max(bucket.max_query_tokens, count);
      bucket.max_kv_tokens = std::max(bucket.max_kv_tokens, length);
      const auto* row = page_ids_.data() + piece.sequence * pages_per_sequence_;
      const int32_t page_tokens = caches_[0].format.page_tokens;
      const int64_t used = (length + page_tokens - 1) / page_tokens;
      EXPECT_LE(used, pages_per_sequence_);
      for (int64_t p = 0; p < pages_per_sequence_; ++p) {
        table.push_back(p < used ? row[p] : std::numeric_limits<int32_t>::max());
      }
      ops::RoleWork& work =
          piece.role == ops::Role::kPrompt ? inputs.prompt_work : inputs.generated_work;
      work.query_tokens += count;
      work.kv_tokens += length;
      work.pairs += static_cast<int64_t>(cost::CausalPairs(count, length));
    }
    bucket.num_tokens = bucket.num_logits = static_cast<int32_t>(ids.size());
    bucket.num_sequences = static_cast<int32_t>(pieces.size());
    logits_tokens.resize(ids.size());
    std::iota(logits_tokens.begin(), logits_tokens.end(), 0);
    const std::vector<int32_t> live = {bucket.num_tokens, bucket.num_sequences, bucket.num_logits};
    const auto upload = [&]<class T>(const std::vector<T>& values) {
      const size_t bytes = values.size() * sizeof(T);
      step.buffers.push_back(Buffer(bytes));
      device_.CopyIn(ops::kDefaultStream, step.buffers.back().data(), values.data(), bytes);
      return static_cast<const T*>(step.buffers.back().data());
    };
    inputs.live_counts = upload(live);
    inputs.token_ids = upload(ids);
    inputs.positions = upload(positions);
    inputs.query_starts = upload(starts);
    inputs.kv_lengths = upload(kv_lengths);
    inputs.roles = upload(roles);
    inputs.rope_rows = upload(rope_rows);
    inputs.logits_tokens = upload(logits_tokens);
    for (size_t group = 0; group < caches_.size(); ++group) {
      inputs.page_tables[group] = upload(table);
      inputs.page_table_stride[group] = static_cast<int32_t>(pages_per_sequence_);
    }
    return step;
  }

  template <class Forward>
  std::vector<float> Execute(const Prepared& step, const StepPlan& plan, Forward&& forward) {
    const ops::DeviceBuffer scratch = Poisoned(plan.workspace_bytes);
    Arena arena({static_cast<std::byte*>(scratch.data()), plan.workspace_bytes});
    const int64_t rows = step.inputs.bucket.num_logits;
    const int64_t vocab = model_.vocab_size();
    std::vector<float> host(static_cast<size_t>(rows * vocab));
    const size_t bytes = host.size() * sizeof(float);
    const ops::DeviceBuffer logits = Poisoned(bytes);
    ops::Context context{.device = device_,
                         .pool = pool_,
                         .cpu = cpu_,
                         .comm = comm_,
                         .arena = arena,
                         .sink = sink_};
    const Status status =
        forward(plan, context, TensorView::Contiguous(logits.data(), DType::kF32, {rows, vocab}));
    EXPECT_TRUE(status) << status.error().message;
    device_.CopyOut(ops::kDefaultStream, host.data(), logits.data(), bytes);
    EXPECT_TRUE(device_.Wait(device_.Record(ops::kDefaultStream)));
    arena_peak_ = arena.peak();
    planned_ = plan.workspace_bytes;
    return host;
  }

  ops::DeviceBuffer Buffer(size_t bytes) {
    return std::move(ops::DeviceBuffer::Make(device_, bytes).value());
  }
  // All bits set: NaN as f32 and bf16, and an impossible index.
  ops::DeviceBuffer Poisoned(size_t bytes) {
    ops::DeviceBuffer buffer = Buffer(bytes);
    const std::vector<char> poison(bytes, '\xff');
    device_.CopyIn(ops::kDefaultStream, buffer.data(), poison.data(), bytes);
    EXPECT_TRUE(device_.Wait(device_.Record(ops::kDefaultStream)));
    return buffer;
  }

  Model& model_;
  ops::Device& device_;
  ThreadPool pool_;
  const kernels::cpu::KernelTable& cpu_;
  ops::Comm comm_;
  event::Sink sink_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> draft_lengths_;
  ops::DeviceBuffer hidden_buffer_;
  TensorView hidden_;
  int64_t pages_per_sequence_;
  std::vector<int32_t> page_ids_;
  std::vector<ops::DeviceBuffer> pages_;
  std::vector<ops::CacheView> caches_;
  size_t arena_peak_ = 0;
  size_t planned_ = 0;
};

// A golden case: a checkpoint folder and what it must compute (tests/golden/README.md).
struct GoldenCase {
  explicit GoldenCase(std::string_view name)
      : directory(fmt::format("{}/tests/golden/{}", FATHOM_SOURCE_DIR, name)) {
    file = std::move(MappedFile::Open(directory + "/reference.safetensors").value());
    std::vector<TensorInfo> infos = ParseSafetensors(file.bytes(), "reference").value();
    for (TensorInfo& info : infos) {
      tensors.emplace(info.name, std::move(info));
    }
    ids = Span<int32_t>("ids");
  }
  bool Has(const std::string& name) const { return tensors.contains(name); }
  template <class T>
  std::span<const T> Span(const std::string& name) const {
    const TensorInfo& info = tensors.at(name);
    return {reinterpret_cast<const T*>(file.bytes().data() + info.offset), info.bytes / sizeof(T)};
  }

  std::string directory;
  MappedFile file;
  std::map<std::string, TensorInfo> tensors;
  std::span<const int32_t> ids;
};

inline std::unique_ptr<Decoder> LoadForTest(const std::string& directory, LoadOptions options,
                                            ops::Device& device, const std::string& isa = "") {
  options.num_threads = std::max(options.num_threads, 2);
  auto loaded = LoadModel(directory, options, device, *ops::SelectCpu(isa).value());
  EXPECT_TRUE(loaded) << loaded.error().message;
  return loaded ? std::move(loaded->model) : nullptr;
}

}  // namespace fathom::model
