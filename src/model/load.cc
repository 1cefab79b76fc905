#include "model/load.h"

#include <algorithm>
#include <filesystem>

#include "base/strings.h"
#include "model/deepseek.h"
#include "model/llama.h"
#include "model/memory_limit.h"
#include "model/rope_scaling.h"
#include "ops/onednn.h"

namespace fathom::model {
namespace {

// Code, tokenizer, buffers of the server: not large beside any model, so an allowance will do.
constexpr uint64_t kProcessBytes = uint64_t{64} << 20;
// A context shorter than this is no use to anybody: refuse rather than shrink to it.
constexpr int64_t kMinContext = 1024;
// Logits of a step, while the ones before are still being sampled.
constexpr uint64_t kLogitsBuffers = 2;

Result<std::unique_ptr<Decoder>> MakeModel(const std::string& directory, const ModelConfig& config,
                                           const LoadOptions& options) {
  if (options.kv_dtype != DType::kBF16 && options.kv_dtype != DType::kF32) {
    return Err(Code::kUnsupported, "KV cache of {}: supported are BF16 and F32",
               NameOf(options.kv_dtype));
  }
  const DecoderOptions decoder{.precision = options.precision,
                               .kv_dtype = options.kv_dtype,
                               .gemm = options.gemm,
                               .page_tokens = options.page_tokens,
                               .mtp = options.mtp,
                               .num_threads = options.num_threads,
                               .rope_length_step = options.rope_length_step};
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (config.mla) {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> model,
                            Deepseek::Create(config, decoder, std::move(name)));
    return model;
  }
  if (options.mtp) {
    return Err(Code::kUnsupported, "{} has no multi-token prediction: only DeepSeek-V3 has",
               NameOf(config.architecture));
  }
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> model,
                          Llama::Create(config, decoder, std::move(name)));
  return model;
}

std::string_view PackedName(ops::Precision precision) {
  return precision == ops::Precision::kBF16 ? "packed for bf16 products"
                                            : "packed for f32 products";
}

std::string PackedDetail(WeightGroup group, const Decoder& model) {
  switch (group) {
    case WeightGroup::kEmbedding:
      return "as stored";
    case WeightGroup::kNorms:
      return "f32";
    case WeightGroup::kGate:
      return "packed for f32 products";
    case WeightGroup::kAttention:
      if (model.config().mla) {
        return fmt::format("{}, W_UK in two layouts", PackedName(model.options().precision));
      }
      break;
    default:
      break;
  }
  return std::string(PackedName(model.options().precision));
}

std::string DetailOf(WeightGroup group, const Decoder& model) {
  std::string detail = PackedDetail(group, model);
  const bool copied = group == WeightGroup::kAttention || group == WeightGroup::kDenseMlp ||
                      group == WeightGroup::kSharedExperts || group == WeightGroup::kMtp;
  if (copied && model.options().gemm == ops::Gemm::kOneDnn) detail += ", and again for oneDNN";
  return detail;
}

Result<cost::MemoryPlan> PlanMemory(const Decoder& model, const WeightStore& counted,
                                    const LoadOptions& options) {
  std::vector<cost::MemoryLine> lines;
  for (size_t i = 0; i < static_cast<size_t>(WeightGroup::kCount); ++i) {
    const auto group = static_cast<WeightGroup>(i);
    if (counted.bytes(group) == 0) continue;
    lines.push_back({std::string(NameOf(group)), counted.bytes(group), DetailOf(group, model)});
  }
  const int64_t wanted =
      options.context_tokens > 0 ? options.context_tokens : model.config().max_context;
  if (wanted > model.config().max_context) {
    return Err(Code::kInvalidArgument,
               "a context of {} tokens is wanted, but the model's is {} (RoPE: {})", wanted,
               model.config().max_context, Describe(model.config().rope));
  }
  ops::StepBucket step = options.max_step;
  step.max_kv_tokens = static_cast<int32_t>(wanted);
  lines.push_back({"RoPE tables", model.rope_table_bytes(), Describe(model.config().rope)});
  lines.push_back({"activations", model.Plan(step).workspace_bytes,
                   fmt::format("steps of {} tokens", step.num_tokens)});
  lines.push_back({"logits",
                   kLogitsBuffers * sizeof(float) * static_cast<uint64_t>(step.num_logits) *
                       static_cast<uint64_t>(model.config().vocab_size),
                   fmt::format("{} x {} rows", kLogitsBuffers, step.num_logits)});
  lines.push_back({"program", kProcessBytes, "allowance"});

  cost::KvRequest kv;
  kv.page_tokens = options.page_tokens;
  for (const ops::CacheFormat& format : model.cache_formats()) {
    kv.page_bytes +=
        static_cast<uint64_t>(format.page_bytes) * static_cast<uint64_t>(format.num_layers);
  }
  kv.sequence_tokens = wanted;
  kv.min_sequence_tokens =
      options.context_tokens > 0 ? wanted : std::min<int64_t>(wanted, kMinContext);
  kv.max_pages = (wanted + kv.page_tokens - 1) / kv.page_tokens * step.num_sequences;
  kv.share = options.kv_share;
  FATHOM_ASSIGN_OR_RETURN(const cost::MemoryBudget budget,
                          AvailableMemory(options.max_memory_bytes));
  return cost::SolveMemoryPlan(std::move(lines), budget, kv);
}

struct Opened {
  ModelConfig config;
  Checkpoint checkpoint;
  std::unique_ptr<Decoder> model;
  cost::MemoryPlan memory;
};

Result<Opened> Open(const std::string& directory, const LoadOptions& options) {
  Opened opened;
  FATHOM_ASSIGN_OR_RETURN(opened.config, LoadModelConfig(directory));
  if (options.rope_scaling) FATHOM_TRY(OverrideRope(opened.config, *options.rope_scaling));
  FATHOM_ASSIGN_OR_RETURN(opened.checkpoint, Checkpoint::Open(directory));
  FATHOM_ASSIGN_OR_RETURN(opened.model, MakeModel(directory, opened.config, options));
  WeightStore counted(opened.checkpoint, opened.config.fp8, options.precision, options.gemm);
  FATHOM_TRY(opened.model->LoadWeights(counted));
  FATHOM_ASSIGN_OR_RETURN(opened.memory, PlanMemory(*opened.model, counted, options));
  return opened;
}

}  // namespace

Result<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options,
                              ops::Device& device, const kernels::cpu::KernelTable& cpu) {
  if (options.gemm == ops::Gemm::kOneDnn) FATHOM_TRY(ops::onednn::Check(options.precision, cpu));
  FATHOM_ASSIGN_OR_RETURN(Opened opened, Open(directory, options));
  LoadedModel loaded;
  FATHOM_ASSIGN_OR_RETURN(loaded.generation, LoadGenerationConfig(directory));
  if (options.on_plan) options.on_plan(opened.memory);
  auto store =
      std::make_unique<WeightStore>(opened.checkpoint, opened.config.fp8, options.precision,
                                    options.gemm, device, cpu, options.progress);
  FATHOM_TRY(opened.model->LoadWeights(*store));
  FATHOM_TRY(opened.model->Adopt(std::move(store)));
  loaded.model = std::move(opened.model);
  loaded.memory = std::move(opened.memory);
  return loaded;
}

Result<cost::MemoryPlan> PlanModelMemory(const std::string& directory, const LoadOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(Opened opened, Open(directory, options));
  return std::move(opened.memory);
}

}  // namespace fathom::model
