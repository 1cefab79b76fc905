// Every kernel of every ISA this machine runs, against f64 references on random inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/select.h"
#include "tests/tolerances.h"

namespace fathom::kernels::cpu {
namespace {

constexpr int kColumns = kPanelColumns;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Aligned {
  explicit Aligned(size_t bytes) : storage(bytes + 64) {}
  template <class T>
  T* As() {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64);
  }
  std::vector<std::byte> storage;
};

std::vector<float> RandomFloats(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = F32ToBf16(values[i]);
  return out;
}

std::vector<const KernelTable*> RunnableTables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : AllTables()) {
    if (Supported(*table)) tables.push_back(table);
  }
  return tables;
}

class Kernels : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& t() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Isa, Kernels, testing::ValuesIn(RunnableTables()),
                         [](const auto& info) { return std::string(info.param->isa); });

TEST(Select, PicksTheBestAndRefusesWhatItCannotRun) {
  const auto best = Select("");
  ASSERT_TRUE(best);
  EXPECT_EQ(*best, RunnableTables().front());
  const auto bogus = Select("avx1024");
  ASSERT_FALSE(bogus);
  EXPECT_EQ(bogus.error().code, Code::kInvalidArgument);
  EXPECT_THAT(bogus.error().message, testing::HasSubstr("scalar"));
  for (const KernelTable* table : AllTables()) {
    const auto forced = Select(table->isa);
    EXPECT_EQ(forced.has_value(), Supported(*table)) << table->isa;
    if (forced) {
      EXPECT_STREQ((*forced)->isa, table->isa);
    } else {
      EXPECT_EQ(forced.error().code, Code::kUnsupported);
    }
  }
}

#ifdef FATHOM_FLAGS_avx2
TEST(Select, AsksForEveryFlagThatAFileIsCompiledWith) {
  const std::pair<std::string_view, std::string> compiled[] = {
      {"scalar", FATHOM_FLAGS_scalar},
      {"avx2", FATHOM_FLAGS_avx2},
      {"avx512", FATHOM_FLAGS_avx512},
      {"avx512bf16", FATHOM_FLAGS_avx512bf16}};
  for (const KernelTable* table : AllTables()) {
    std::vector<std::string> asked;
    for (const std::string_view extension : Extensions(*table)) {
      asked.push_back("-m" + std::string(extension));
    }
    for (const auto& [isa, flags] : compiled) {
      if (isa != table->isa) continue;
      std::vector<std::string> given;
      std::istringstream words(flags);
      for (std::string word; words >> word;) {
        if (word.rfind("-mprefer-", 0) != 0) given.push_back(word);
      }
      EXPECT_EQ(asked, given) << isa;
    }
  }
}
#endif

enum class Mac { kF32, kWide, kDot };

struct Case {
  Mac mac;
  int m, n;
  int64_t k;
};

