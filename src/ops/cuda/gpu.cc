#include "ops/cuda/gpu.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "kernels/cuda/sm90/decode/config.h"
#include "kernels/cuda/sm90/prefill/config.h"

namespace fathom::ops {
namespace {

namespace sm90 = kernels::cuda::sm90;

template <int kDimQk, int kDimV, int kRows>
constexpr AttentionKernel Decode(const char* family) {
  using Config = sm90::DecodeConfig<kDimQk, kDimV, kRows, (kDimQk > kDimV)>;
  return {family,
          kDimQk,
          kDimV,
          kRows,
          Config::kTile,
          Config::kThreads,
          Config::kBlocksPerSm,
          Config::kSharedBytes};
}

template <int kDimQk, int kDimV, int kGroups>
constexpr AttentionKernel Prefill(const char* family) {
  using Config = sm90::PrefillConfig<kDimQk, kDimV, kGroups>;
  return {family,        kDimQk,           kDimV, Config::kRows,
          Config::kKeys, Config::kThreads, 1,     Config::kSharedBytes};
}

constexpr std::array kDecode = {
    Decode<64, 64, 8>("gqa_d64"),        Decode<64, 64, 16>("gqa_d64"),
    Decode<64, 64, 32>("gqa_d64"),       Decode<64, 64, 64>("gqa_d64"),
    Decode<128, 128, 8>("gqa_d128"),     Decode<128, 128, 16>("gqa_d128"),
    Decode<128, 128, 32>("gqa_d128"),    Decode<128, 128, 64>("gqa_d128"),
    Decode<576, 512, 16>("mla_576_512"), Decode<576, 512, 32>("mla_576_512"),
    Decode<576, 512, 64>("mla_576_512"),
};

constexpr std::array kPrefill = {
    Prefill<64, 64, 3>("d64"),
    Prefill<128, 128, 2>("d128"),
    Prefill<192, 128, 2>("d192_128"),
};

}  // namespace

GpuLimits LimitsOf(const cost::Hardware& hardware) {
  return {.compute_major = hardware.compute_major,
          .compute_minor = hardware.compute_minor,
          .num_sms = hardware.num_sms,
          .shared_bytes_per_block = cost::SmLimitsOf(hardware).shared_bytes_per_block,
          .l2_bytes = static_cast<int64_t>(hardware.l2_bytes)};
}

std::span<const AttentionKernel> DecodeKernels() { return kDecode; }
std::span<const AttentionKernel> PrefillKernels() { return kPrefill; }

std::string WhyNotOn(const GpuLimits& gpu, const AttentionKernel& kernel) {
  if (gpu.compute_major != 9) {
    return fmt::format("needs compute capability 9.0, this GPU has {}.{}", gpu.compute_major,
                       gpu.compute_minor);
  }
  if (gpu.shared_bytes_per_block < kernel.shared_bytes) {
    return fmt::format("needs {} bytes of shared memory a block, this GPU gives {}",
                       kernel.shared_bytes, gpu.shared_bytes_per_block);
  }
  return {};
}

std::string SupportedOn(const GpuLimits& gpu, std::span<const AttentionKernel> kernels) {
  std::string text;
  std::string_view family;
  for (const AttentionKernel& kernel : kernels) {
    if (family == kernel.family || !WhyNotOn(gpu, kernel).empty()) continue;
    family = kernel.family;
    text += fmt::format("{}head dims {}/{}", text.empty() ? "" : ", ", kernel.dim_qk, kernel.dim_v);
  }
  if (text.empty()) {
    return fmt::format("nothing (compute capability {}.{}; every kernel needs 9.0)",
                       gpu.compute_major, gpu.compute_minor);
  }
  return text;
}

}  // namespace fathom::ops
