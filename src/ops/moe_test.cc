#include "ops/moe.h"

#include <limits>

#include "ops/norm.h"
#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::moe {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice RunGate(Rig& rig, const GateSpec& spec, const std::vector<float>& logits, int64_t rows,
               const float* bias = nullptr) {
  GateArgs args;
  args.logits = TensorView::Contiguous(rig.Upload(logits), DType::kF32, {rows, spec.num_experts});
  args.bias = bias;
  const auto count = static_cast<size_t>(rows * spec.top_k);
  args.experts = TensorView::Contiguous(rig.Upload(std::vector<int32_t>(count, -1)), DType::kI32,
                                        {rows, spec.top_k});
  args.weights = TensorView::Contiguous(rig.Upload(std::vector<float>(count, kNan)), DType::kF32,
                                        {rows, spec.top_k});
  EXPECT_TRUE(Gate(spec, args, rig.context()));
  return {rig.Download<int32_t>(args.experts.data, count),
          rig.Download<float>(args.weights.data, count)};
}

TEST(Gate, GreedySoftmaxTakesTheBest) {
  Rig rig({.deferred = true});
  const GateSpec spec{.num_experts = 5, .top_k = 3, .routed_scaling_factor = 2};
  const auto [experts, weights] = RunGate(rig, spec, {0, 3, 1, 3, -1}, 1);
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 3, 2})) << "equal scores by index";
  const double sum = 1 + 2 * std::exp(3) + std::exp(1) + std::exp(-1);
  EXPECT_NEAR(weights[0], 2 * std::exp(3) / sum, 1e-6);
  EXPECT_NEAR(weights[2], 2 * std::exp(1) / sum, 1e-6);
}

TEST(Gate, GroupLimitedGreedyKeepsTheGroupsWithTheBestMaximum) {
  Rig rig;
  const GateSpec spec{.num_experts = 6,
                      .top_k = 2,
                      .num_groups = 3,
                      .topk_group = 1,
                      .method = TopkMethod::kGroupLimitedGreedy};
  // The best expert is in group 1; the second best of all is elsewhere and may not be taken.
  const auto [experts, weights] = RunGate(rig, spec, {4, 4, 5, -3, 4, 4}, 1);
  EXPECT_EQ(experts, (std::vector<int32_t>{2, 3}));
  EXPECT_GT(weights[0], weights[1]);
}

