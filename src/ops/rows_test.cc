// Ops that work token by token: embed, norm and the cache writers.
#include <limits>
#include <numeric>

#include "ops/embed.h"
#include "ops/kv_cache.h"
#include "ops/norm.h"
#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorView Matrix(void* data, int64_t rows, int64_t cols) {
  return TensorView::Contiguous(data, DType::kF32, {rows, cols});
}

TEST(Embed, ReadsIdsAndIndirectionsOfEveryType) {
  constexpr int64_t kVocab = 11, kHidden = 19;
  auto f32 = Random(kVocab * kHidden, 1);
  auto bf16 = ops::testing::ToBf16(f32);
  std::vector<uint16_t> f16;
  for (const float v : f32) f16.push_back(F32ToF16(v));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Rig rig({.deferred = true, .threads = 2});
    embed::Args args;
    void* data = dtype == DType::kF32    ? static_cast<void*>(f32.data())
                 : dtype == DType::kBF16 ? bf16.data()
                                         : f16.data();
    args.table = TensorView::Contiguous(data, dtype, {kVocab, kHidden});
    args.output = Matrix(rig.Upload(std::vector<float>(4 * kHidden, kNan)), 4, kHidden);
    StepInputs inputs;
    inputs.live_counts = rig.Upload(std::vector<int32_t>{3, 1, 2});
    inputs.token_ids = rig.Upload(std::vector<int32_t>{10, -2, 0, 1 << 30});
    inputs.sampled = rig.Upload(std::vector<int32_t>{1 << 30, 7});
    inputs.logits_tokens = rig.Upload(std::vector<int32_t>{2, 0, 1 << 30});
    ASSERT_TRUE(embed::Run(args, inputs, rig.context()));
    embed::GatherArgs gather;
    gather.input = args.output;
    gather.output = Matrix(rig.Upload(std::vector<float>(3 * kHidden, kNan)), 3, kHidden);
    ASSERT_TRUE(embed::GatherLogitsRows(gather, inputs, rig.context()));
    const auto rows = rig.Download<float>(args.output.data, 4 * kHidden);
    const auto picked = rig.Download<float>(gather.output.data, 3 * kHidden);
    const size_t ids[] = {10, 7, 0};
    for (size_t t = 0; t < 3; ++t) {
      for (size_t i = 0; i < kHidden; ++i) {
        const size_t at = ids[t] * kHidden + i;
        const float expected = dtype == DType::kF32    ? f32[at]
                               : dtype == DType::kBF16 ? Bf16ToF32(bf16[at])
                                                       : F16ToF32(f16[at]);
        EXPECT_EQ(rows[t * kHidden + i], expected);
      }
    }
    EXPECT_TRUE(std::isnan(rows[3 * kHidden]));
    for (size_t i = 0; i < kHidden; ++i) {
      EXPECT_EQ(picked[i], rows[2 * kHidden + i]);
      EXPECT_EQ(picked[kHidden + i], rows[i]);
      EXPECT_TRUE(std::isnan(picked[2 * kHidden + i]));
    }
  }
}

