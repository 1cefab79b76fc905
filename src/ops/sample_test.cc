#include "ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/select.h"
#include "ops/deferred_device.h"

namespace fathom::ops::sample {
namespace {

struct Problem {
  int32_t vocab = 0;
  std::vector<std::vector<float>> logits;
  std::vector<Row> rows;
  std::vector<Occurrence> occurrences;
  std::vector<Bias> biases;
  std::vector<uint64_t> masks;
};

// Runs on a device that forbids host reads, so the test covers that too.
std::vector<Choice> SampleAll(const Problem& problem, std::string_view isa = "",
                              int num_threads = 2) {
  DeferredDevice device;
  ThreadPool pool(num_threads);
  Comm comm;
  const auto table = kernels::cpu::Select(isa);
  EXPECT_TRUE(table);
  const auto rows = static_cast<int32_t>(problem.rows.size());
  std::vector<DeviceBuffer> buffers;
  const auto upload = [&](const void* data, size_t bytes) {
    buffers.push_back(*DeviceBuffer::Make(device, bytes));
    device.CopyIn(kDefaultStream, buffers.back().data(), data, bytes);
    return buffers.back().data();
  };
  std::vector<float> logits;
  for (const auto& row : problem.logits) logits.insert(logits.end(), row.begin(), row.end());
  const auto bytes_of = [](const auto& v) { return v.size() * sizeof(v[0]); };
  Args args;
  args.logits = TensorView::Contiguous(upload(logits.data(), bytes_of(logits)), DType::kF32,
                                       {rows, problem.vocab});
  args.rows = static_cast<Row*>(upload(problem.rows.data(), bytes_of(problem.rows)));
  args.occurrences =
      static_cast<Occurrence*>(upload(problem.occurrences.data(), bytes_of(problem.occurrences)));
  args.biases = static_cast<Bias*>(upload(problem.biases.data(), bytes_of(problem.biases)));
  args.masks = static_cast<uint64_t*>(upload(problem.masks.data(), bytes_of(problem.masks)));
  args.num_rows = static_cast<int32_t*>(upload(&rows, sizeof(rows)));
  const std::vector<int32_t> slots(problem.rows.size(), -7);
  args.sampled = static_cast<int32_t*>(upload(slots.data(), bytes_of(slots)));
  std::vector<Choice> choices(problem.rows.size());
  args.choices = static_cast<Choice*>(upload(choices.data(), bytes_of(choices)));
  const size_t workspace = WorkspaceBytes(problem.vocab, num_threads);
  DeviceBuffer scratch = *DeviceBuffer::Make(device, workspace);
  Arena arena({static_cast<std::byte*>(scratch.data()), workspace});
  Context context{device, pool, **table, comm, arena, {}};
  EXPECT_TRUE(sample::Run(args, context));
  device.CopyOut(kDefaultStream, choices.data(), args.choices, bytes_of(choices));
  std::vector<int32_t> sampled(problem.rows.size());
  device.CopyOut(kDefaultStream, sampled.data(), args.sampled, bytes_of(sampled));
  EXPECT_TRUE(device.Wait(device.Record(kDefaultStream)));
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(sampled[problem.rows[i].slot], std::max(choices[i].token, 0));
  }
  return choices;
}

std::vector<float> RandomLogits(int32_t vocab, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(vocab));
  for (float& value : x) value = normal(random);
  return x;
}

Problem OneRow(std::vector<float> logits, Row row) {
  Problem problem;
  problem.vocab = static_cast<int32_t>(logits.size());
  problem.logits.push_back(std::move(logits));
  problem.rows.push_back(row);
  return problem;
}

// The same semantics in float64 with a full sort: probability of each token after the filters.
std::vector<double> Reference(const Problem& problem, size_t i) {
  const Row& row = problem.rows[i];
  std::vector<double> x(problem.logits[i].begin(), problem.logits[i].end());
  for (int32_t k = row.occurrences_begin; k < row.occurrences_end; ++k) {
    const Occurrence& o = problem.occurrences[k];
    x[o.token] =
        x[o.token] > 0 ? x[o.token] / row.repetition_penalty : x[o.token] * row.repetition_penalty;
    x[o.token] -= row.frequency_penalty * o.generated;
    if (o.generated > 0) x[o.token] -= row.presence_penalty;
  }
  for (int32_t k = row.biases_begin; k < row.biases_end; ++k) {
    x[problem.biases[k].token] += problem.biases[k].value;
  }
  if (row.mask_row >= 0) {
    const size_t words = (x.size() + 63) / 64;
    for (size_t id = 0; id < x.size(); ++id) {
      const uint64_t word = problem.masks[words * row.mask_row + id / 64];
      if ((word >> (id % 64) & 1) != 0) x[id] = -std::numeric_limits<double>::infinity();
    }
  }
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> p(x.size());
  for (size_t id = 0; id < x.size(); ++id) p[id] = std::exp((x[id] - max) / row.temperature);
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&p](size_t a, size_t b) { return p[a] > p[b]; });
  size_t kept = 0;
  while (kept < order.size() && p[order[kept]] >= row.min_p && p[order[kept]] > 0) ++kept;
  if (row.top_k > 0) kept = std::min(kept, static_cast<size_t>(row.top_k));
  double mass = 0;
  for (size_t k = 0; k < kept; ++k) mass += p[order[k]];
  if (row.top_p < 1) {
    double passed = 0;
    size_t n = 0;
    while (n < kept && passed < row.top_p * mass) passed += p[order[n++]];
    kept = n;
    mass = passed;
  }
  std::vector<double> result(x.size());
  for (size_t k = 0; k < kept; ++k) result[order[k]] = p[order[k]] / mass;
  return result;
}

