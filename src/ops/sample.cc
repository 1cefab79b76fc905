#include "ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/cpu/table.h"

namespace fathom::ops::sample {
namespace {

using kernels::cpu::KernelTable;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 512;  // loops of constant length over a block are vectorised
constexpr size_t kLanes = 16;

// The largest value, or NaN when any is NaN.
float Max(std::span<const float> x) {
  std::array<float, kLanes> best;
  best.fill(-kInfinity);
  std::array<bool, kLanes> nan = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    const float* block = x.data() + i;
    for (size_t k = 0; k < kLanes; ++k) best[k] = block[k] > best[k] ? block[k] : best[k];
    for (size_t k = 0; k < kLanes; ++k) nan[k] |= block[k] != block[k];
  }
  for (; i < x.size(); ++i) {
    best[0] = std::max(best[0], x[i]);
    nan[0] |= std::isnan(x[i]);
  }
  if (std::ranges::count(nan, true) > 0) return std::numeric_limits<float>::quiet_NaN();
  return *std::ranges::max_element(best);
}

int32_t ArgMax(std::span<const float> x, float max) {
  return static_cast<int32_t>(std::find(x.begin(), x.end(), max) - x.begin());
}

// output[i] = exp((x[i] - max) * scale), zero for -inf; output may be null, or x. Returns the sum.
double ExpSum(std::span<const float> x, float max, float scale, float* output,
              const KernelTable& cpu) {
  std::array<float, kBlock> block;
  double sum = 0;
  for (size_t begin = 0; begin < x.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, x.size() - begin);
    std::copy_n(x.data() + begin, n, block.begin());
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(n), block.end(), -kInfinity);
    for (size_t i = 0; i < kBlock; ++i) block[i] = (block[i] - max) * scale;
    cpu.exp_row(block.data(), block.data(), kBlock);
    std::array<float, kLanes> lanes = {};
    for (size_t i = 0; i < kBlock; i += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) lanes[k] += block[i + k];
    }
    for (const float lane : lanes) sum += lane;
    if (output != nullptr) std::copy_n(block.begin(), n, output + begin);
  }
  return sum;
}

bool AnyAbove(std::span<const float, kLanes> x, float bound) {
  bool any = false;
  for (size_t k = 0; k < kLanes; ++k) any |= x[k] > bound;
  return any;
}

// The k largest, best first, ties by lower id: insertion into a list of k; few values get there.
void TopLogprobs(std::span<const float> x, int32_t k, float log_sum, Choice& choice) {
  int32_t n = 0;
  float worst = -kInfinity;
  for (size_t id = 0; id < x.size(); ++id) {
    if (n == k && id % kLanes == 0) {  // most blocks hold nothing that large
      while (id + kLanes <= x.size() && !AnyAbove(x.subspan(id).first<kLanes>(), worst)) {
        id += kLanes;
      }
      if (id == x.size()) break;
    }
    if (n == k && !(x[id] > worst)) continue;
    int32_t at = n < k ? n++ : k - 1;
    for (; at > 0 && x[id] > choice.top_logprobs[at - 1]; --at) {
      choice.top_logprobs[at] = choice.top_logprobs[at - 1];
      choice.top_tokens[at] = choice.top_tokens[at - 1];
    }
    choice.top_logprobs[at] = x[id];
    choice.top_tokens[at] = static_cast<int32_t>(id);
    worst = choice.top_logprobs[n - 1];
  }
  for (int32_t i = 0; i < n; ++i) choice.top_logprobs[i] -= log_sum;
  choice.num_top = n;
}