TEST(Norm, StridedRowsResidualAndLiveRows) {
  constexpr int64_t kRows = 5, kDim = 40, kStride = 48;
  const auto x = Random(kRows * kStride, 2, 2);
  const auto r = Random(kRows * kDim, 3);
  const auto weight = Random(kDim, 4);
  std::vector<float> results[2];
  for (const bool deferred : {false, true}) {
    Rig rig({.deferred = deferred, .threads = 2});
    norm::RmsArgs args;
    args.input = Matrix(rig.Upload(x), kRows, kDim);
    args.input.stride[0] = kStride;
    args.residual = Matrix(rig.Upload(r), kRows, kDim);
    args.output = Matrix(rig.Upload(std::vector<float>(kRows * kDim, kNan)), kRows, kDim);
    args.weight = weight.data();
    args.live_rows = rig.Upload(std::vector<int32_t>{4});
    ASSERT_TRUE(norm::RmsNorm(args, rig.context()));
    ASSERT_TRUE(norm::Add({args.output, args.residual, args.live_rows}, rig.context()));
    results[deferred ? 1 : 0] = rig.Download<float>(args.output.data, kRows * kDim);
    const auto after = rig.Download<float>(args.input.data, kRows * kStride);
    std::vector<double> exact;
    for (size_t row = 0; row < 4; ++row) {
      double mean = 0;
      std::vector<double> sum;
      for (size_t i = 0; i < kDim; ++i) {
        sum.push_back(double{x[row * kStride + i]} + r[row * kDim + i]);
        mean += sum[i] * sum[i] / kDim;
        EXPECT_EQ(after[row * kStride + i], x[row * kStride + i] + r[row * kDim + i]);
      }
      for (size_t i = 0; i < kDim; ++i) {
        exact.push_back(sum[i] / std::sqrt(mean + 1e-6) * weight[i] + r[row * kDim + i]);
      }
      EXPECT_EQ(after[row * kStride + kDim], x[row * kStride + kDim]) << "wrote past a row";
    }
    const auto& y = results[deferred ? 1 : 0];
    EXPECT_LE(RelativeError(std::vector<float>(y.begin(), y.begin() + 4 * kDim), exact),
              tolerances::kF32Kernel);
    EXPECT_TRUE(std::isnan(y[4 * kDim]));
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
}

TEST(Norm, SiluMulTakesGateThenUp) {
  constexpr int64_t kRows = 3, kDim = 33;
  const auto x = Random(kRows * 2 * kDim, 5, 4);
  Rig rig({.deferred = true, .threads = 2});
  norm::SiluMulArgs args;
  args.gate_up = Matrix(rig.Upload(x), kRows, 2 * kDim);
  args.output = Matrix(rig.Upload(std::vector<float>(kRows * kDim, kNan)), kRows, kDim);
  ASSERT_TRUE(norm::SiluMul(args, rig.context()));
  std::vector<double> exact;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kDim; ++i) {
      const double gate = x[row * 2 * kDim + i];
      exact.push_back(gate / (1 + std::exp(-gate)) * x[row * 2 * kDim + kDim + i]);
    }
  }
  EXPECT_LE(RelativeError(rig.Download<float>(args.output.data, kRows * kDim), exact),
            tolerances::kF32Kernel);
}

// Two sequences of a step; the second starts in the middle of a page.
struct WriterStep {
  explicit WriterStep(Rig& rig) {
    inputs.live_counts = rig.Upload(std::vector<int32_t>{5, 2, 0});
    inputs.positions = rig.Upload(std::vector<int32_t>{0, 1, 14, 15, 16, 1 << 30});
    inputs.query_starts = rig.Upload(std::vector<int32_t>{0, 2, 5});
    inputs.kv_lengths = rig.Upload(std::vector<int32_t>{2, 17});
    inputs.rope_rows = rig.Upload(std::vector<int32_t>{1, 0});
    inputs.page_tables[0] = rig.Upload(std::vector<int32_t>{2, 2147480000, 0, 3});
    inputs.page_table_stride[0] = 2;
    RopeSpec spec;
    spec.dim = 8;
    EXPECT_TRUE(tables.Add(spec, 20, 20));
    spec.theta = 100;
    EXPECT_TRUE(tables.Add(spec, 20, 20));
  }
  StepInputs inputs;
  RopeTables tables;
  static constexpr int kTokens = 5;
  static constexpr int kPositions[] = {0, 1, 14, 15, 16};
  static constexpr int kTables[] = {1, 1, 0, 0, 0};
  static constexpr int kPages[] = {2, 2, 0, 0, 3};

  // Element i of x rotated as token t's table says.
  double Rotated(const float* x, int t, int i, RopeState state) const {
    const float* row = tables.data()[kTables[t]] + kPositions[t] * 8;
    const bool halves = state == RopeState::kRotatedHalves;
    const int pair = halves ? i % 4 : i / 2;
    const bool first = halves ? i < 4 : i % 2 == 0;
    const int a = halves ? pair : 2 * pair;
    const int b = halves ? pair + 4 : 2 * pair + 1;
    return first ? double{x[a]} * row[pair] - double{x[b]} * row[4 + pair]
                 : double{x[b]} * row[pair] + double{x[a]} * row[4 + pair];
  }
};

