#include "cost/hardware.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace fathom::cost {
namespace {

constexpr uint64_t kGB = 1'000'000'000;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// The more specific name first: a search takes the first that matches.
constexpr std::array kHardware = {
    Hardware{"B200", 180 * kGB, 8.0e12, 2.25e15, 4.5e15, 80e12, 900e9, 64e9, 10, 0, 148, 1.965e9,
             126 * kMiB},
    Hardware{"H200", 141 * kGB, 4.8e12, 989.4e12, 1978.9e12, 66.9e12, 450e9, 64e9, 9, 0, 132,
             1.83e9, 60 * kMiB},
    Hardware{"H100 PCIe", 80 * kGB, 2.0e12, 756e12, 1513e12, 51.2e12, 300e9, 64e9, 9, 0, 114,
             1.62e9, 50 * kMiB},
    Hardware{"H100", 80 * kGB, 3.35e12, 989.4e12, 1978.9e12, 66.9e12, 450e9, 64e9, 9, 0, 132,
             1.83e9, 50 * kMiB},
    Hardware{"H800", 80 * kGB, 3.35e12, 989.4e12, 1978.9e12, 66.9e12, 200e9, 64e9, 9, 0, 132,
             1.83e9, 50 * kMiB},
    Hardware{"H20", 96 * kGB, 4.0e12, 148e12, 296e12, 44e12, 450e9, 64e9, 9, 0, 78, 1.98e9,
             60 * kMiB},
    Hardware{"A100-SXM4-40GB", 40 * kGB, 1.555e12, 312e12, 0, 19.5e12, 300e9, 32e9, 8, 0, 108,
             1.41e9, 40 * kMiB},
    Hardware{"A100", 80 * kGB, 2.039e12, 312e12, 0, 19.5e12, 300e9, 32e9, 8, 0, 108, 1.41e9,
             40 * kMiB},
    Hardware{"L40S", 48 * kGB, 0.864e12, 362e12, 733e12, 91.6e12, 0, 32e9, 8, 9, 142, 2.52e9,
             96 * kMiB},
    Hardware{"A10", 24 * kGB, 0.6e12, 125e12, 0, 31.2e12, 0, 32e9, 8, 6, 72, 1.695e9, 6 * kMiB},
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace

std::span<const Hardware> KnownHardware() { return kHardware; }

const Hardware* FindHardware(std::string_view name) {
  const std::string wanted = Lower(name);
  for (const Hardware& hardware : kHardware) {
    const std::string known = Lower(hardware.name);
    const size_t at = wanted.find(known);
    if (at == std::string::npos) continue;
    // "A10" is not the beginning of "A100".
    const size_t end = at + known.size();
    if (end < wanted.size() && std::isalnum(static_cast<unsigned char>(wanted[end])) != 0) continue;
    return &hardware;
  }
  return nullptr;
}

SmLimits SmLimitsOf(const Hardware& hardware) {
  SmLimits limits{.registers = 65536, .shared_bytes_per_clock = 128, .exp2_per_clock = 16};
  constexpr int64_t kKiB = 1024;
  if (hardware.compute_major == 8 && hardware.compute_minor > 0) {  // 8.6, 8.9
    limits.shared_bytes = 100 * kKiB;
    limits.threads = 1536;
    limits.blocks = hardware.compute_minor == 6 ? 16 : 24;
  } else {
    limits.shared_bytes = (hardware.compute_major == 8 ? 164 : 228) * kKiB;
    limits.threads = 2048;
    limits.blocks = 32;
  }
  limits.shared_bytes_per_block = limits.shared_bytes - kKiB;
  return limits;
}

double RooflineSeconds(const Cost& cost, double bytes_per_s, double flops_per_s) {
  const double memory = cost.bytes > 0 ? cost.bytes / bytes_per_s : 0;
  const double compute = cost.flops > 0 ? cost.flops / flops_per_s : 0;
  return std::max(memory, compute);
}

}  // namespace fathom::cost
