#pragma once
// What the tests of models share: golden cases, loading, and a StepRunner whose errors are
// failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/load.h"
#include "model/safetensors.h"
#include "model/step_runner.h"
#include "ops/cpu_isa.h"

namespace fathom::model {

class TestRunner {
 public:
  using Piece = StepRunner::Piece;
  struct Setup {
    ops::Device* device = nullptr;
    int threads = 1;
    std::string isa;         // empty: the best
    uint64_t page_seed = 0;  // 0: pages in order, else shuffled
    int64_t max_tokens = 1024;
    int sequences = 1;
    event::Sink sink = {};
  };

  TestRunner(Model& model, const Setup& setup)
      : pool_(setup.threads, 0),
        runner_(std::move(StepRunner::Make(model, {.device = setup.device,
                                                   .pool = &pool_,
                                                   .cpu = ops::SelectCpu(setup.isa).value(),
                                                   .sequences = setup.sequences,
                                                   .max_tokens = setup.max_tokens,
                                                   .sink = setup.sink,
                                                   .page_seed = setup.page_seed,
                                                   .poison = true})
                              .value())) {}

  // Logits of every token, in order: [tokens, vocab].
  std::vector<float> Step(std::span<const Piece> pieces) {
    return Checked(runner_.Step(pieces, StepRunner::Rows::kAll));
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

  static std::vector<float> Checked(Result<std::vector<float>> logits) {
    EXPECT_TRUE(logits) << logits.error().message;
    return logits.value_or(std::vector<float>());
  }
  StepRunner& runner() { return runner_; }

 private:
  ThreadPool pool_;
  StepRunner runner_;
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
