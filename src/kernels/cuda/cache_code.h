#pragma once
#include <cstdint>

namespace fathom::kernels::cuda {

// How cached elements are stored. Quantised rows have one f32 scale for each `scale_group`
// elements: element = code * scale, with scale = max |x| of the group / 127 (int8) or / 448 (e4m3),
// 1 for a group of zeros.
enum class CacheCode : int32_t { kBf16, kInt8, kE4m3 };

}  // namespace fathom::kernels::cuda
