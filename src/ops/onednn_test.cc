#include "ops/onednn.h"

#include <limits>

#include "ops/cpu_isa.h"
#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::onednn {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(OneDnn, WholeTilesOfLargeProducts) {
  EXPECT_EQ(TiledRows(1), 0);
  EXPECT_EQ(TiledRows(127), 0);
  EXPECT_EQ(TiledRows(128), 128);
  EXPECT_EQ(TiledRows(200), 192);
  EXPECT_EQ(TiledRows(512), 512);
  EXPECT_TRUE(Serves(1536, 8960));
  EXPECT_FALSE(Serves(1536, 77));  // odd: bf16 pairs
  EXPECT_FALSE(Serves(16, 4096));
}

TEST(OneDnn, RefusesInstructionSetsItCannotUse) {
  const auto error = [](Precision precision, const std::string& isa) {
    const Status status = Check(precision, *SelectCpu(isa).value());
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(error(Precision::kF32, "scalar").find("needs avx2 or better"), std::string::npos);
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    if (isa == "avx512bf16") continue;
    EXPECT_NE(error(Precision::kBF16, isa).find("needs avx512bf16"), std::string::npos) << isa;
  }
}

struct Product {
  int64_t rows, n, k;
};

// Against the exact product and, for the rows that fill no tile, the native kernels bit for bit.
TEST(OneDnn, ProductsAreThoseOfTheNativeKernels) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    for (const bool deferred : {false, true}) {
      Rig rig({.deferred = deferred, .threads = 2});
      if (!Check(precision, rig.cpu())) continue;  // RefusesInstructionSetsItCannotUse
      for (const Product& product : {Product{128, 64, 64}, {200, 576, 130}, {330, 300, 512}}) {
        const int64_t rows = product.rows, n = product.n, k = product.k;
        auto w = Random(static_cast<size_t>(n * k), 1);
        for (float& value : w) value = Bf16ToF32(F32ToBf16(value));
        const auto x = Random(static_cast<size_t>((rows + 1) * k), 2);
        const auto bias = Random(static_cast<size_t>(n), 3);
        linear::WeightSource source;
        source.weight = TensorView::Contiguous(w.data(), DType::kF32, {n, k});
        auto native = linear::Pack(source, precision, rig.device(), rig.cpu());
        auto both = linear::Pack(source, precision, rig.device(), rig.cpu());
        ASSERT_TRUE(native && both);
        ASSERT_TRUE(linear::AddOneDnn(*both));
        ASSERT_NE(both->onednn(), nullptr);
        EXPECT_EQ(both->Bytes(), native->Bytes() + PackedBytes(precision, n, k).value());

        // Rows are gathered in reverse, the last input row is read by nobody, output rows are
        // apart, and the last of them is dead.
        std::vector<int32_t> from;
        for (int64_t i = rows - 1; i >= 0; --i) from.push_back(static_cast<int32_t>(i));
        const auto run = [&](const linear::PackedWeight& weight) {
          linear::Args args;
          args.input = TensorView::Contiguous(rig.Upload(x), DType::kF32, {rows + 1, k});
          args.output = TensorView::Contiguous(
              rig.Upload(std::vector<float>(static_cast<size_t>(rows * (n + 3)), kNan)),
              DType::kF32, {rows, n});
          args.output.stride[0] = n + 3;
          args.bias = bias.data();
          args.input_rows = rig.Upload(from);
          args.live_rows = rig.Upload(std::vector<int32_t>{static_cast<int32_t>(rows - 1)});
          const linear::Plan plan = linear::MakePlan(weight, rows);
          const Arena& arena = rig.context().arena;
          const size_t allowed = std::max(arena.peak(), arena.Mark() + plan.workspace_bytes);
          EXPECT_TRUE(linear::Run(plan, weight, args, rig.context()));
          EXPECT_LE(arena.peak(), allowed);
          return rig.Download<float>(args.output.data, static_cast<size_t>(rows * (n + 3)));
        };
        const auto y = run(*both);
        EXPECT_TRUE(SameBits(y, run(*both)));
        const auto expected = run(*native);
        const auto part = [n](const std::vector<float>& all, int64_t begin, int64_t end) {
          std::vector<float> values;
          for (int64_t i = begin; i < end; ++i) {
            values.insert(values.end(), all.begin() + i * (n + 3), all.begin() + i * (n + 3) + n);
          }
          return values;
        };
        const int64_t tiled = TiledRows(rows - 1);
        std::vector<double> exact;
        for (const float value : part(expected, 0, tiled)) exact.push_back(value);
        // Both round the same inputs: what is left is the order of f32 sums.
        EXPECT_LE(RelativeError(part(y, 0, tiled), exact), tolerances::kBf16Kernel) << rows;
        EXPECT_TRUE(SameBits(part(y, tiled, rows - 1), part(expected, tiled, rows - 1)));
        for (const float value : part(y, rows - 1, rows)) EXPECT_TRUE(std::isnan(value));
        for (int64_t i = 0; i < rows; ++i) {
          EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i * (n + 3) + n)])) << "written past N";
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom::ops::onednn