// The token that a draw over these probabilities in the order of ids picks, and how near the draw
// came to picking a neighbour.
int32_t Pick(const std::vector<double>& probability, const Row& row, double* margin) {
  const double u = Uniform(row.seed, row.index);
  double passed = 0;
  int32_t chosen = 0;
  *margin = 1;
  for (size_t id = 0; id < probability.size(); ++id) {
    if (probability[id] == 0) continue;
    if (passed <= u) chosen = static_cast<int32_t>(id);
    passed += probability[id];
    *margin = std::min(*margin, std::abs(passed - u));
  }
  return chosen;
}

TEST(Philox, KnownAnswers) {  // from the authors' Random123 distribution
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sample, TemperatureZeroTakesTheLowestOfTheLargest) {
  std::vector<float> x = RandomLogits(1000, 1);
  x[700] = x[300] = 50;
  EXPECT_EQ(SampleAll(OneRow(x, {.temperature = 0}))[0].token, 300);
}

TEST(Sample, LogprobsAreOfTheModelsDistribution) {
  const std::vector<float> x = RandomLogits(1003, 2);
  Problem problem = OneRow(x, {.temperature = 0, .top_logprobs = 5});
  problem.rows[0].biases_end = 1;
  problem.biases = {{.token = 17, .value = 100}};
  const Choice choice = SampleAll(problem)[0];
  EXPECT_EQ(choice.token, 17);
  double sum = 0;
  for (const float value : x) sum += std::exp(static_cast<double>(value));
  EXPECT_NEAR(choice.logprob, x[17] - std::log(sum), 1e-5);
  ASSERT_EQ(choice.num_top, 5);
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&x](int32_t a, int32_t b) { return x[a] > x[b]; });
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(choice.top_tokens[i], order[i]);
    EXPECT_NEAR(choice.top_logprobs[i], x[order[i]] - std::log(sum), 1e-5);
  }
}

TEST(Sample, TopLogprobsOfEqualLogitsAreTheLowestIds) {
  const Choice choice =
      SampleAll(OneRow(std::vector<float>(100, 1.5F), {.temperature = 0, .top_logprobs = 20}))[0];
  ASSERT_EQ(choice.num_top, 20);
  for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(choice.top_tokens[i], i);
  EXPECT_EQ(SampleAll(OneRow({1, 2, 3}, {.temperature = 0, .top_logprobs = 20}))[0].num_top, 3);
}

TEST(Sample, BrokenLogitsAndEmptyGrammarsAreReported) {
  std::vector<float> x = RandomLogits(70, 3);
  Problem masked = OneRow(x, {.mask_row = 0});
  masked.masks = {~uint64_t{0}, ~uint64_t{0}};
  EXPECT_EQ(SampleAll(masked)[0].token, Choice::kAllMasked);
  masked.masks[1] &= ~(uint64_t{1} << 5);  // one legal token is left
  EXPECT_EQ(SampleAll(masked)[0].token, 69);
  x[66] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(SampleAll(OneRow(x, {}))[0].token, Choice::kNotFinite);
  x[66] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SampleAll(OneRow(x, {.temperature = 0}))[0].token, Choice::kNotFinite);
}