// Written out from the published description, on random logits.
TEST(Gate, NoauxTcMatchesItsDescription) {
  Rig rig({.threads = 2});
  const GateSpec spec{.num_experts = 16,
                      .top_k = 4,
                      .num_groups = 4,
                      .topk_group = 2,
                      .scoring = Scoring::kSigmoid,
                      .method = TopkMethod::kNoauxTc,
                      .norm_topk_prob = true,
                      .routed_scaling_factor = 2.5F};
  constexpr int64_t kRows = 200;
  const auto logits = Random(kRows * 16, 1, 2);
  const auto bias = Random(16, 2, 0.3F);
  const auto [experts, weights] = RunGate(rig, spec, logits, kRows, bias.data());
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<double> score, choice;
    for (size_t e = 0; e < 16; ++e) {
      score.push_back(1 / (1 + std::exp(-double{logits[row * 16 + e]})));
      choice.push_back(score[e] + bias[e]);
    }
    std::vector<std::pair<double, int>> groups;
    for (int g = 0; g < 4; ++g) {
      std::vector<double> members(choice.begin() + g * 4, choice.begin() + g * 4 + 4);
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(-(members[0] + members[1]), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, int>> candidates;
    for (int i = 0; i < 2; ++i) {
      for (int e = groups[static_cast<size_t>(i)].second * 4, n = 0; n < 4; ++n, ++e) {
        candidates.emplace_back(-choice[static_cast<size_t>(e)], e);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    double sum = 1e-20;
    for (size_t r = 0; r < 4; ++r) sum += score[static_cast<size_t>(candidates[r].second)];
    for (size_t r = 0; r < 4; ++r) {
      ASSERT_EQ(experts[row * 4 + r], candidates[r].second) << "row " << row;
      EXPECT_NEAR(weights[row * 4 + r],
                  2.5 * score[static_cast<size_t>(candidates[r].second)] / sum, 1e-5);
    }
  }
}

TEST(Gate, RefusesImpossibleSpecs) {
  EXPECT_TRUE(ValidateGate({.num_experts = 8, .top_k = 2}));
  EXPECT_FALSE(ValidateGate({.num_experts = 8, .top_k = 9}));
  EXPECT_FALSE(ValidateGate({.num_experts = 8, .top_k = 2, .num_groups = 3}));
  EXPECT_FALSE(ValidateGate({.num_experts = 8,
                             .top_k = 3,
                             .num_groups = 4,
                             .topk_group = 1,
                             .method = TopkMethod::kNoauxTc}));
  EXPECT_FALSE(ValidateGate({.num_experts = 100000, .top_k = 2}));
}

struct Experts {
  Experts(Precision precision, int hidden, int inter, Rig& rig)
      : shape{.num_experts = 6,
              .top_k = 3,
              .hidden = hidden,
              .intermediate = inter,
              .precision = precision} {
    for (int e = 0; e < 6; ++e) {
      const auto seed = static_cast<uint32_t>(e);
      gate_up.push_back(
          ops::testing::ToBf16(Random(static_cast<size_t>(2 * inter * hidden), 10 + seed, 0.2F)));
      down.push_back(
          ops::testing::ToBf16(Random(static_cast<size_t>(inter * hidden), 20 + seed, 0.2F)));
      ExpertWeights w;
      linear::WeightSource source;
      source.weight =
          TensorView::Contiguous(gate_up.back().data(), DType::kBF16, {2 * inter, hidden});
      w.gate_up = linear::Pack(source, precision, rig.device(), rig.cpu()).value();
      source.weight = TensorView::Contiguous(down.back().data(), DType::kBF16, {hidden, inter});
      w.down = linear::Pack(source, precision, rig.device(), rig.cpu()).value();
      packed.push_back(std::move(w));
    }
  }

  std::vector<float> Run(Rig& rig, const std::vector<float>& x, const Choice& choice, int64_t rows,
                         const std::vector<float>& base) const {
    ExpertsArgs args;
    args.input = TensorView::Contiguous(rig.Upload(x), DType::kF32, {rows, shape.hidden});
    args.experts =
        TensorView::Contiguous(rig.Upload(choice.experts), DType::kI32, {rows, shape.top_k});
    args.weights =
        TensorView::Contiguous(rig.Upload(choice.weights), DType::kF32, {rows, shape.top_k});
    args.output = TensorView::Contiguous(rig.Upload(base), DType::kF32, {rows, shape.hidden});
    const Plan plan = MakePlan(shape, rows);
    const size_t before = rig.context().arena.Mark();
    const size_t peak = rig.context().arena.peak();
    {
      const ArenaScope scope(rig.context().arena);
      const auto routing = Prepare(plan, args, rig.context());
      EXPECT_TRUE(routing);
      EXPECT_TRUE(moe::Run(plan, packed.data(), *routing, args, rig.context()));
    }
    EXPECT_LE(rig.context().arena.peak(), std::max(peak, before + plan.workspace_bytes));
    return rig.Download<float>(args.output.data, static_cast<size_t>(rows * shape.hidden));
  }

  ExpertsShape shape;
  std::vector<std::vector<uint16_t>> gate_up, down;
  std::vector<ExpertWeights> packed;
};

TEST(Experts, MatchF64AndDoNotDependOnTheBatch) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      constexpr int kHidden = 72, kInter = 40;
      constexpr int64_t kRows = 30;
      Rig rig({.threads = 2, .isa = isa});
      const Experts experts(precision, kHidden, kInter, rig);
      const auto x = Random(kRows * kHidden, 30);
      const auto base = Random(kRows * kHidden, 31);
      Choice choice;  // expert 4 gets nobody
      const auto weights = Random(kRows * 3, 32);
      for (int t = 0; t < kRows; ++t) {
        const int pick[3] = {t % 4, (t + 1) % 4, 5};
        for (int r = 0; r < 3; ++r) {
          choice.experts.push_back(pick[r]);
          choice.weights.push_back(std::abs(weights[static_cast<size_t>(t * 3 + r)]));
        }
      }
      const auto all = experts.Run(rig, x, choice, kRows, base);
      std::vector<double> exact(base.begin(), base.end());
      for (size_t t = 0; t < kRows; ++t) {
        for (size_t r = 0; r < 3; ++r) {
          const auto e = static_cast<size_t>(choice.experts[t * 3 + r]);
          std::vector<double> act;
          for (size_t i = 0; i < kInter; ++i) {
            double gate = 0, up = 0;
            for (size_t d = 0; d < kHidden; ++d) {
              gate += double{x[t * kHidden + d]} * Bf16ToF32(experts.gate_up[e][i * kHidden + d]);
              up += double{x[t * kHidden + d]} *
                    Bf16ToF32(experts.gate_up[e][(kInter + i) * kHidden + d]);
            }
            act.push_back(gate / (1 + std::exp(-gate)) * up);
          }
          for (size_t d = 0; d < kHidden; ++d) {
            double sum = 0;
            for (size_t i = 0; i < kInter; ++i) {
              sum += act[i] * Bf16ToF32(experts.down[e][d * kInter + i]);
            }
            exact[t * kHidden + d] += choice.weights[t * 3 + r] * sum;
          }
        }
      }
      EXPECT_LE(RelativeError(all, exact),
                precision == Precision::kF32 ? tolerances::kF32Kernel : tolerances::kBf16Rounding)
          << isa;

      Rig late({.deferred = true, .threads = 3, .isa = isa});
      EXPECT_TRUE(SameBits(all, experts.Run(late, x, choice, kRows, base)));
      for (const int64_t t : {0, 13, 29}) {
        Choice one;
        one.experts.assign(choice.experts.begin() + t * 3, choice.experts.begin() + t * 3 + 3);
        one.weights.assign(choice.weights.begin() + t * 3, choice.weights.begin() + t * 3 + 3);
        const auto row = [&](const std::vector<float>& v) {
          return std::vector<float>(v.begin() + t * kHidden, v.begin() + (t + 1) * kHidden);
        };
        EXPECT_TRUE(SameBits(row(all), experts.Run(rig, row(x), one, 1, row(base))));
      }
    }
  }
}

}  // namespace
}  // namespace fathom::ops::moe
