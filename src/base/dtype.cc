#include "base/dtype.h"

#include <array>
#include <cmath>
#include <utility>

namespace fathom {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 9> kNames = {{
    {DType::kF32, "F32"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kI8, "I8"},
    {DType::kU8, "U8"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kBool, "BOOL"},
}};

}  // namespace

int SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

std::string_view NameOf(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view safetensors_name) {
  for (const auto& [type, name] : kNames) {
    if (name == safetensors_name) return type;
  }
  return std::nullopt;
}

float F16ToF32(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t exponent = (value >> 10) & 0x1fu;
  const uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {  // normal in half precision
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Subnormal: adding 0.5 makes the float adder round at the right bit, to nearest even.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
}

float F8E4M3ToF32(uint8_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x80u) << 24;
  const uint32_t exponent = (value >> 3) & 0xfu;
  const uint32_t mantissa = value & 0x7u;
  if (exponent == 0xf && mantissa == 0x7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return sign != 0 ? -magnitude : magnitude;
}

uint8_t F32ToF8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 464 -> 448
  if (magnitude >= 0x3c800000u) {                                           // >= 2^-6: normal
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
  }
  // Subnormal step is 2^-9: 2^14 has an ulp of 2^-9.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
  return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
}

}  // namespace fathom
