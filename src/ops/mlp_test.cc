#include "ops/mlp.h"

#include <limits>

#include "ops/norm.h"
#include "ops/onednn.h"
#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::mlp {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Layer {
  Layer(int64_t hidden_size, int64_t intermediate_size, Precision precision, Rig& rig)
      : hidden(hidden_size),
        intermediate(intermediate_size),
        gate_up(Packed(2 * intermediate, hidden, 1, precision, rig)),
        down(Packed(hidden, intermediate, 2, precision, rig)) {}

  static linear::PackedWeight Packed(int64_t n, int64_t k, uint32_t seed, Precision precision,
                                     Rig& rig) {
    auto values = ops::testing::ToBf16(Random(static_cast<size_t>(n * k), seed, 0.2F));
    linear::WeightSource source;
    source.weight = TensorView::Contiguous(values.data(), DType::kBF16, {n, k});
    return linear::Pack(source, precision, rig.device(), rig.cpu()).value();
  }

  // Of rows of x, the last of which is dead; output rows are apart.
  std::vector<float> Run(Rig& rig, const std::vector<float>& x, Gemm gemm = Gemm::kNative) const {
    const auto rows = static_cast<int64_t>(x.size()) / hidden;
    Args args;
    args.input = TensorView::Contiguous(rig.Upload(x), DType::kF32, {rows, hidden});
    const auto size = static_cast<size_t>(rows * (hidden + 5));
    args.output = TensorView::Contiguous(rig.Upload(std::vector<float>(size, kNan)), DType::kF32,
                                         {rows, hidden});
    args.output.stride[0] = hidden + 5;
    args.live_rows = rig.Upload(std::vector<int32_t>{static_cast<int32_t>(rows - 1)});
    const Plan plan = MakePlan(gate_up.precision(), hidden, intermediate, rows, gemm);
    const Arena& arena = rig.context().arena;
    const size_t allowed = std::max(arena.peak(), arena.Mark() + plan.workspace_bytes);
    EXPECT_TRUE(mlp::Run(plan, {&gate_up, &down}, args, rig.context()));
    EXPECT_LE(arena.peak(), allowed);
    return rig.Download<float>(args.output.data, size);
  }

  // The three steps one by one, in the same places.
  std::vector<float> RunSteps(Rig& rig, const std::vector<float>& x) const {
    const auto rows = static_cast<int64_t>(x.size()) / hidden - 1;
    const auto matrix = [&](int64_t cols) {
      return TensorView::Contiguous(
          rig.Upload(std::vector<float>(static_cast<size_t>((rows + 1) * (cols + 5)), kNan)),
          DType::kF32, {rows, cols});
    };
    const TensorView both = matrix(2 * intermediate);
    const TensorView product = matrix(intermediate);
    TensorView output = matrix(hidden);
    output.stride[0] = hidden + 5;
    const TensorView input = TensorView::Contiguous(rig.Upload(x), DType::kF32, {rows, hidden});
    EXPECT_TRUE(linear::Run(linear::MakePlan(gate_up, rows), gate_up,
                            {.input = input, .output = both}, rig.context()));
    EXPECT_TRUE(norm::SiluMul({.gate_up = both, .output = product}, rig.context()));
    EXPECT_TRUE(linear::Run(linear::MakePlan(down, rows), down,
                            {.input = product, .output = output}, rig.context()));
    return rig.Download<float>(output.data, static_cast<size_t>((rows + 1) * (hidden + 5)));
  }

  int64_t hidden;
  int64_t intermediate;
  linear::PackedWeight gate_up;
  linear::PackedWeight down;
};

// Up begins at a panel, inside one, and at an odd column; rows fill a tile, a block, more.
TEST(Mlp, HasTheBitsOfItsStepsOneByOne) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const auto& [hidden, intermediate] :
           {std::pair{70, 64}, {64, 75}, {33, 512}, {33, 500}}) {
        Rig rig({.threads = 2, .isa = isa});
        const Layer layer(hidden, intermediate, precision, rig);
        for (const int64_t rows : {1, 40, 150}) {
          auto x = Random(static_cast<size_t>((rows + 1) * hidden), 3);
          std::fill(x.end() - hidden, x.end(), kNan);  // of the dead row
          const auto y = layer.Run(rig, x);
          EXPECT_TRUE(SameBits(y, layer.RunSteps(rig, x)))
              << isa << " " << hidden << " x " << intermediate << ", " << rows << " rows";
          Rig late({.deferred = true, .threads = 3, .isa = isa});
          EXPECT_TRUE(SameBits(y, layer.Run(late, x)));
        }
      }
    }
  }
}

TEST(Mlp, OneDnnTakesWholeProducts) {
  Rig rig({.threads = 2});
  if (!onednn::Check(Precision::kF32, rig.cpu())) GTEST_SKIP() << rig.cpu().isa;
  Layer layer(64, 96, Precision::kF32, rig);
  const auto x = Random(size_t{150} * 64, 4);
  std::vector<double> expected;
  const auto native = layer.Run(rig, x);
  ASSERT_TRUE(linear::AddOneDnn(layer.gate_up));
  ASSERT_TRUE(linear::AddOneDnn(layer.down));
  const auto y = layer.Run(rig, x, Gemm::kOneDnn);
  std::vector<float> live;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(std::isnan(y[i]), std::isnan(native[i])) << i;
    if (std::isnan(y[i])) continue;
    live.push_back(y[i]);
    expected.push_back(native[i]);
  }
  EXPECT_LE(RelativeError(live, expected), tolerances::kF32Kernel);
}

}  // namespace
}  // namespace fathom::ops::mlp