// Rows of W [n][k] packed as columns, multiplied, against f64 over the very operands.
TEST_P(Kernels, GemmMatchesF64AndItsRowsDoNotDependOnTheBatch) {
  for (const Mac mac : {Mac::kF32, Mac::kWide, Mac::kDot}) {
    for (const auto& [m, n, k] : {std::tuple{1, 32, 64},
                                  {1, 1, 1},
                                  {2, 17, 33},
                                  {6, 32, 300},
                                  {7, 31, 257},
                                  {13, 20, 576},
                                  {32, 32, 130},
                                  {61, 5, 1000},
                                  {101, 32, 700},
                                  // More than one slice of the panel.
                                  {13, 20, 2049},
                                  {26, 5, 2050},
                                  {101, 32, 4097}}) {
      const auto w = RandomFloats(static_cast<size_t>(n) * k, 1);
      auto x = RandomFloats(static_cast<size_t>(m) * k, 2);
      const auto w16 = ToBf16(w);
      const auto x16 = ToBf16(x);
      const int64_t padded = (k + 1) / 2 * 2;
      std::vector<uint16_t> a16(static_cast<size_t>(m * padded));
      for (int i = 0; i < m; ++i) {
        t().round_row(x.data() + i * k, a16.data() + i * padded, k);
        for (int64_t j = 0; j < k; ++j) {
          ASSERT_EQ(a16[static_cast<size_t>(i * padded + j)], x16[static_cast<size_t>(i * k + j)]);
        }
      }
      std::vector<const void*> rows;
      for (int i = 0; i < n; ++i) {
        rows.push_back(mac == Mac::kF32 ? static_cast<const void*>(w.data() + i * k)
                                        : w16.data() + i * k);
      }
      Aligned panel(static_cast<size_t>(padded) * kColumns * 4);
      const PackParams pack{rows.data(), n, k, panel.As<void>()};
      (mac == Mac::kF32 ? t().pack_columns_f32_f32 : t().pack_columns_bf16_bf16)(pack);

      const auto bias = RandomFloats(static_cast<size_t>(n), 3);
      std::vector<float> c(static_cast<size_t>(m) * 70, kNan);
      GemmParams p;
      p.a = mac == Mac::kDot ? static_cast<const void*>(a16.data()) : x.data();
      p.a_stride = mac == Mac::kDot ? padded : k;
      p.b = panel.As<void>();
      p.c = c.data();
      p.c_stride = 70;
      p.m = m;
      p.n = n;
      p.k = k;
      p.bias = bias.data();
      p.next_b = p.b;  // a hint: no bit depends on it
      const GemmFn gemm = mac == Mac::kF32    ? t().gemm_f32_f32
                          : mac == Mac::kWide ? t().gemm_f32_bf16
                                              : t().gemm_bf16_bf16;
      gemm(p);
      double worst = 0, largest = 0;
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) {
            const auto xi = static_cast<size_t>(i * k + l);
            const auto wi = static_cast<size_t>(j * k + l);
            sum += (mac == Mac::kDot ? double{Bf16ToF32(x16[xi])} : double{x[xi]}) *
                   (mac == Mac::kF32 ? double{w[wi]} : double{Bf16ToF32(w16[wi])});
          }
          sum += bias[static_cast<size_t>(j)];
          worst = std::max(worst, std::abs(sum - c[static_cast<size_t>(i * 70 + j)]));
          largest = std::max(largest, std::abs(sum));
        }
        for (int j = n; j < 70; ++j) {
          ASSERT_TRUE(std::isnan(c[static_cast<size_t>(i * 70 + j)])) << "wrote past n";
        }
      }
      EXPECT_LE(worst, tolerances::kBf16Kernel * largest) << m << "x" << n << "x" << k;

      // One row alone, and all rows reversed through a_rows, give the same bits.
      std::vector<int32_t> reversed;
      for (int i = m - 1; i >= 0; --i) reversed.push_back(i);
      std::vector<float> again(c.size(), kNan);
      p.c = again.data();
      p.a_rows = reversed.data();
      gemm(p);
      for (int i = 0; i < m; ++i) {
        ASSERT_EQ(0, std::memcmp(&c[static_cast<size_t>(i * 70)],
                                 &again[static_cast<size_t>((m - 1 - i) * 70)],
                                 static_cast<size_t>(n) * 4));
        std::vector<float> alone(70, kNan);
        const int32_t row = i;
        p.a_rows = &row;
        p.m = 1;
        p.c = alone.data();
        gemm(p);
        p.m = m;
        p.a_rows = reversed.data();
        p.c = again.data();
        ASSERT_EQ(0, std::memcmp(&c[static_cast<size_t>(i * 70)], alone.data(),
                                 static_cast<size_t>(n) * 4));
      }

      // Half the k, then the other half on top of it: the same chain when the cut is even.
      const int64_t half = k / 4 * 2;
      if (half > 0) {
        p.a_rows = nullptr;
        p.bias = nullptr;
        p.k = half;
        gemm(p);
        p.accumulate = true;
        p.k = k - half;
        p.bias = bias.data();
        const int64_t item = mac == Mac::kDot ? 2 : 4;
        p.a = static_cast<const char*>(p.a) + half * item;
        p.b = panel.As<char>() + half * kColumns * (mac == Mac::kF32 ? 4 : 2);
        gemm(p);
        for (int i = 0; i < m; ++i) {
          ASSERT_EQ(
              0, std::memcmp(&c[static_cast<size_t>(i * 70)], &again[static_cast<size_t>(i * 70)],
                             static_cast<size_t>(n) * 4));
        }
      }
    }
  }
}

