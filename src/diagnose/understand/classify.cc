#include "diagnose/understand/classify.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>

namespace fathom::diagnose {
namespace {

constexpr std::array<std::string_view, kNumKernelClasses> kNames = {
    "gemm",        "attention",   "rope",       "norm",        "softmax",    "copy",
    "cat",         "cache-write", "gate",       "expert",      "collective", "sampling",
    "embedding",   "quantise",    "activation", "elementwise", "reduction",  "memcpy-device",
    "memcpy-host", "memset",      "graph",      "unclassified"};

struct Word {
  std::string_view part;  // lower case
  KernelClass kind;
};

// In order: the first that occurs wins, so the specific stand before the general.
constexpr Word kKernelWords[] = {
    // Communication, also outside NCCL.
    {"nccl", KernelClass::kCollective},
    {"rccl", KernelClass::kCollective},
    {"multimem", KernelClass::kCollective},
    {"cross_device_reduce", KernelClass::kCollective},
    {"one_shot", KernelClass::kCollective},
    {"two_shot", KernelClass::kCollective},
    {"nvls", KernelClass::kCollective},
    {"nvshmem", KernelClass::kCollective},
    {"deep_ep", KernelClass::kCollective},
    {"allreduce", KernelClass::kCollective},
    {"all_reduce", KernelClass::kCollective},
    {"allgather", KernelClass::kCollective},
    {"all_gather", KernelClass::kCollective},
    {"reduce_scatter", KernelClass::kCollective},
    {"all_to_all", KernelClass::kCollective},
    {"alltoall", KernelClass::kCollective},
    // KV cache writes and RoPE before attention: their names hold "attention" or "kv" too.
    {"reshape_and_cache", KernelClass::kCacheWrite},
    {"concat_and_cache", KernelClass::kCacheWrite},
    {"set_kv_buffer", KernelClass::kCacheWrite},
    {"store_kvcache", KernelClass::kCacheWrite},
    {"store_kv_cache", KernelClass::kCacheWrite},
    {"append_paged_kv", KernelClass::kCacheWrite},
    {"rotary", KernelClass::kRope},
    {"rope", KernelClass::kRope},
    // Attention.
    {"flash_fwd", KernelClass::kAttention},
    {"flash_fprop", KernelClass::kAttention},
    {"flashattn", KernelClass::kAttention},
    {"flash_attn", KernelClass::kAttention},
    {"flash_bwd", KernelClass::kAttention},
    {"flash_mla", KernelClass::kAttention},
    {"flashmla", KernelClass::kAttention},
    {"fmha", KernelClass::kAttention},
    {"sdpa", KernelClass::kAttention},
    {"attention", KernelClass::kAttention},
    {"attn_fwd", KernelClass::kAttention},
    {"attn_stage", KernelClass::kAttention},
    {"mla_decode", KernelClass::kAttention},
    {"batchdecode", KernelClass::kAttention},
    {"batchprefill", KernelClass::kAttention},
    {"lean_reduction", KernelClass::kAttention},  // cuDNN's split combine
    // Fathom's own.
    {"cachewritekernel", KernelClass::kCacheWrite},
    {"prefillkernel", KernelClass::kAttention},
    {"decodekernel", KernelClass::kAttention},
    {"decodewidekernel", KernelClass::kAttention},
    {"decodewarpskernel", KernelClass::kAttention},
    {"decodelatentkernel", KernelClass::kAttention},
    {"decodemergekernel", KernelClass::kAttention},
    {"mergestateskernel", KernelClass::kAttention},
    // MoE.
    {"fused_moe", KernelClass::kExpert},
    {"grouped_gemm", KernelClass::kExpert},
    {"group_gemm", KernelClass::kExpert},
    {"_matmul_ogs", KernelClass::kExpert},
    {"dynbatch", KernelClass::kExpert},
    {"moe_align", KernelClass::kGate},
    {"moe_sum", KernelClass::kGate},
    {"moe_permute", KernelClass::kGate},
    {"topkgating", KernelClass::kGate},
    {"topk_softmax", KernelClass::kGate},
    {"grouped_topk", KernelClass::kGate},
    {"routing", KernelClass::kGate},
    {"moe", KernelClass::kExpert},
    // Sampling.
    {"argmax", KernelClass::kSampling},
    {"topktopp", KernelClass::kSampling},
    {"top_p", KernelClass::kSampling},
    {"multinomial", KernelClass::kSampling},
    {"sampling", KernelClass::kSampling},
    {"gather_topk", KernelClass::kSampling},
    // Norms.
    {"rmsnorm", KernelClass::kNorm},
    {"rms_norm", KernelClass::kNorm},
    {"layernorm", KernelClass::kNorm},
    {"layer_norm", KernelClass::kNorm},
    {"rowwisemoments", KernelClass::kNorm},
    {"bn_fw", KernelClass::kNorm},
    {"bn_bw", KernelClass::kNorm},
    {"batch_norm", KernelClass::kNorm},
    {"softmax", KernelClass::kSoftmax},
    // Quantisation.
    {"quant", KernelClass::kQuantise},
    {"scaled_fp8", KernelClass::kQuantise},
    {"fp8_qparam", KernelClass::kQuantise},
    // GEMM and what belongs to one.
    {"splitkreduce", KernelClass::kGemm},
    {"nvjet", KernelClass::kGemm},
    {"gemm", KernelClass::kGemm},
    {"gemv", KernelClass::kGemm},
    {"cijk_", KernelClass::kGemm},
    {"wvsplitk", KernelClass::kGemm},
    {"bmm_", KernelClass::kGemm},
    {"matmul", KernelClass::kGemm},
    {"xmma", KernelClass::kGemm},
    {"cublas", KernelClass::kGemm},
    {"implicitgemm", KernelClass::kGemm},
    {"cutlass", KernelClass::kGemm},
    // Movement.
    {"catarray", KernelClass::kCat},
    {"direct_copy", KernelClass::kCopy},
    {"_copy_kernel", KernelClass::kCopy},
    {"copy_device_to_device", KernelClass::kCopy},
    {"nchwtonhwc", KernelClass::kCopy},
    {"nhwctonchw", KernelClass::kCopy},
    {"transpose", KernelClass::kCopy},
    {"index_copy", KernelClass::kCacheWrite},
    {"embedding", KernelClass::kEmbedding},
    {"indexselect", KernelClass::kEmbedding},
    {"silu", KernelClass::kActivation},
    {"swiglu", KernelClass::kActivation},
    {"gelu", KernelClass::kActivation},
    {"act_and_mul", KernelClass::kActivation},
    {"reduce_kernel", KernelClass::kReduction},
    {"devicereduce", KernelClass::kReduction},
    {"elementwise", KernelClass::kElementwise},
    {"multi_tensor_apply", KernelClass::kElementwise},
    {"fillfunctor", KernelClass::kElementwise},
};

// torch.compile names a pointwise or reduction kernel after every operator fused into it.
KernelClass ClassifyTriton(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("rsqrt")) return KernelClass::kNorm;
  if (has("index_copy") || has("index_put")) {
    return has("cos") && has("sin") ? KernelClass::kRope : KernelClass::kCacheWrite;
  }
  if (has("softmax")) return KernelClass::kSoftmax;
  // Before rope: an expanded clone of keys carries the names of the rotation that made them.
  if (has("clone") && has("expand")) return KernelClass::kCopy;
  if (has("_cos_") && has("_sin_")) return KernelClass::kRope;
  if (has("silu") || has("gelu")) return KernelClass::kActivation;
  if (has("argmax")) return KernelClass::kSampling;
  if (has("embedding")) return KernelClass::kEmbedding;
  if (has("_cat_")) return KernelClass::kCat;
  if (has("clone") || has("expand") || has("copy")) return KernelClass::kCopy;
  return KernelClass::kElementwise;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

KernelClass FirstWord(std::string_view lower, std::span<const Word> words) {
  for (const Word& word : words) {
    if (lower.find(word.part) != std::string_view::npos) return word.kind;
  }
  return KernelClass::kUnclassified;
}

constexpr Word kOperatorWords[] = {
    {"scaled_dot_product", KernelClass::kAttention},
    {"_attention_forward", KernelClass::kAttention},
    {"flash_attention", KernelClass::kAttention},
    {"unified_attention", KernelClass::kAttention},
    {"paged_attention", KernelClass::kAttention},
    {"reshape_and_cache", KernelClass::kCacheWrite},
    {"rotary_embedding", KernelClass::kRope},
    {"rms_norm", KernelClass::kNorm},
    {"layer_norm", KernelClass::kNorm},
    {"aten::_softmax", KernelClass::kSoftmax},
    {"aten::softmax", KernelClass::kSoftmax},
    {"aten::cat", KernelClass::kCat},
    {"aten::embedding", KernelClass::kEmbedding},
    {"aten::index_copy", KernelClass::kCacheWrite},
    {"aten::argmax", KernelClass::kSampling},
    {"aten::multinomial", KernelClass::kSampling},
    {"fused_moe", KernelClass::kExpert},
    {"fused_experts", KernelClass::kExpert},
    {"grouped_topk", KernelClass::kGate},
    {"aten::mm", KernelClass::kGemm},
    {"aten::bmm", KernelClass::kGemm},
    {"aten::addmm", KernelClass::kGemm},
    {"aten::linear", KernelClass::kGemm},
    {"aten::matmul", KernelClass::kGemm},
    {"c10d::", KernelClass::kCollective},
    {"record_param_comms", KernelClass::kCollective},
    {"aten::silu", KernelClass::kActivation},
    {"aten::gelu", KernelClass::kActivation},
    {"aten::clone", KernelClass::kCopy},
    {"aten::contiguous", KernelClass::kCopy},
    {"aten::copy_", KernelClass::kCopy},
    {"aten::repeat", KernelClass::kCopy},
};

constexpr Word kFrameWords[] = {
    {"repeat_kv", KernelClass::kCopy},   {"apply_rotary", KernelClass::kRope},
    {"rotate_half", KernelClass::kRope}, {"rotary", KernelClass::kRope},
    {"rmsnorm", KernelClass::kNorm},     {"layernorm", KernelClass::kNorm},
    {"sampler", KernelClass::kSampling}, {"topk_softmax", KernelClass::kGate},
    {"moegate", KernelClass::kGate},     {"fused_experts", KernelClass::kExpert},
};

}  // namespace

std::string_view KernelClassName(KernelClass c) { return kNames[static_cast<size_t>(c)]; }

KernelClass ClassifyKernelName(std::string_view name) {
  const std::string lower = Lower(name);
  if (lower.starts_with("triton_poi_") || lower.starts_with("triton_red_") ||
      lower.starts_with("triton_per_")) {
    return ClassifyTriton(lower);
  }
  return FirstWord(lower, kKernelWords);
}

int ArchitectureInName(std::string_view name) {
  for (const std::string_view prefix : {"sm", "sm_", "cutlass_", "ampere_", "hopper_"}) {
    size_t at = 0;
    while ((at = name.find(prefix, at)) != std::string_view::npos) {
      const bool word_start =
          at == 0 || (std::isalnum(static_cast<unsigned char>(name[at - 1])) == 0);
      at += prefix.size();
      if (!word_start) continue;
      if (prefix == "ampere_") return 80;
      if (prefix == "hopper_") return 90;
      size_t end = at;
      int value = 0;
      while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) {
        value = value * 10 + (name[end++] - '0');
        if (end - at > 3) break;
      }
      if (value >= 70 && value <= 130) return value;
    }
  }
  return 0;
}

KernelClass ClassifyOperator(std::string_view name) {
  return FirstWord(Lower(name), kOperatorWords);
}
KernelClass ClassifyPythonFrame(std::string_view name) {
  return FirstWord(Lower(name), kFrameWords);
}

}  // namespace fathom::diagnose
