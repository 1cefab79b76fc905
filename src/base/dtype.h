#pragma once
// Element types and their scalar conversions. The vectorised conversions are in kernels/cpu.
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI8, kU8, kI32, kI64, kBool };

int SizeOf(DType dtype);  // bytes an element
// The names of the safetensors format: "F32", "BF16", "F8_E4M3", ...
std::string_view NameOf(DType dtype);
std::optional<DType> DTypeFromName(std::string_view safetensors_name);

// Round to nearest even; NaN stays NaN.
inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float Bf16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

float F16ToF32(uint16_t value);
uint16_t F32ToF16(float value);  // overflow gives infinity

// OCP 8-bit floating point, E4M3 "fn" variant: no infinities, 0x7f and 0xff are NaN, max 448.
float F8E4M3ToF32(uint8_t value);
uint8_t F32ToF8E4M3(float value);  // round to nearest even, saturates at 448

}  // namespace fathom