TEST_P(Kernels, PackColumnsAndRowsPlaceEveryElement) {
  for (const auto& shape :
       {std::pair{32, 32}, {1, 1}, {17, 33}, {31, 130}, {5, 16}, {130, 31}, {77, 32}, {9, 100}}) {
    const int num_rows = shape.first;
    const int n = shape.second;
    const auto f = RandomFloats(static_cast<size_t>(num_rows) * n, 4);
    const auto h = ToBf16(f);
    for (const bool source16 : {false, true}) {
      for (const bool panel16 : {false, true}) {
        if (source16 && !panel16) continue;
        std::vector<const void*> rows;
        for (int i = 0; i < num_rows; ++i) {
          rows.push_back(source16 ? static_cast<const void*>(h.data() + i * n) : f.data() + i * n);
        }
        if (num_rows > 3) rows[2] = nullptr;
        const auto expected = [&](int row, int64_t e) -> float {
          if (row >= num_rows || e >= n || rows[static_cast<size_t>(row)] == nullptr) return 0;
          const auto at = static_cast<size_t>(row * n + e);
          return panel16 ? Bf16ToF32(h[at]) : f[at];
        };
        Aligned panel(static_cast<size_t>((n + 64) * (num_rows + 2)) * 4 +
                      static_cast<size_t>(n + 2) * kColumns * 4);
        PackParams p{rows.data(), num_rows, n, panel.As<void>()};
        p.ahead[1] = {rows.data(), std::min(num_rows, 2)};  // a hint: no bit depends on it
        const auto at = [&](int64_t k, int column) {
          return panel16 ? Bf16ToF32(panel.As<uint16_t>()[(k / 2 * kColumns + column) * 2 + k % 2])
                         : panel.As<float>()[k * kColumns + column];
        };
        const auto pad = [&](int64_t k) { return panel16 ? (k + 1) / 2 * 2 : k; };
        const auto poison = [&](int64_t k) {
          std::memset(panel.As<void>(), 0xff, static_cast<size_t>(pad(k) * kColumns) * 2);
        };
        if (num_rows <= kColumns) {
          poison(n);
          (panel16 ? source16 ? t().pack_columns_bf16_bf16 : t().pack_columns_f32_bf16
                   : t().pack_columns_f32_f32)(p);
          for (int64_t k = 0; k < pad(n); ++k) {
            for (int c = 0; c < kColumns; ++c) {
              ASSERT_EQ(at(k, c), expected(c, k)) << k << " " << c;
            }
          }
        }
        // As rows: each 32 elements make a panel of their own.
        const int64_t panels = (n + kColumns - 1) / kColumns;
        const int64_t elements = pad(num_rows) * kColumns;
        std::memset(panel.As<void>(), 0xff, static_cast<size_t>(panels * elements) * 2);
        p.panel_stride = elements * (panel16 ? 2 : 4);
        (panel16 ? source16 ? t().pack_rows_bf16_bf16 : t().pack_rows_f32_bf16
                 : t().pack_rows_f32_f32)(p);
        for (int64_t k = 0; k < pad(num_rows); ++k) {
          for (int64_t c = 0; c < panels * kColumns; ++c) {
            const int64_t panel_k = c / kColumns * pad(num_rows) + k;  // panels end to end
            ASSERT_EQ(at(panel_k, static_cast<int>(c % kColumns)), expected(static_cast<int>(k), c))
                << k << " " << c;
          }
        }
      }
    }
  }
}

TEST_P(Kernels, RoundRowIsNearestEven) {
  const std::vector<float> special = {0.0F,
                                      -0.0F,
                                      1.0F,
                                      1.00390625F,  // ties to even, down
                                      1.01171875F,  // ties to even, up
                                      3.4e38F,
                                      std::numeric_limits<float>::infinity(),
                                      -std::numeric_limits<float>::infinity(),
                                      kNan};
  std::vector<uint16_t> out(special.size() + 1);
  t().round_row(special.data(), out.data(), static_cast<int64_t>(special.size()));
  for (size_t i = 0; i < special.size(); ++i) {
    if (std::isnan(special[i])) {
      EXPECT_TRUE(std::isnan(Bf16ToF32(out[i])));
    } else {
      EXPECT_EQ(out[i], F32ToBf16(special[i])) << special[i];
    }
  }
  EXPECT_EQ(out.back(), 0) << "odd rows are padded with a zero";
  std::vector<float> wide(special.size());
  t().widen_row(out.data(), wide.data(), static_cast<int64_t>(special.size()));
  for (size_t i = 0; i + 1 < special.size(); ++i) EXPECT_EQ(wide[i], Bf16ToF32(out[i]));
}

