#pragma once
// From a directory to a model: read the configuration, validate every tensor's name and shape, plan
// the memory, and only then allocate and pack.
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cost/memory_plan.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/model.h"
#include "model/weight_store.h"

namespace fathom::model {

struct LoadOptions {
  ops::Precision precision = ops::Precision::kBF16;
  DType kv_dtype = DType::kBF16;              // kBF16 or kF32
  ops::Gemm gemm = ops::Gemm::kNative;        // DecoderOptions
  int page_tokens = 64;                       // 16, 32, 64 or 128
  bool mtp = false;                           // DecoderOptions
  int num_threads = 1;                        // of the pool that steps will run on
  std::optional<ops::RopeSpec> rope_scaling;  // ParseRopeScaling: replaces config.json's
  int64_t rope_length_step = 1024;            // DecoderOptions

  // The largest step that will be planned.
  ops::StepBucket max_step = {
      .num_tokens = 512, .num_sequences = 256, .num_logits = 256, .max_query_tokens = 512};
  std::optional<uint64_t> max_memory_bytes;  // --max-memory
  // Tokens of one sequence for which pages must fit. 0: the model's context, or as much of it as
  // the memory allows (MemoryPlan::sequence_tokens).
  int64_t context_tokens = 0;
  double kv_share = 0.25;  // of the memory that the weights leave, for the pages of more sequences

  std::function<void(const cost::MemoryPlan&)> on_plan;  // before anything is allocated
  WeightStore::Progress progress;
};

struct LoadedModel {
  std::unique_ptr<Decoder> model;
  GenerationConfig generation;
  cost::MemoryPlan memory;
};

Result<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options,
                              ops::Device& device, const kernels::cpu::KernelTable& cpu);

// The memory plan alone: reads config.json and the headers of the weights.
Result<cost::MemoryPlan> PlanModelMemory(const std::string& directory, const LoadOptions& options);

}  // namespace fathom::model
