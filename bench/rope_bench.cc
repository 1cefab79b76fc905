// Three ways to get the angles of RoPE: the table that Fathom uses, sin and cos on the fly, and
// piecewise-linear interpolation. One layer's queries (16 heads x 64 rotated elements) of a prompt
// are rotated in place; the counters give the largest error of cos and sin against f64.
//   rope_bench --benchmark_repetitions=9 --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/cpu/select.h"
#include "ops/rope.h"

namespace fathom::ops {
namespace {

constexpr int kHeads = 16;
constexpr int kDim = 64;
constexpr int kHalf = kDim / 2;
constexpr int64_t kMaxPositions = 4096;

RopeSpec Spec() {
  RopeSpec spec;
  spec.dim = kDim;
  return spec;
}

// Fills cos and sin of one position: [kHalf] each.
class Table {
 public:
  Table() { static_cast<void>(tables_.Add(Spec(), kMaxPositions, kMaxPositions).value()); }
  const float* Row(int64_t position, float* /*scratch*/) const {
    return tables_.data()[0] + position * kDim;
  }
  static double Bound() { return std::ldexp(1, -25); }  // rounding of the stored value

 private:
  RopeTables tables_;
};

class OnTheFly {
 public:
  const float* Row(int64_t position, float* scratch) const {
    for (int i = 0; i < kHalf; ++i) {
      const float angle = static_cast<float>(position) * frequencies_[static_cast<size_t>(i)];
      scratch[i] = std::cos(angle);
      scratch[kHalf + i] = std::sin(angle);
    }
    return scratch;
  }
  static double Bound() { return std::ldexp(1, -24); }  // one unit in the last place of libm

 private:
  std::vector<float> frequencies_ = RopeInverseFrequencies(Spec(), 0);
};

// cos between samples h = 2 pi / kSamples apart: the chord misses it by at most h^2 / 8.
class PiecewiseLinear {
 public:
  PiecewiseLinear() {
    for (int i = 0; i <= kSamples; ++i) {
      samples_.push_back(static_cast<float>(std::cos(2 * std::numbers::pi * i / kSamples)));
    }
  }
  const float* Row(int64_t position, float* scratch) const {
    for (int i = 0; i < kHalf; ++i) {
      const float angle = static_cast<float>(position) * frequencies_[static_cast<size_t>(i)];
      const double turns = double{angle} * (0.5 / std::numbers::pi);
      scratch[i] = At(turns);
      scratch[kHalf + i] = At(turns + 0.75);
    }
    return scratch;
  }
  static double Bound() {
    const double h = 2 * std::numbers::pi / kSamples;
    return h * h / 8 + std::ldexp(1, -22);  // and the rounding of samples and interpolation
  }

 private:
  static constexpr int kSamples = 1024;
  float At(double turns) const {
    const auto at =
        static_cast<float>((turns - static_cast<double>(static_cast<int64_t>(turns))) * kSamples);
    const int i = static_cast<int>(at);
    const float* s = samples_.data() + i;
    return s[0] + (s[1] - s[0]) * (at - static_cast<float>(i));
  }
  std::vector<float> frequencies_ = RopeInverseFrequencies(Spec(), 0);
  std::vector<float> samples_;
};

template <class Angles>
void BM_Rope(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const kernels::cpu::KernelTable& cpu = *kernels::cpu::Select("").value();
  const Angles angles;
  std::vector<float> q(static_cast<size_t>(tokens) * kHeads * kDim, 1.0F);
  float scratch[kDim];
  for (auto _ : state) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* row = angles.Row(t, scratch);
      for (int h = 0; h < kHeads; ++h) {
        float* x = q.data() + (t * kHeads + h) * kDim;
        cpu.rope({x, row, row + kHalf, x, kDim, kernels::RopeStyle::kHalves});
      }
    }
    benchmark::ClobberMemory();
  }
  const std::vector<float> frequencies = RopeInverseFrequencies(Spec(), 0);
  double worst = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = angles.Row(t, scratch);
    for (int i = 0; i < kHalf; ++i) {
      const float angle = static_cast<float>(t) * frequencies[static_cast<size_t>(i)];
      worst = std::max({worst, std::abs(row[i] - std::cos(double{angle})),
                        std::abs(row[kHalf + i] - std::sin(double{angle}))});
    }
  }
  if (worst > Angles::Bound()) state.SkipWithError("the error exceeds its bound");
  state.counters["max_error"] = worst;
  state.counters["bound"] = Angles::Bound();
  state.counters["ns_per_token"] = benchmark::Counter(
      static_cast<double>(tokens) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_TEMPLATE(BM_Rope, Table)->Arg(512)->Arg(2048)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(BM_Rope, OnTheFly)->Arg(512)->Arg(2048)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(BM_Rope, PiecewiseLinear)->Arg(512)->Arg(2048)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom::ops

BENCHMARK_MAIN();