void Adjust(const Row& row, const Args& args, std::span<float> x) {
  for (int32_t i = row.occurrences_begin; i < row.occurrences_end; ++i) {
    const Occurrence& o = args.occurrences[i];
    float& value = x[o.token];
    value = value > 0 ? value / row.repetition_penalty : value * row.repetition_penalty;
    if (o.generated == 0) continue;
    value -= row.frequency_penalty * static_cast<float>(o.generated) + row.presence_penalty;
  }
  for (int32_t i = row.biases_begin; i < row.biases_end; ++i) {
    x[args.biases[i].token] += args.biases[i].value;
  }
  if (row.mask_row < 0) return;
  const size_t words = (x.size() + 63) / 64;
  const uint64_t* mask = args.masks + words * static_cast<size_t>(row.mask_row);
  for (size_t word = 0; word < words; ++word) {
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const size_t id = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (id < x.size()) x[id] = -kInfinity;
    }
  }
}

// A prefix of the tokens ordered by probability, ties by lower id: all whose bits exceed `bits`,
// and the first `ties` of those that equal them.
struct Prefix {
  uint32_t bits = 0;  // tokens of probability 0 are never kept
  int64_t ties = 0;
};

uint32_t BitsOf(float p) { return std::bit_cast<uint32_t>(p); }

// The shortest prefix that holds `count` tokens or has the mass `mass`, whichever comes first.
// Radix selection on the bits of the probabilities, which order as they do: 12, 10 and 10 bits.
Prefix Select(std::span<const float> p, int64_t count, double mass) {
  struct Level {
    int shift;
    int width;
  };
  constexpr std::array<Level, 3> kLevels = {{{20, 12}, {10, 10}, {0, 10}}};
  constexpr size_t kBins = 1024;  // p < 2, so its upper 12 bits are below it
  uint32_t known = 0;             // the bits above this level
  uint32_t known_mask = 0;        // where they are
  for (const Level& level : kLevels) {
    std::array<int64_t, kBins> counts = {};
    std::array<double, kBins> masses = {};
    for (const float value : p) {
      const uint32_t bits = BitsOf(value);
      if ((bits & known_mask) != known || bits == 0) continue;
      const uint32_t bin = (bits >> level.shift) & ((1U << level.width) - 1);
      ++counts[bin];
      masses[bin] += value;
    }
    size_t bin = kBins - 1;
    for (; bin > 0 && counts[bin] < count && masses[bin] < mass; --bin) {
      count -= counts[bin];
      mass -= masses[bin];
    }
    known |= static_cast<uint32_t>(bin) << level.shift;
    known_mask |= ((1U << level.width) - 1) << level.shift;
  }
  const float value = std::bit_cast<float>(known);
  const double needed = value > 0 ? std::ceil(mass / value) : 0;
  const auto by_mass = needed < 1e18 ? std::max<int64_t>(static_cast<int64_t>(needed), 1) : count;
  return {.bits = known, .ties = std::min(count, by_mass)};
}

constexpr int64_t kAllTokens = int64_t{1} << 62;

// Calls keep(id, p) for the tokens of a prefix in the order of their ids, until it returns false.
template <class Keep>
void ForEachKept(std::span<const float> p, Prefix prefix, Keep&& keep) {
  for (size_t id = 0; id < p.size(); ++id) {
    const uint32_t bits = BitsOf(p[id]);
    if (bits < prefix.bits || bits == 0) continue;
    if (bits == prefix.bits && prefix.ties-- <= 0) continue;
    if (!keep(static_cast<int32_t>(id), p[id])) return;
  }
}

double MassOf(std::span<const float> p, const Prefix& prefix) {
  double mass = 0;
  ForEachKept(p, prefix, [&mass](int32_t, float value) {
    mass += value;
    return true;
  });
  return mass;
}

bool Shorter(const Prefix& a, const Prefix& b) {
  return a.bits != b.bits ? a.bits > b.bits : a.ties < b.ties;
}

