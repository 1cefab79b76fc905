#include "ops/cuda/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "kernels/cuda/sm80/decode/config.h"
#include "kernels/cuda/sm80/decode_latent/config.h"
#include "kernels/cuda/sm80/prefill/config.h"
#include "kernels/cuda/sm90/decode/config.h"
#include "kernels/cuda/sm90/decode_latent/config.h"
#include "kernels/cuda/sm90/decode_warps/config.h"
#include "kernels/cuda/sm90/decode_wide/config.h"
#include "kernels/cuda/sm90/prefill/config.h"

namespace fathom::ops {
namespace {

namespace sm80 = kernels::cuda::sm80;
namespace sm90 = kernels::cuda::sm90;
using kernels::cuda::CacheCode;

constexpr DType TypeOf(bool float16) { return float16 ? DType::kF16 : DType::kBF16; }

template <int kDimQk, int kDimV, int kRows, bool kFloat16 = false>
constexpr AttentionKernel Decode(const char* family) {
  using Config = sm90::DecodeConfig<kDimQk, kDimV, kRows, kFloat16>;
  return {family,
          kDimQk,
          kDimV,
          kRows,
          Config::kTile,
          Config::kThreads,
          Config::kBlocksPerSm,
          Config::kSharedBytes,
          KernelKind::kWarpgroups,
          false,
          false,
          TypeOf(kFloat16)};
}

constexpr AttentionKernel Wide(const char* family, bool float16 = false) {
  using Config = sm90::WideConfig;
  return {family,
          Config::kDimQk,
          Config::kDimV,
          Config::kRows,
          Config::kTile,
          Config::kThreads,
          1,
          Config::kSharedBytes,
          KernelKind::kWide,
          false,
          false,
          TypeOf(float16)};
}

template <CacheCode kCode, int kDim, int kRows, bool kFloat16 = false>
constexpr AttentionKernel Warps(const char* family) {
  using Config = sm90::WarpsConfig<kCode, kDim, kRows, kFloat16>;
  return {family,
          kDim,
          kDim,
          kRows,
          Config::kTile,
          Config::kThreads,
          Config::kBlocksPerSm,
          Config::kSharedBytes,
          KernelKind::kWarps,
          Config::kQuantised,
          true,
          TypeOf(kFloat16)};
}

template <bool kFloat16>
constexpr AttentionKernel Latent(const char* family) {
  using Config = sm90::LatentConfig<CacheCode::kInt8, kFloat16>;
  return {family,
          Config::kDimV + Config::kRope,
          Config::kDimV,
          Config::kRows,
          Config::kTile,
          Config::kThreads,
          1,
          Config::kSharedBytes,
          KernelKind::kWarps,
          true,
          false,
          TypeOf(kFloat16)};
}

template <int kDim, int kRows, bool kFloat16>
constexpr AttentionKernel PortableDecode(const char* family) {
  using Config = sm80::DecodeConfig<kDim, kRows, kFloat16>;
  return {family,
          kDim,
          kDim,
          kRows,
          Config::kTile,
          Config::kThreads,
          kRows == 8 ? 2 : 1,
          Config::kSharedBytes,
          KernelKind::kPortable,
          false,
          false,
          TypeOf(kFloat16)};
}

template <int kRows, bool kFloat16>
constexpr AttentionKernel PortableLatent(const char* family) {
  using Config = sm80::LatentConfig<kRows, kFloat16>;
  return {family,
          Config::kDimQk,
          Config::kDimV,
          kRows,
          Config::kTile,
          Config::kThreads,
          Config::kBlocksPerSm,
          Config::kSharedBytes,
          KernelKind::kPortable,
          false,
          false,
          TypeOf(kFloat16)};
}

template <int kDimQk, int kDimV, bool kFloat16>
constexpr AttentionKernel PortablePrefill(const char* family) {
  using Config = sm80::PrefillConfig<kDimQk, kDimV, kFloat16>;
  return {family,
          kDimQk,
          kDimV,
          Config::kRows,
          Config::kKeys,
          Config::kThreads,
          2,
          Config::kSharedBytes,
          KernelKind::kPortable,
          false,
          false,
          TypeOf(kFloat16)};
}

template <int kDimQk, int kDimV, bool kFloat16>
constexpr AttentionKernel Prefill(const char* family) {
  using Config = sm90::PrefillConfig<kDimQk, kDimV, /*kLists=*/false, kFloat16>;
  return {family,
          kDimQk,
          kDimV,
          Config::kRows,
          Config::kKeys,
          Config::kThreads,
          1,
          Config::kSharedBytes,
          KernelKind::kWarpgroups,
          false,
          true,
          TypeOf(kFloat16)};
}

constexpr std::array kDecode = {
    Decode<64, 64, 8>("gqa_d64"),
    Decode<64, 64, 16>("gqa_d64"),
    Decode<64, 64, 32>("gqa_d64"),
    Decode<64, 64, 64>("gqa_d64"),
    Decode<128, 128, 8>("gqa_d128"),
    Decode<128, 128, 16>("gqa_d128"),
    Decode<128, 128, 32>("gqa_d128"),
    Decode<128, 128, 64>("gqa_d128"),
    Decode<576, 512, 16>("mla_576_512"),
    Decode<576, 512, 32>("mla_576_512"),
    Wide("mla_576_512"),
    Warps<CacheCode::kBf16, 64, 8>("gqa_d64_warps"),
    Warps<CacheCode::kBf16, 64, 16>("gqa_d64_warps"),
    Warps<CacheCode::kBf16, 128, 8>("gqa_d128_warps"),
    Warps<CacheCode::kBf16, 128, 16>("gqa_d128_warps"),
    Decode<64, 64, 8, true>("gqa_d64_f16"),
    Decode<64, 64, 16, true>("gqa_d64_f16"),
    Decode<64, 64, 32, true>("gqa_d64_f16"),
    Decode<64, 64, 64, true>("gqa_d64_f16"),
    Decode<128, 128, 8, true>("gqa_d128_f16"),
    Decode<128, 128, 16, true>("gqa_d128_f16"),
    Decode<128, 128, 32, true>("gqa_d128_f16"),
    Decode<128, 128, 64, true>("gqa_d128_f16"),
    Decode<576, 512, 16, true>("mla_576_512_f16"),
    Decode<576, 512, 32, true>("mla_576_512_f16"),
    Wide("mla_576_512_f16", true),
    Warps<CacheCode::kBf16, 64, 8, true>("gqa_d64_warps_f16"),
    Warps<CacheCode::kBf16, 64, 16, true>("gqa_d64_warps_f16"),
    Warps<CacheCode::kBf16, 128, 8, true>("gqa_d128_warps_f16"),
    Warps<CacheCode::kBf16, 128, 16, true>("gqa_d128_warps_f16"),
    Warps<CacheCode::kInt8, 64, 8>("gqa_d64_quantised"),
    Warps<CacheCode::kInt8, 64, 16>("gqa_d64_quantised"),
    Warps<CacheCode::kInt8, 128, 8>("gqa_d128_quantised"),
    Warps<CacheCode::kInt8, 128, 16>("gqa_d128_quantised"),
    Latent<false>("mla_576_512_quantised"),
    Warps<CacheCode::kInt8, 64, 8, true>("gqa_d64_quantised_f16"),
    Warps<CacheCode::kInt8, 64, 16, true>("gqa_d64_quantised_f16"),
    Warps<CacheCode::kInt8, 128, 8, true>("gqa_d128_quantised_f16"),
    Warps<CacheCode::kInt8, 128, 16, true>("gqa_d128_quantised_f16"),
    Latent<true>("mla_576_512_quantised_f16"),
    PortableDecode<64, 8, false>("gqa_d64_portable"),
    PortableDecode<64, 16, false>("gqa_d64_portable"),
    PortableDecode<128, 8, false>("gqa_d128_portable"),
    PortableDecode<128, 16, false>("gqa_d128_portable"),
    PortableLatent<16, false>("mla_576_512_portable"),
    PortableLatent<32, false>("mla_576_512_portable"),
    PortableDecode<64, 8, true>("gqa_d64_portable_f16"),
    PortableDecode<64, 16, true>("gqa_d64_portable_f16"),
    PortableDecode<128, 8, true>("gqa_d128_portable_f16"),
    PortableDecode<128, 16, true>("gqa_d128_portable_f16"),
    PortableLatent<16, true>("mla_576_512_portable_f16"),
    PortableLatent<32, true>("mla_576_512_portable_f16"),
};

constexpr std::array kPrefill = {
    Prefill<64, 64, false>("d64"),
    Prefill<128, 128, false>("d128"),
    Prefill<192, 128, false>("d192_128"),
    Prefill<64, 64, true>("d64_f16"),
    Prefill<128, 128, true>("d128_f16"),
    Prefill<192, 128, true>("d192_128_f16"),
    PortablePrefill<64, 64, false>("d64_portable"),
    PortablePrefill<128, 128, false>("d128_portable"),
    PortablePrefill<192, 128, false>("d192_128_portable"),
    PortablePrefill<64, 64, true>("d64_portable_f16"),
    PortablePrefill<128, 128, true>("d128_portable_f16"),
    PortablePrefill<192, 128, true>("d192_128_portable_f16"),
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
  const bool portable = kernel.kind == KernelKind::kPortable;
  if (portable ? gpu.compute_major < 8 : gpu.compute_major != 9) {
    return fmt::format("needs compute capability {}, this GPU has {}.{}",
                       portable ? "8.0 or later" : "9.0", gpu.compute_major, gpu.compute_minor);
  }
  if (gpu.shared_bytes_per_block < kernel.shared_bytes) {
    return fmt::format("needs {} bytes of shared memory a block, this GPU gives {}",
                       kernel.shared_bytes, gpu.shared_bytes_per_block);
  }
  return {};
}

std::string SupportedOn(const GpuLimits& gpu, std::span<const AttentionKernel> kernels) {
  struct Dims {
    int qk, v;
    std::vector<std::string_view> types;
  };
  std::vector<Dims> supported;
  for (const AttentionKernel& kernel : kernels) {
    if (!WhyNotOn(gpu, kernel).empty()) continue;
    auto dims = std::find_if(supported.begin(), supported.end(), [&kernel](const Dims& d) {
      return d.qk == kernel.dim_qk && d.v == kernel.dim_v;
    });
    if (dims == supported.end()) {
      dims = supported.insert(dims, {kernel.dim_qk, kernel.dim_v, {}});
    }
    const std::string_view type = NameOf(kernel.dtype);
    if (std::find(dims->types.begin(), dims->types.end(), type) == dims->types.end()) {
      dims->types.push_back(type);
    }
  }
  std::string text;
  for (const Dims& dims : supported) {
    text += fmt::format("{}head dims {}/{} ({})", text.empty() ? "" : ", ", dims.qk, dims.v,
                        fmt::join(dims.types, ", "));
  }
  if (text.empty()) {
    return fmt::format("nothing (compute capability {}.{}; every kernel needs 8.0)",
                       gpu.compute_major, gpu.compute_minor);
  }
  return text;
}

}  // namespace fathom::ops
