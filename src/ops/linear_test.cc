#include "ops/linear.h"

#include <limits>

#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::linear {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::RigOptions;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A stored weight and the values it stands for.
struct Stored {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::vector<double> values;  // [n, k]
  WeightSource source;
};

Stored Store(DType dtype, int64_t n, int64_t k, uint32_t seed, bool scaled = false) {
  Stored s;
  const auto f = Random(static_cast<size_t>(n * k), seed);
  s.bytes.resize(f.size() * static_cast<size_t>(SizeOf(dtype)));
  const int64_t scale_cols = (k + 127) / 128;
  if (scaled) {
    for (int64_t i = 0; i < (n + 127) / 128 * scale_cols; ++i) {
      s.scales.push_back(0.25F + 0.1F * static_cast<float>(i));
    }
  }
  for (size_t i = 0; i < f.size(); ++i) {
    double value = 0;
    switch (dtype) {
      case DType::kF32:
        std::memcpy(&s.bytes[i * 4], &f[i], 4);
        value = f[i];
        break;
      case DType::kBF16: {
        const uint16_t h = F32ToBf16(f[i]);
        std::memcpy(&s.bytes[i * 2], &h, 2);
        value = Bf16ToF32(h);
        break;
      }
      case DType::kF16: {
        const uint16_t h = F32ToF16(f[i]);
        std::memcpy(&s.bytes[i * 2], &h, 2);
        value = F16ToF32(h);
        break;
      }
      default: {
        const uint8_t q = F32ToF8E4M3(f[i]);
        s.bytes[i] = std::byte{q};
        value = F8E4M3ToF32(q);
      }
    }
    if (scaled) {
      const auto row = static_cast<int64_t>(i) / k;
      const auto col = static_cast<int64_t>(i) % k;
      value *= s.scales[static_cast<size_t>(row / 128 * scale_cols + col / 128)];
    }
    s.values.push_back(value);
  }
  s.source.weight = TensorView::Contiguous(s.bytes.data(), dtype, {n, k});
  if (scaled) s.source.scales = BlockScales{s.scales.data()};
  return s;
}

std::vector<float> RunLinear(Rig& rig, const PackedWeight& w, const std::vector<float>& x,
                             int64_t rows, const std::vector<float>& bias = {}) {
  void* in = rig.Upload(x);
  void* out = rig.Upload(std::vector<float>(static_cast<size_t>(rows * w.rows()), kNan));
  Args args;
  args.input = TensorView::Contiguous(in, DType::kF32, {rows, w.cols()});
  args.output = TensorView::Contiguous(out, DType::kF32, {rows, w.rows()});
  args.bias = bias.empty() ? nullptr : bias.data();
  const Plan plan = MakePlan(w, rows);
  const Arena& arena = rig.context().arena;
  const size_t peak = arena.peak();
  EXPECT_TRUE(linear::Run(plan, w, args, rig.context()));
  EXPECT_LE(arena.peak(), std::max(peak, arena.Mark() + plan.workspace_bytes));
  return rig.Download<float>(out, static_cast<size_t>(rows * w.rows()));
}

std::vector<double> Exact(const Stored& w, int64_t n, int64_t k, const std::vector<float>& x,
                          int64_t rows) {
  std::vector<double> y;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += x[static_cast<size_t>(i * k + l)] * w.values[static_cast<size_t>(j * k + l)];
      }
      y.push_back(sum);
    }
  }
  return y;
}

struct Case {
  DType dtype;
  Precision precision;
  bool scaled;
};

TEST(Linear, EveryStoredTypeAndPrecisionOnEveryIsa) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    Rig rig({.threads = 2, .isa = isa});
    for (const Case& c : {Case{DType::kF32, Precision::kF32, false},
                          {DType::kBF16, Precision::kF32, false},
                          {DType::kF16, Precision::kF32, false},
                          {DType::kF8E4M3, Precision::kF32, true},
                          {DType::kF32, Precision::kBF16, false},
                          {DType::kBF16, Precision::kBF16, false},
                          {DType::kF16, Precision::kBF16, false},
                          {DType::kF8E4M3, Precision::kBF16, true},
                          {DType::kF8E4M3, Precision::kBF16, false}}) {
      for (const auto& [n, k, rows] : {std::tuple{576, 200, 1}, {64, 128, 3}, {130, 77, 19}}) {
        const Stored w = Store(c.dtype, n, k, 1, c.scaled);
        const auto packed = Pack(w.source, c.precision, rig.device(), rig.cpu());
        ASSERT_TRUE(packed) << packed.error().message;
        EXPECT_EQ(packed->Bytes(), PackedBytes(c.dtype, n, k, c.precision));
        const auto x = Random(static_cast<size_t>(rows * k), 2);
        const double tolerance =
            c.precision == Precision::kF32 ? tolerances::kF32Kernel : tolerances::kBf16Rounding;
        EXPECT_LE(RelativeError(RunLinear(rig, *packed, x, rows), Exact(w, n, k, x, rows)),
                  tolerance)
            << isa << " " << NameOf(c.dtype) << " " << n << "x" << k;
      }
    }
  }
}