TEST_P(Kernels, ExpIsAccurate) {
  std::vector<float> x;
  for (float v = -87.3F; v < 88.2F; v += 0.0137F) x.push_back(v);
  x.insert(x.end(),
           {0.0F, -0.0F, 1e-30F, -100.0F, -1e30F, -std::numeric_limits<float>::infinity()});
  std::vector<float> y(x.size());
  t().exp_row(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = x[i] < -87.33F ? 0 : std::exp(double{x[i]});
    const double ulp = exact == 0 ? 0 : std::ldexp(1.0, std::ilogb(exact) - 23);
    EXPECT_LE(std::abs(y[i] - exact), tolerances::kExpUlp * ulp) << x[i];
  }
  float nan = kNan;
  t().exp_row(&nan, &nan, 1);
  EXPECT_TRUE(std::isnan(nan));
}

TEST_P(Kernels, RmsNormAddsTheResidual) {
  for (const int64_t n : {1, 7, 64, 1000}) {
    const auto x = RandomFloats(static_cast<size_t>(n), 5, 3);
    const auto r = RandomFloats(static_cast<size_t>(n), 6);
    const auto w = RandomFloats(static_cast<size_t>(n), 7);
    std::vector<float> input = x;
    std::vector<float> out(static_cast<size_t>(n));
    t().rms_norm({input.data(), r.data(), w.data(), out.data(), n, 1e-6F});
    double mean = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(input[i], x[i] + r[i]);
      mean += double{input[i]} * input[i] / static_cast<double>(n);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = input[i] / std::sqrt(mean + 1e-6) * w[i];
      EXPECT_NEAR(out[i], exact, tolerances::kF32Kernel * (1 + std::abs(exact)));
    }
  }
}

TEST_P(Kernels, RopeRotatesPairs) {
  constexpr int kDim = 20;
  const auto x = RandomFloats(kDim, 8);
  std::vector<float> c, s;
  for (int i = 0; i < kDim / 2; ++i) {
    c.push_back(std::cos(0.3F * static_cast<float>(i)));
    s.push_back(std::sin(0.3F * static_cast<float>(i)));
  }
  for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
    std::vector<float> y = x;  // in place
    t().rope({y.data(), c.data(), s.data(), y.data(), kDim, style});
    for (size_t i = 0; i < kDim / 2; ++i) {
      const bool halves = style == RopeStyle::kHalves;
      const size_t a = halves ? i : 2 * i;
      const size_t b = halves ? kDim / 2 + i : 2 * i + 1;
      EXPECT_NEAR(y[a], x[a] * c[i] - x[b] * s[i], 1e-6);
      EXPECT_NEAR(y[b], x[b] * c[i] + x[a] * s[i], 1e-6);
    }
  }
}

TEST_P(Kernels, SiluMulOfRows) {
  constexpr size_t kRows = 3, kStride = 350;
  const auto g = RandomFloats(kRows * kStride, 9, 20);
  const auto u = RandomFloats(kRows * kStride, 10);
  for (const size_t n : {1, 15, 32, 333}) {
    std::vector<float> out(kRows * kStride, -7.0F);
    std::vector<uint16_t> rounded(kRows * kStride, 0x7777);
    kernels::SiluMulParams p{.gate = g.data(),
                             .up = u.data(),
                             .input_stride = kStride,
                             .output_f32 = out.data(),
                             .output_stride = kStride,
                             .rows = kRows,
                             .dim = static_cast<int64_t>(n)};
    t().silu_mul(p);
    p.output_f32 = nullptr;
    p.output_bf16 = rounded.data();
    t().silu_mul(p);
    for (size_t row = 0; row < kRows; ++row) {
      const size_t at = row * kStride;
      for (size_t i = at; i < at + n; ++i) {
        const double exact = g[i] / (1 + std::exp(-double{g[i]})) * u[i];
        EXPECT_NEAR(out[i], exact, tolerances::kF32Kernel * (1e-3 + std::abs(exact)));
        EXPECT_EQ(rounded[i], F32ToBf16(out[i]));
      }
      EXPECT_EQ(out[at + n], -7.0F) << "wrote past a row";
      EXPECT_EQ(rounded[at + n], n % 2 != 0 ? 0 : 0x7777);
      EXPECT_EQ(rounded[at + n + 1], 0x7777) << "wrote past a row";
    }
  }
}