double Cached(const std::vector<std::byte>& pages, const CacheFormat& format, PlaneKind kind,
              int page, int64_t token, int head, int element) {
  const Plane& p = *format.Find(kind);
  const std::byte* at = pages.data() + page * format.page_bytes + p.offset_bytes +
                        token * p.token_stride_bytes + head * p.head_stride_bytes +
                        element * SizeOf(p.dtype);
  if (p.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
  uint16_t v;
  std::memcpy(&v, at, sizeof(v));
  return Bf16ToF32(v);
}

TEST(KvCache, GqaRotatesQAndKAndWritesItsPagesOnly) {
  for (const RopeState state : {RopeState::kRotatedHalves, RopeState::kRotatedInterleaved}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::string& isa : ops::testing::RunnableIsas()) {
        constexpr int kHeads = 3, kDim = 16;  // rope turns the first 8 elements
        Rig rig({.deferred = true, .threads = 2, .isa = isa});
        const WriterStep step(rig);
        const auto format = MakeGqaFormat(2, 1, kDim, 24, dtype, 16, state);
        ASSERT_TRUE(format);
        // One fused q|k|v product.
        constexpr int64_t kColumns = kHeads * kDim + kDim + 24;
        const auto qkv = Random(6 * kColumns, 6);
        float* data = rig.Upload(qkv);
        kv_cache::GqaArgs args;
        args.q = TensorView::Contiguous(data, DType::kF32, {6, kHeads, kDim});
        args.k = TensorView::Contiguous(data + kHeads * kDim, DType::kF32, {6, 1, kDim});
        args.v = TensorView::Contiguous(data + kHeads * kDim + kDim, DType::kF32, {6, 1, 24});
        args.q.stride[0] = args.k.stride[0] = args.v.stride[0] = kColumns;
        args.tables = &step.tables;
        args.layer = 1;
        args.cache.format = *format;
        args.cache.num_pages = 4;
        const size_t bytes = static_cast<size_t>(format->page_bytes) * 4 * 2;
        args.cache.base = rig.Upload(std::vector<std::byte>(bytes, std::byte{0xff}));
        ASSERT_TRUE(kv_cache::WriteGqa(args, step.inputs, rig.context()));
        const auto all = rig.Download<std::byte>(args.cache.base, bytes);
        const auto turned = rig.Download<float>(data, 6 * kColumns);
        const std::vector<std::byte> pages(all.begin() + static_cast<int64_t>(bytes / 2),
                                           all.end());
        const double tolerance = dtype == DType::kF32 ? 1e-6 : 4e-3;
        for (int t = 0; t < WriterStep::kTokens; ++t) {
          const float* row = qkv.data() + t * kColumns;
          for (int h = 0; h < kHeads; ++h) {
            for (int i = 0; i < kDim; ++i) {
              const float* q = row + h * kDim;
              const double expected = i < 8 ? step.Rotated(q, t, i, state) : q[i];
              EXPECT_NEAR(turned[static_cast<size_t>(t * kColumns + h * kDim + i)], expected, 1e-6);
            }
          }
          const int page = WriterStep::kPages[t];
          const int token = WriterStep::kPositions[t] % 16;
          for (int i = 0; i < kDim; ++i) {
            const float* k = row + kHeads * kDim;
            const double expected = i < 8 ? step.Rotated(k, t, i, state) : k[i];
            EXPECT_NEAR(Cached(pages, *format, PlaneKind::kK, page, token, 0, i), expected,
                        tolerance * (1 + std::abs(expected)));
          }
          for (int i = 0; i < 24; ++i) {
            const double expected = row[kHeads * kDim + kDim + i];
            EXPECT_NEAR(Cached(pages, *format, PlaneKind::kV, page, token, 0, i), expected,
                        tolerance * (1 + std::abs(expected)));
          }
        }
        size_t written = 0;
        for (const std::byte b : all) written += b != std::byte{0xff} ? 1 : 0;
        EXPECT_LE(written, 5U * 40 * static_cast<size_t>(SizeOf(dtype))) << "wrote other rows";
        EXPECT_TRUE(std::isnan(Cached(pages, *format, PlaneKind::kK, 1, 0, 0, 0)));
        EXPECT_TRUE(std::isnan(Cached(pages, *format, PlaneKind::kV, 3, 1, 0, 0)));
      }
    }
  }
}