TEST(Linear, PartsLieBelowEachOtherAndMayDifferInType) {
  Rig rig;
  const Stored a = Store(DType::kBF16, 50, 96, 1);
  const Stored b = Store(DType::kF8E4M3, 40, 96, 2, true);
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    const WeightSource parts[] = {a.source, b.source};
    const auto packed = Pack(parts, precision, rig.device(), rig.cpu());
    ASSERT_TRUE(packed);
    EXPECT_EQ(packed->rows(), 90);
    const auto x = Random(size_t{2} * 96, 3);
    const auto y = RunLinear(rig, *packed, x, 2);
    const auto ya = Exact(a, 50, 96, x, 2);
    const auto yb = Exact(b, 40, 96, x, 2);
    std::vector<double> both;
    for (size_t row = 0; row < 2; ++row) {
      both.insert(both.end(), ya.begin() + static_cast<int64_t>(row) * 50,
                  ya.begin() + static_cast<int64_t>(row + 1) * 50);
      both.insert(both.end(), yb.begin() + static_cast<int64_t>(row) * 40,
                  yb.begin() + static_cast<int64_t>(row + 1) * 40);
    }
    EXPECT_LE(RelativeError(y, both),
              precision == Precision::kF32 ? tolerances::kF32Kernel : tolerances::kBf16Rounding);
  }
}

TEST(Linear, TransposedSourceIsTheSameWeight) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    Rig rig({.isa = isa});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      constexpr int64_t kN = 100, kK = 37;
      const Stored w = Store(dtype, kN, kK, 4);
      std::vector<std::byte> turned(w.bytes.size());
      const auto item = static_cast<size_t>(SizeOf(dtype));
      for (size_t i = 0; i < kN; ++i) {
        for (size_t j = 0; j < kK; ++j) {
          std::memcpy(&turned[(j * kN + i) * item], &w.bytes[(i * kK + j) * item], item);
        }
      }
      WeightSource source;
      source.weight = TensorView::Contiguous(turned.data(), dtype, {kK, kN});
      source.transposed = true;
      const auto x = Random(size_t{5} * kK, 5);
      for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
        const auto straight = Pack(w.source, precision, rig.device(), rig.cpu());
        const auto transposed = Pack(source, precision, rig.device(), rig.cpu());
        ASSERT_TRUE(straight && transposed);
        EXPECT_TRUE(SameBits(RunLinear(rig, *straight, x, 5), RunLinear(rig, *transposed, x, 5)));
      }
    }
  }
}

// A row's bits are the same alone, in any batch, at any place, with any number of threads, and on a
// device that runs late.
TEST(Linear, RowsDoNotDependOnTheBatch) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      constexpr int64_t kN = 200, kK = 700;
      const Stored w = Store(DType::kBF16, kN, kK, 6);
      const auto x = Random(size_t{150} * kK, 7);
      Rig one({.isa = isa});
      const auto packed = Pack(w.source, precision, one.device(), one.cpu());
      ASSERT_TRUE(packed);
      const auto bias = Random(kN, 8);
      const auto all = RunLinear(one, *packed, x, 150, bias);
      Rig three({.threads = 3, .isa = isa});
      EXPECT_TRUE(SameBits(all, RunLinear(three, *packed, x, 150, bias)));
      Rig late({.deferred = true, .threads = 2, .isa = isa});
      EXPECT_TRUE(SameBits(all, RunLinear(late, *packed, x, 150, bias)));
      for (const int64_t row : {0, 77, 149}) {
        const std::vector<float> alone(x.begin() + row * kK, x.begin() + (row + 1) * kK);
        EXPECT_TRUE(
            SameBits(std::vector<float>(all.begin() + row * kN, all.begin() + (row + 1) * kN),
                     RunLinear(one, *packed, alone, 1, bias)));
      }
    }
  }
}

TEST(Linear, LiveRowsAndInputRowsAreReadWhenTheWorkRuns) {
  const Stored w = Store(DType::kBF16, 70, 64, 9);
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Rig rig({.deferred = true, .threads = 2});
    const auto packed = Pack(w.source, precision, rig.device(), rig.cpu());
    ASSERT_TRUE(packed);
    auto x = Random(size_t{4} * 64, 10);
    const auto exact = Exact(w, 70, 64, x, 4);
    for (size_t i = 64; i < 128; ++i) x[i] = kNan;  // a row that nobody asks for
    Args args;
    args.input = TensorView::Contiguous(rig.Upload(x), DType::kF32, {4, 64});
    args.output =
        TensorView::Contiguous(rig.Upload(std::vector<float>(4 * 70, kNan)), DType::kF32, {4, 70});
    args.live_rows = rig.Upload(std::vector<int32_t>{3});
    args.input_rows = rig.Upload(std::vector<int32_t>{3, 0, 2, 1 << 30});
    ASSERT_TRUE(linear::Run(MakePlan(*packed, 4), *packed, args, rig.context()));
    const auto y = rig.Download<float>(args.output.data, 4 * 70);
    std::vector<double> expected;
    for (const int64_t from : {3, 0, 2}) {
      expected.insert(expected.end(), exact.begin() + from * 70, exact.begin() + (from + 1) * 70);
    }
    EXPECT_LE(RelativeError(std::vector<float>(y.begin(), y.begin() + 210), expected),
              tolerances::kBf16Rounding);
    for (size_t j = 0; j < 70; ++j) EXPECT_TRUE(std::isnan(y[210 + j])) << "a dead row was written";
  }
}

TEST(Linear, RefusesWhatItCannotPack) {
  Rig rig;
  const Stored a = Store(DType::kBF16, 8, 8, 1);
  const Stored b = Store(DType::kBF16, 8, 9, 1);
  const WeightSource parts[] = {a.source, b.source};
  const auto different = Pack(parts, Precision::kF32, rig.device(), rig.cpu());
  ASSERT_FALSE(different);
  EXPECT_NE(different.error().message.find("8 input features and one with 9"), std::string::npos)
      << different.error().message;
  WeightSource integers = a.source;
  integers.weight.dtype = DType::kI32;
  EXPECT_FALSE(Pack(integers, Precision::kF32, rig.device(), rig.cpu()));
}

}  // namespace
}  // namespace fathom::ops::linear