TEST_P(Kernels, Adds) {
  for (const int64_t n : {1, 15, 333}) {
    const auto g = RandomFloats(static_cast<size_t>(n), 9, 20);
    const auto u = RandomFloats(static_cast<size_t>(n), 10);
    auto sum = g;
    t().add_row(sum.data(), u.data(), n);
    auto scaled = g;
    t().add_scaled_row(scaled.data(), u.data(), 0.5F, n);
    std::vector<float> quotient(g.size());
    t().divide_row(g.data(), 3.0F, quotient.data(), n);
    for (size_t i = 0; i < g.size(); ++i) {
      EXPECT_EQ(sum[i], g[i] + u[i]);
      EXPECT_NEAR(scaled[i], double{g[i]} + 0.5 * u[i], 1e-5);
      EXPECT_EQ(quotient[i], g[i] / 3.0F);
    }
  }
}

TEST_P(Kernels, SoftmaxSpansFoldToTheWholeSoftmax) {
  constexpr int kSpans = 3, kDim = 21;
  const int lengths[kSpans] = {256, 256, 77};
  const auto v = RandomFloats(size_t{3} * 256 * kDim, 12);
  const auto scores = RandomFloats(size_t{3} * 256, 11, 8);
  float m = -std::numeric_limits<float>::infinity(), l = 0;
  std::vector<float> o(kDim, 0.0F);
  double exact_l = 0;
  std::vector<double> exact(kDim, 0.0);
  double max = -1e30;
  for (int i = 0; i < 256 * 2 + 77; ++i) max = std::max(max, 0.7 * scores[static_cast<size_t>(i)]);
  for (int span = 0; span < kSpans; ++span) {
    const int n = lengths[span];
    const int padded = (n + 1) / 2 * 2;
    std::vector<float> p(256, kNan);
    std::vector<uint16_t> p16(256, 0xffff);
    std::vector<float> row(scores.begin() + span * 256, scores.begin() + span * 256 + n);
    float sm = 0, sl = 0, sm16 = 0, sl16 = 0;
    t().softmax_span({row.data(), n, padded, 0.7F, p.data(), nullptr, &sm, &sl});
    t().softmax_span({row.data(), n, padded, 0.7F, nullptr, p16.data(), &sm16, &sl16});
    EXPECT_EQ(sm, sm16);
    EXPECT_EQ(sl, sl16);
    std::vector<float> so(kDim, 0.0F);
    for (int i = 0; i < padded; ++i) {
      const auto at = static_cast<size_t>(span * 256 + i);
      const float pi = p[static_cast<size_t>(i)];
      EXPECT_EQ(p16[static_cast<size_t>(i)], F32ToBf16(pi));
      if (i >= n) {
        EXPECT_EQ(pi, 0.0F);
        continue;
      }
      const double e = std::exp(0.7 * scores[at] - max);
      exact_l += e;
      for (int d = 0; d < kDim; ++d) {
        const auto vd = at * kDim + static_cast<size_t>(d);
        so[static_cast<size_t>(d)] += pi * v[vd];
        exact[static_cast<size_t>(d)] += e * v[vd];
      }
    }
    if (padded < 256) {
      EXPECT_TRUE(std::isnan(p[static_cast<size_t>(padded)])) << "wrote past the padding";
    }
    t().fold_span({&m, &l, o.data(), sm, sl, so.data(), kDim});
  }
  for (size_t d = 0; d < kDim; ++d) {
    EXPECT_NEAR(o[d] / l, exact[d] / exact_l, tolerances::kF32Attention);
  }
}

}  // namespace
}  // namespace fathom::kernels::cpu