TEST(KvCache, MlaNormsTheLatentAndRotatesTheSharedKey) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    constexpr int kHeads = 2, kNope = 6, kRank = 32;
    Rig rig({.deferred = true, .threads = 2});
    const WriterStep step(rig);
    const auto format = MakeMlaFormat(1, kRank, 8, dtype, 16, RopeState::kRotatedInterleaved);
    ASSERT_TRUE(format);
    const auto q = Random(6 * kHeads * (kNope + 8), 7);
    const auto kv_a = Random(6 * (kRank + 8), 8, 3);
    const auto weight = Random(kRank, 9);
    kv_cache::MlaArgs args;
    args.q = TensorView::Contiguous(rig.Upload(q), DType::kF32, {6, kHeads, kNope + 8});
    args.kv_a = Matrix(rig.Upload(kv_a), 6, kRank + 8);
    args.norm_weight = weight.data();
    args.tables = &step.tables;
    args.cache.format = *format;
    args.cache.num_pages = 4;
    const size_t bytes = static_cast<size_t>(format->page_bytes) * 4;
    args.cache.base = rig.Upload(std::vector<std::byte>(bytes, std::byte{0xff}));
    ASSERT_TRUE(kv_cache::WriteMla(args, step.inputs, rig.context()));
    const auto pages = rig.Download<std::byte>(args.cache.base, bytes);
    const auto turned = rig.Download<float>(args.q.data, q.size());
    const double tolerance = dtype == DType::kF32 ? 1e-6 : 4e-3;
    for (int t = 0; t < WriterStep::kTokens; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        const float* x = q.data() + (t * kHeads + h) * (kNope + 8);
        const float* y = turned.data() + (t * kHeads + h) * (kNope + 8);
        for (int i = 0; i < kNope; ++i) EXPECT_EQ(y[i], x[i]);
        for (int i = 0; i < 8; ++i) {
          EXPECT_NEAR(y[kNope + i], step.Rotated(x + kNope, t, i, format->rope), 1e-6);
        }
      }
      const float* row = kv_a.data() + t * (kRank + 8);
      double mean = 0;
      for (int i = 0; i < kRank; ++i) mean += double{row[i]} * row[i] / kRank;
      const int page = WriterStep::kPages[t];
      const int token = WriterStep::kPositions[t] % 16;
      for (int i = 0; i < kRank; ++i) {
        const double expected = row[i] / std::sqrt(mean + 1e-6) * weight[static_cast<size_t>(i)];
        EXPECT_NEAR(Cached(pages, *format, PlaneKind::kC, page, token, 0, i), expected,
                    tolerance * (1 + std::abs(expected)));
      }
      for (int i = 0; i < 8; ++i) {
        const double expected = step.Rotated(row + kRank, t, i, format->rope);
        EXPECT_NEAR(Cached(pages, *format, PlaneKind::kKPe, page, token, 0, i), expected,
                    tolerance * (1 + std::abs(expected)));
      }
    }
    EXPECT_TRUE(std::isnan(Cached(pages, *format, PlaneKind::kC, 3, 1, 0, 0)));
  }
}

TEST(KvCache, RefusesFormatsItCannotWrite) {
  Rig rig;
  const WriterStep step(rig);
  kv_cache::GqaArgs args;
  args.q = TensorView::Contiguous(nullptr, DType::kF32, {1, 1, 16});
  args.k = args.v = args.q;
  args.tables = &step.tables;
  args.cache.format = *MakeGqaFormat(1, 1, 16, 16, DType::kBF16, 16, RopeState::kRaw);
  const auto raw = kv_cache::WriteGqa(args, step.inputs, rig.context());
  ASSERT_FALSE(raw);
  EXPECT_EQ(raw.error().code, Code::kUnsupported);
  args.cache.format = *MakeGqaFormat(1, 1, 16, 16, DType::kI8, 16, RopeState::kRotatedHalves);
  EXPECT_FALSE(kv_cache::WriteGqa(args, step.inputs, rig.context()));
}

}  // namespace
}  // namespace fathom::ops