// p [vocab], the largest 1, not normalised.
int32_t Draw(std::span<const float> p, double sum, const Row& row) {
  Prefix kept{.bits = 1, .ties = kAllTokens};
  if (row.min_p > 0) kept.bits = std::max(BitsOf(row.min_p), 1U);
  if (row.top_k > 0 && row.top_k < static_cast<int32_t>(p.size())) {
    const Prefix top = Select(p, row.top_k, std::numeric_limits<double>::infinity());
    if (Shorter(top, kept)) kept = top;
  }
  double mass = kept.bits == 1 ? sum : MassOf(p, kept);
  if (row.top_p < 1) {
    const Prefix top = Select(p, kAllTokens, mass * static_cast<double>(row.top_p));
    if (Shorter(top, kept)) {
      kept = top;
      mass = MassOf(p, kept);
    }
  }
  const double target = Uniform(row.seed, row.index) * mass;
  double passed = 0;
  int32_t chosen = 0;
  ForEachKept(p, kept, [&](int32_t id, float value) {
    chosen = id;
    passed += value;
    return passed <= target;
  });
  return chosen;
}

// scratch [vocab].
Choice SampleRow(const Row& row, const Args& args, std::span<const float> logits,
                 std::span<float> scratch, const KernelTable& cpu) {
  Choice choice;
  const float max = Max(logits);
  if (!std::isfinite(max)) return {.token = Choice::kNotFinite};
  float log_sum = 0;
  if (row.top_logprobs >= 0) {
    log_sum = max + static_cast<float>(std::log(ExpSum(logits, max, 1, nullptr, cpu)));
    if (row.top_logprobs > 0) TopLogprobs(logits, row.top_logprobs, log_sum, choice);
  }
  std::span<const float> x = logits;
  float x_max = max;
  if (row.occurrences_begin < row.occurrences_end || row.biases_begin < row.biases_end ||
      row.mask_row >= 0) {
    std::ranges::copy(logits, scratch.begin());
    Adjust(row, args, scratch);
    x = scratch;
    x_max = Max(x);
    if (x_max == -kInfinity) return {.token = Choice::kAllMasked};
    if (!std::isfinite(x_max)) return {.token = Choice::kNotFinite};
  }
  if (row.temperature == 0) {
    choice.token = ArgMax(x, x_max);
  } else {
    const double sum = ExpSum(x, x_max, 1 / row.temperature, scratch.data(), cpu);
    choice.token = Draw(scratch, sum, row);
  }
  if (row.top_logprobs >= 0) choice.logprob = logits[choice.token] - log_sum;
  return choice;
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double Uniform(uint64_t seed, uint64_t index) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t word = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;  // 53 bits
  return static_cast<double>(word) * 0x1p-53;
}

size_t WorkspaceBytes(int64_t vocab, int num_threads) {
  return Arena::Align(static_cast<size_t>(vocab) * sizeof(float)) *
         static_cast<size_t>(num_threads);
}

Status Run(const Args& args, Context& context) {
  if (args.logits.rank != 2 || args.logits.dtype != DType::kF32) {
    return Err(Code::kInvalidArgument, "sample: logits must be [rows, vocab] F32, found rank {} {}",
               args.logits.rank, NameOf(args.logits.dtype));
  }
  const ArenaScope scope(context.arena);
  const int64_t vocab = args.logits.shape[1];
  const size_t stride = Arena::Align(static_cast<size_t>(vocab) * sizeof(float)) / sizeof(float);
  auto* scratch = static_cast<float*>(
      context.arena.Allocate(WorkspaceBytes(vocab, context.pool.num_threads())));
  const auto span = context.Mark(event::Op::kSample, -1);
  context.device.Execute(
      context.stream, [args, vocab, stride, scratch, &pool = context.pool, &cpu = context.cpu] {
        pool.ParallelFor(*args.num_rows, 1, [&](int64_t begin, int64_t end, int worker) {
          const std::span<float> mine(scratch + stride * static_cast<size_t>(worker),
                                      static_cast<size_t>(vocab));
          for (int64_t i = begin; i < end; ++i) {
            const std::span<const float> logits(args.logits.As<float>() + i * args.logits.stride[0],
                                                static_cast<size_t>(vocab));
            const Choice choice = SampleRow(args.rows[i], args, logits, mine, cpu);
            args.choices[i] = choice;
            args.sampled[args.rows[i].slot] = std::max(choice.token, 0);
          }
        });
      });
  return {};
}

}  // namespace fathom::ops::sample
