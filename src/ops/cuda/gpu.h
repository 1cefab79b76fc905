#pragma once
// What a GPU offers the attention kernels, and the kernels that there are.
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"
#include "cost/hardware.h"
#include "kernels/cuda/cache_code.h"

namespace fathom::ops {

struct GpuLimits {
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  int64_t shared_bytes_per_block = 0;  // the opt-in maximum
  int64_t l2_bytes = 0;                // 0: unknown
};

GpuLimits LimitsOf(const cost::Hardware& hardware);

// How a kernel's block works.
enum class KernelKind : uint8_t {
  kWarpgroups,  // sm90/decode, sm90/prefill
  kWide,        // sm90/decode_wide
  kWarps,       // sm90/decode_warps, sm90/decode_latent: warps that work alone
  kPortable,    // sm80: every GPU from compute capability 8.0
};

// One instantiation.
struct AttentionKernel {
  const char* family = nullptr;  // "gqa_d128"
  int dim_qk = 0;
  int dim_v = 0;
  int rows = 0;  // query rows of a block's tile
  int keys = 0;  // of a tile
  int threads = 0;
  int blocks_per_sm = 0;     // where the SM's shared memory holds them
  int64_t shared_bytes = 0;  // of a block
  KernelKind kind = KernelKind::kWarpgroups;
  bool quantised = false;      // takes int8 and e4m3 caches, and only those
  bool tile_lists = false;     // visits listed tiles
  DType dtype = DType::kBF16;  // of queries, of what is not quantised, and of output

  bool latent() const { return dim_qk > dim_v && dim_v > 128; }
};

// By family, rows increasing; of families that fit a shape the first is preferred. All but the
// portable ones are for compute capability 9.0 (sm_90a).
std::span<const AttentionKernel> DecodeKernels();
std::span<const AttentionKernel> PrefillKernels();

// "head dims 64/64 (BF16, F16), ...": what of `kernels` runs on this GPU, for errors.
std::string SupportedOn(const GpuLimits& gpu, std::span<const AttentionKernel> kernels);

// Why this GPU cannot run the kernel; empty when it can.
std::string WhyNotOn(const GpuLimits& gpu, const AttentionKernel& kernel);

}  // namespace fathom::ops
