#pragma once
// What a GPU kernel does, from its name and, better, from the operator and the Python frames that
// launched it. Names alone mislead: Triton's fused names list operators that the kernel only feeds.
#include <cstdint>
#include <string_view>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

enum class KernelClass : uint8_t {
  kGemm,
  kAttention,
  kRope,
  kNorm,
  kSoftmax,
  kCopy,        // copy, cast, expand, clone, transpose by a kernel
  kCat,         // concatenation
  kCacheWrite,  // append to a preallocated KV cache
  kGate,        // MoE gate, top-k, permutation
  kExpert,      // grouped expert GEMM
  kCollective,
  kSampling,
  kEmbedding,
  kQuantise,
  kActivation,
  kElementwise,
  kReduction,
  kMemcpyDevice,  // device to device
  kMemcpyHost,    // host to device or back
  kMemset,
  kGraph,  // a graph recorded as one opaque interval
  kUnclassified,
};
inline constexpr size_t kNumKernelClasses = static_cast<size_t>(KernelClass::kUnclassified) + 1;
std::string_view KernelClassName(KernelClass c);  // "gemm", "attention", ...

// Communication that spins until its peers arrive: its duration is not transfer time.
constexpr bool IsCommunication(KernelClass c) { return c == KernelClass::kCollective; }

// By name alone.
KernelClass ClassifyKernelName(std::string_view name);

// The GPU architecture that a kernel's name says it was written for: 80 for "sm80" or "cutlass_80",
// 90, 100; 0 when the name does not say.
int ArchitectureInName(std::string_view name);

// The class that an operator or a Python frame gives to what it launches, kUnclassified when it
// says nothing ("aten::copy_" says kCopy, "repeat_kv" says kCopy, "aten::mm" says kGemm).
KernelClass ClassifyOperator(std::string_view name);
KernelClass ClassifyPythonFrame(std::string_view name);

}  // namespace fathom::diagnose
