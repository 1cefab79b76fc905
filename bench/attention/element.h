#pragma once
// 16-bit elements on the host: bf16 or float16.
#include "base/dtype.h"

namespace fathom::bench {

inline float ElementToF32(uint16_t bits, bool float16) {
  return float16 ? F16ToF32(bits) : Bf16ToF32(bits);
}
inline uint16_t F32ToElement(float value, bool float16) {
  return float16 ? F32ToF16(value) : F32ToBf16(value);
}

}  // namespace fathom::bench