// Each filter and all together, against the sorted float64 reference.
TEST(Sample, AgreesWithASortedReference) {
  std::mt19937 random(11);
  const auto uniform = [&random](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<>(low, high)(random));
  };
  for (const kernels::cpu::KernelTable* table : kernels::cpu::AllTables()) {
    if (!kernels::cpu::Supported(*table)) continue;
    int near_ties = 0;
    for (int round = 0; round < 60; ++round) {
      Problem problem;
      problem.vocab = 1 + static_cast<int32_t>(random() % 3000);
      const auto vocab = static_cast<uint32_t>(problem.vocab);
      for (int32_t i = 0; i < 8; ++i) {
        problem.logits.push_back(RandomLogits(problem.vocab, random(), uniform(0.1, 6)));
        if (random() % 4 == 0) {  // many exact ties
          for (float& value : problem.logits.back()) value = std::round(value);
        }
        Row row{.seed = random(), .index = random() % 100, .slot = i};
        row.temperature = uniform(0.2, 2);
        if (random() % 2 == 0) row.top_p = uniform(0.05, 0.999);
        if (random() % 2 == 0) row.top_k = 1 + static_cast<int32_t>(random() % 100);
        if (random() % 2 == 0) row.min_p = uniform(0, 0.3);
        row.occurrences_begin = static_cast<int32_t>(problem.occurrences.size());
        row.biases_begin = static_cast<int32_t>(problem.biases.size());
        if (random() % 2 == 0) {
          row.presence_penalty = uniform(-2, 2);
          row.frequency_penalty = uniform(-2, 2);
          row.repetition_penalty = uniform(0.5, 2);
          for (uint32_t id = 0; id < vocab; id += 1 + random() % 200) {
            problem.occurrences.push_back({.token = static_cast<int32_t>(id),
                                           .generated = static_cast<int32_t>(random() % 4)});
          }
          problem.biases.push_back({static_cast<int32_t>(random() % vocab), uniform(-5, 5)});
        }
        row.occurrences_end = static_cast<int32_t>(problem.occurrences.size());
        row.biases_end = static_cast<int32_t>(problem.biases.size());
        if (random() % 3 == 0) {
          const uint32_t words = (vocab + 63) / 64;
          row.mask_row = static_cast<int32_t>(problem.masks.size() / words);
          for (uint32_t w = 0; w < words; ++w) {
            problem.masks.push_back(uint64_t{random()} << 32 | random());
          }
          problem.masks.end()[-static_cast<std::ptrdiff_t>(words)] &= ~uint64_t{1};  // one is legal
        }
        problem.rows.push_back(row);
      }
      const std::vector<Choice> choices = SampleAll(problem, table->isa);
      for (size_t i = 0; i < choices.size(); ++i) {
        double margin = 0;
        const int32_t expected = Pick(Reference(problem, i), problem.rows[i], &margin);
        if (margin < 1e-4) {  // float32 rounding may decide such a draw or filter
          ++near_ties;
          continue;
        }
        EXPECT_EQ(choices[i].token, expected) << table->isa << " round " << round << " row " << i;
      }
    }
    EXPECT_LT(near_ties, 60) << table->isa;  // of 480
  }
}

TEST(Sample, TheSameSeedAndIndexGiveTheSameTokenInAnyBatch) {
  constexpr int32_t kVocab = 2000;
  Problem alone = OneRow(RandomLogits(kVocab, 4), {.seed = 99, .index = 3, .top_p = 0.9F});
  const int32_t expected = SampleAll(alone, "", 1)[0].token;
  Problem batch;
  batch.vocab = kVocab;
  for (int32_t i = 0; i < 9; ++i) {
    batch.logits.push_back(RandomLogits(kVocab, 40 + static_cast<uint32_t>(i)));
    batch.rows.push_back({.seed = static_cast<uint64_t>(i), .slot = i});
  }
  batch.logits[6] = alone.logits[0];
  batch.rows[6] = alone.rows[0];
  batch.rows[6].slot = 6;
  for (const int threads : {1, 2, 4}) EXPECT_EQ(SampleAll(batch, "", threads)[6].token, expected);
}

TEST(Sample, DrawsFollowTheDistribution) {
  const std::vector<float> x = {0, std::log(2.0F), std::log(3.0F), std::log(4.0F)};
  Problem problem;
  problem.vocab = 4;
  constexpr int kDraws = 20'000;
  for (int32_t i = 0; i < kDraws; ++i) {
    problem.logits.push_back(x);
    problem.rows.push_back({.seed = 5, .index = static_cast<uint64_t>(i), .slot = i});
  }
  std::array<int, 4> counts = {};
  for (const Choice& choice : SampleAll(problem)) ++counts[choice.token];
  for (int id = 0; id < 4; ++id) {
    const double p = (id + 1) / 10.0;
    const double sigma = std::sqrt(kDraws * p * (1 - p));
    EXPECT_NEAR(counts[id], kDraws * p, 4 * sigma) << id;
  }
}

TEST(Sample, TopKKeepsExactlyKEvenAmongTies) {
  const std::vector<float> x(500, 2.0F);
  std::map<int32_t, int> seen;
  Problem problem;
  problem.vocab = 500;
  for (int32_t i = 0; i < 2000; ++i) {
    problem.logits.push_back(x);
    problem.rows.push_back({.index = static_cast<uint64_t>(i), .top_k = 7, .slot = i});
  }
  for (const Choice& choice : SampleAll(problem)) ++seen[choice.token];
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(seen.rbegin()->first, 6);
}

TEST(Sample, AWrongShapeIsAnError) {
  const auto device = MakeCpuDevice();
  ThreadPool pool(1);
  Comm comm;
  Arena arena;
  Context context{*device, pool, **kernels::cpu::Select(""), comm, arena, {}};
  Args args;
  args.logits = TensorView::Contiguous(nullptr, DType::kBF16, {2, 3});
  const Status status = sample::Run(args, context);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("F32"), std::string::npos);
}

}  // namespace
}  // namespace fathom::ops::sample
