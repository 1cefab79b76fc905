#pragma once
// Tensor maps as the emulated copy engine reads them.
#include <cstdint>

struct alignas(64) CUtensorMap {
  const uint8_t* base;
  int64_t extents[4];  // innermost first
  int64_t strides[4];  // bytes
  int box[4];
  int element_bytes;
  int swizzle_bytes;  // 0, 32, 64, 128
};
