#pragma once
// What machines can do at most, from their makers' data sheets: the roofs that measured times are
// set against. Dense rates, without sparsity.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fathom::cost {

struct Hardware {
  std::string_view name;
  uint64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;
  double bf16_flops_per_s = 0;
  double fp8_flops_per_s = 0;   // 0: no fp8 units
  double f32_flops_per_s = 0;   // outside the tensor cores
  double link_bytes_per_s = 0;  // between GPUs of one host, one direction; 0: PCIe only
  double host_bytes_per_s = 0;  // PCIe, one direction
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  double clock_hz = 0;  // at which the rates above hold
  uint64_t l2_bytes = 0;
};

// What one streaming multiprocessor (SM) holds and does, by compute capability (CUDA C++
// Programming Guide, "Technical Specifications" and "Arithmetic Instructions").
struct SmLimits {
  int64_t shared_bytes = 0;  // of all its blocks; each block takes 1 KiB more than it asks
  int64_t shared_bytes_per_block = 0;  // the opt-in maximum
  int threads = 0;
  int blocks = 0;
  int registers = 0;
  double shared_bytes_per_clock = 0;  // 32 banks of 4 bytes
  double exp2_per_clock = 0;
};
SmLimits SmLimitsOf(const Hardware& hardware);

std::span<const Hardware> KnownHardware();

// By product name as nvidia-smi prints it, or a part of it: "NVIDIA H200" and "h200" both match.
// Null when nothing matches.
const Hardware* FindHardware(std::string_view name);

// Work of an op: what it moves through memory and what it computes.
struct Cost {
  double bytes = 0;
  double flops = 0;

  Cost& operator+=(const Cost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  friend Cost operator*(Cost a, double times) { return {a.bytes * times, a.flops * times}; }
};

// The roofline (Williams, Waterman and Patterson, 2009): no machine with these peaks is faster.
double RooflineSeconds(const Cost& cost, double bytes_per_s, double flops_per_s);

}  // namespace fathom::cost
