#include "ops/sparse_attention.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>
#include <random>

#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::attention {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::SameBits;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kPastTheEnd = 2147480000;

// One problem: f32 data by (sequence, position, head), its masks, and an f64 answer.
struct Problem {
  GqaShape shape;
  DType kv = DType::kF32;
  sparse::Policy policy;
  std::vector<sparse::Sequence> sequences;
  int32_t tile_queries = 16;
  int32_t tile_keys = 64;
  bool latent = false;

  int64_t v_dim() const { return shape.head_dim_v; }
  int32_t num_tokens() const {
    int32_t sum = 0;
    for (const auto& s : sequences) sum += s.queries;
    return sum;
  }
  std::vector<float> K(size_t i) const {
    return Random(static_cast<size_t>(sequences[i].keys) * shape.num_kv_heads * shape.head_dim,
                  static_cast<uint32_t>(10 + i));
  }
  std::vector<float> V(size_t i) const {
    return Random(static_cast<size_t>(sequences[i].keys) * shape.num_kv_heads * shape.head_dim_v,
                  static_cast<uint32_t>(50 + i));
  }
  std::vector<float> Learned(int64_t dim, uint32_t seed) const {
    return Random(static_cast<size_t>(policy.learned_rows * shape.num_kv_heads * dim), seed);
  }
  std::vector<float> Q() const {
    return Random(static_cast<size_t>(num_tokens()) * shape.num_heads * shape.head_dim, 7);
  }
  double Cached(float value) const {
    return kv == DType::kBF16 ? Bf16ToF32(F32ToBf16(value)) : value;
  }

  std::shared_ptr<const sparse::Plan> Tiles() const {
    auto plan = sparse::MakePlan({.num_heads = shape.num_heads,
                                  .num_kv_heads = shape.num_kv_heads,
                                  .tile_queries = tile_queries,
                                  .tile_keys = tile_keys},
                                 policy, sequences);
    EXPECT_TRUE(plan) << plan.error().message;
    return std::make_shared<const sparse::Plan>(*std::move(plan));
  }

  struct Exact {
    std::vector<double> out;
    std::vector<double> lse;
  };
  Exact Reference(const sparse::Plan& tiles) const {
    Exact exact;
    const int group = shape.num_heads / shape.num_kv_heads;
    const auto q = Q();
    const auto lk = Learned(shape.head_dim, 90), lv = Learned(v_dim(), 91);
    size_t token = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto k = K(i), v = V(i);
      for (int32_t j = 0; j < sequences[i].queries; ++j, ++token) {
        for (int32_t h = 0; h < shape.num_heads; ++h) {
          const float* query =
              q.data() + (static_cast<int64_t>(token) * shape.num_heads + h) * shape.head_dim;
          std::vector<double> scores;
          std::vector<const float*> values;
          const auto add = [&](const float* keys, const float* vals, int64_t row) {
            const int64_t at = row * shape.num_kv_heads + h / group;
            double sum = 0;
            for (int d = 0; d < shape.head_dim; ++d) {
              sum += double{query[d]} * Cached(keys[at * shape.head_dim + d]);
            }
            scores.push_back(sum * shape.softmax_scale);
            values.push_back(vals + at * (latent ? shape.head_dim : v_dim()));
          };
          const auto& heads = policy.heads;
          const auto role = heads[heads.size() == 1 ? 0 : static_cast<size_t>(h)].role;
          for (int32_t r = 0; r < policy.learned_rows && role != sparse::HeadRole::kOff; ++r) {
            add(lk.data(), lv.data(), r);
          }
          for (int32_t key = 0; key < sequences[i].keys; ++key) {
            if (!tiles.Sees(static_cast<int32_t>(i), h, j, key)) continue;
            add(k.data(), latent ? k.data() : v.data(), key);
          }
          Append(scores, values, &exact);
        }
      }
    }
    return exact;
  }

  void Append(const std::vector<double>& scores, const std::vector<const float*>& values,
              Exact* exact) const {
    const double none = -std::numeric_limits<double>::infinity();
    const double max = scores.empty() ? none : *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> out(static_cast<size_t>(v_dim()), 0.0);
    for (size_t t = 0; t < scores.size(); ++t) {
      const double p = std::exp(scores[t] - max);
      sum += p;
      for (size_t d = 0; d < out.size(); ++d) out[d] += p * Cached(values[t][d]);
    }
    for (const double o : out) exact->out.push_back(scores.empty() ? 0 : o / sum);
    exact->lse.push_back(scores.empty() ? none : max + std::log(sum));
  }
};

struct Outcome {
  std::vector<float> out;
  std::vector<float> lse;
};

// Pages that no listed tile touches are not in the page table at all.
struct Memory {
  CacheView cache;
  StepInputs inputs;

  Memory(Rig& rig, const Problem& problem, const sparse::Plan* tiles) {
    const GqaShape& s = problem.shape;
    cache.format = problem.latent ? *MakeMlaFormat(1, s.head_dim_v, s.head_dim - s.head_dim_v,
                                                   problem.kv, 64, RopeState::kNone)
                                  : *MakeGqaFormat(1, s.num_kv_heads, s.head_dim, s.head_dim_v,
                                                   problem.kv, 64, RopeState::kNone);
    const int32_t page_tokens = cache.format.page_tokens;
    int32_t stride = 1, pages = 0;
    for (const auto& q : problem.sequences) stride = std::max(stride, q.keys / page_tokens + 2);
    std::vector<int32_t> table(problem.sequences.size() * static_cast<size_t>(stride), kPastTheEnd);
    std::vector<int32_t> starts = {0}, lengths;
    for (size_t i = 0; i < problem.sequences.size(); ++i) {
      starts.push_back(starts.back() + problem.sequences[i].queries);
      lengths.push_back(problem.sequences[i].keys);
      for (int32_t p = 0; p * page_tokens < problem.sequences[i].keys; ++p) {
        if (tiles != nullptr && !Touched(*tiles, static_cast<int32_t>(i), p * page_tokens))
          continue;
        table[i * static_cast<size_t>(stride) + static_cast<size_t>(p)] = ++pages;
      }
    }
    cache.num_pages = pages + 1;
    std::vector<float> memory(static_cast<size_t>(cache.num_pages) * cache.format.page_bytes / 4,
                              kNan);
    auto* bytes = reinterpret_cast<std::byte*>(memory.data());
    for (size_t i = 0; i < problem.sequences.size(); ++i) {
      const auto k = problem.K(i), v = problem.V(i);
      for (int32_t t = 0; t < problem.sequences[i].keys; ++t) {
        const int32_t page =
            table[i * static_cast<size_t>(stride) + static_cast<size_t>(t / page_tokens)];
        if (page == kPastTheEnd) continue;
        std::byte* const at = bytes + int64_t{page} * cache.format.page_bytes;
        for (int32_t h = 0; h < s.num_kv_heads; ++h) {
          const float* key = k.data() + (int64_t{t} * s.num_kv_heads + h) * s.head_dim;
          const int32_t in_page = t % page_tokens;
          if (problem.latent) {
            Put(*cache.format.Find(PlaneKind::kC), at, in_page, h, key);
            Put(*cache.format.Find(PlaneKind::kKPe), at, in_page, h, key + s.head_dim_v);
          } else {
            Put(*cache.format.Find(PlaneKind::kK), at, in_page, h, key);
            Put(*cache.format.Find(PlaneKind::kV), at, in_page, h,
                v.data() + (int64_t{t} * s.num_kv_heads + h) * s.head_dim_v);
          }
        }
      }
    }
    cache.base = rig.Upload(memory);
    const auto count = static_cast<int32_t>(problem.sequences.size());
    inputs.bucket = {.num_tokens = starts.back(),
                     .num_sequences = count,
                     .max_query_tokens = starts.back(),
                     .max_kv_tokens = 4096};
    inputs.live_counts = rig.Upload(std::vector<int32_t>{starts.back(), count, 0});
    inputs.query_starts = rig.Upload(starts);
    inputs.kv_lengths = rig.Upload(lengths);
    inputs.roles = rig.Upload(std::vector<Role>(problem.sequences.size(), Role::kPrompt));
    inputs.page_tables[0] = rig.Upload(table);
    inputs.page_table_stride[0] = stride;
  }

  static bool Touched(const sparse::Plan& tiles, int32_t sequence, int32_t first_key) {
    for (const sparse::TileRow& row : tiles.rows) {
      if (row.sequence != sequence) continue;
      for (const sparse::Tile& tile : tiles.TilesOf(row)) {
        if (tile.key <= first_key && first_key < tile.key + tiles.shape.tile_keys) return true;
      }
    }
    return false;
  }

  static void Put(const Plane& plane, std::byte* page, int32_t token, int32_t head,
                  const float* values) {
    std::byte* const to = page + plane.offset_bytes + head * plane.head_stride_bytes +
                          token * plane.token_stride_bytes;
    for (int32_t d = 0; d < plane.dim; ++d) {
      if (plane.dtype == DType::kBF16) {
        reinterpret_cast<uint16_t*>(to)[d] = F32ToBf16(values[d]);
      } else {
        reinterpret_cast<float*>(to)[d] = values[d];
      }
    }
  }
};

const void* UploadAs(Rig& rig, DType dtype, const std::vector<float>& values) {
  if (values.empty()) return nullptr;
  if (dtype == DType::kBF16) return rig.Upload(ops::testing::ToBf16(values));
  return rig.Upload(values);
}

TensorView Heads(const void* data, int64_t tokens, int64_t heads, int64_t dim) {
  return TensorView::Contiguous(const_cast<void*>(data), DType::kF32, {tokens, heads, dim});
}

Outcome RunSparse(Rig& rig, const Problem& problem) {
  const auto tiles = problem.Tiles();
  const GqaShape& s = problem.shape;
  const Memory memory(rig, problem, tiles.get());
  const auto rows = static_cast<size_t>(problem.num_tokens()) * static_cast<size_t>(s.num_heads);
  SparseArgs args;
  args.q = Heads(rig.Upload(problem.Q()), problem.num_tokens(), s.num_heads, s.head_dim);
  args.out = Heads(rig.Upload(std::vector<float>(rows * static_cast<size_t>(s.head_dim_v), kNan)),
                   problem.num_tokens(), s.num_heads, s.head_dim_v);
  args.lse = rig.Upload(std::vector<float>(rows, kNan));
  args.cache = memory.cache;
  args.learned_k = UploadAs(rig, problem.kv, problem.Learned(s.head_dim, 90));
  args.learned_v = UploadAs(rig, problem.kv, problem.Learned(s.head_dim_v, 91));
  const auto plan = MakePlan(s, memory.cache.format, tiles, rig.threads());
  EXPECT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(attention::Run(*plan, s, args, memory.inputs, rig.context()));
  return {rig.Download<float>(args.out.data, rows * static_cast<size_t>(s.head_dim_v)),
          rig.Download<float>(args.lse, rows)};
}

const std::vector<sparse::Sequence> kSequences = {{1, 700}, {90, 300}, {0, 50}, {3, 257}, {64, 64}};

Problem Make(Precision precision, DType kv) {
  return {.shape = {6, 2, 64, 64, 0.125F, precision}, .kv = kv, .sequences = kSequences};
}

std::vector<Problem> Problems(Precision precision, DType kv) {
  std::vector<Problem> problems;
  Problem window = Make(precision, kv);
  window.policy.heads = {{sparse::HeadRole::kLocal, 100, 5}};
  problems.push_back(window);
  window.policy.learned_rows = 9;
  window.policy.causal = false;
  window.tile_keys = 128;
  problems.push_back(window);
  Problem mixed = Make(precision, kv);
  mixed.policy.heads = {{sparse::HeadRole::kGlobal}, {sparse::HeadRole::kLocal, 40, 0},
                        {sparse::HeadRole::kOff},    {sparse::HeadRole::kBlocks},
                        {sparse::HeadRole::kBlocks}, {sparse::HeadRole::kLocal, 0, 3}};
  mixed.policy.learned_rows = 3;
  std::mt19937 random(3);
  for (const auto& s : mixed.sequences) {
    mixed.policy.anchors.Add(s.keys > 20 ? std::vector<int32_t>{7, 11, 20}
                                         : std::vector<int32_t>{});
    for (int32_t q = 0; q < s.queries; ++q) {
      std::vector<int32_t> blocks;  // none for some queries
      for (int32_t b = 0; b * 64 < s.keys; ++b) {
        if (random() % 3 == 0) blocks.push_back(b);
      }
      mixed.policy.blocks.Add(blocks);
    }
  }
  problems.push_back(mixed);
  mixed.tile_keys = 256;
  mixed.tile_queries = 1;
  problems.push_back(mixed);
  Problem mla = Make(precision, kv);
  mla.latent = true;
  mla.shape = {4, 1, 80, 64, 0.11F, precision};
  mla.policy.heads = {{sparse::HeadRole::kLocal, 64, 32}};
  problems.push_back(mla);
  return problems;
}

TEST(SparseAttention, MatchesF64AndReadsNoOtherPage) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    for (const DType kv : {DType::kF32, DType::kBF16}) {
      for (const Problem& problem : Problems(precision, kv)) {
        Rig rig({.threads = 2});
        const Outcome found = RunSparse(rig, problem);
        const Problem::Exact exact = problem.Reference(*problem.Tiles());
        const double tolerance =
            precision == Precision::kF32 ? tolerances::kF32Attention : tolerances::kBf16Attention;
        EXPECT_LE(RelativeError(found.out, exact.out), tolerance);
        for (size_t i = 0; i < exact.lse.size(); ++i) {
          if (exact.lse[i] == -std::numeric_limits<double>::infinity()) {
            EXPECT_EQ(found.lse[i], -std::numeric_limits<float>::infinity());
          } else {
            EXPECT_NEAR(found.lse[i], exact.lse[i], tolerance * std::max(1.0, exact.lse[i]));
          }
        }
      }
    }
  }
}

TEST(SparseAttention, BitsDependOnTheSequenceAlone) {
  for (const Problem& problem : Problems(Precision::kBF16, DType::kBF16)) {
    Rig one;
    const Outcome expected = RunSparse(one, problem);
    for (const int threads : {2, 5}) {
      Rig rig({.threads = threads});
      EXPECT_TRUE(SameBits(expected.out, RunSparse(rig, problem).out));
    }
    Rig late({.deferred = true, .threads = 3});
    const Outcome deferred = RunSparse(late, problem);
    EXPECT_TRUE(SameBits(expected.out, deferred.out));
    EXPECT_TRUE(SameBits(expected.lse, deferred.lse));
  }
}

// Without a mask but the causal one it is the dense op, bit for bit.
TEST(SparseAttention, GlobalHeadsEqualTheDenseOp) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Problem problem = Make(precision, DType::kBF16);
    problem.policy.heads = {{sparse::HeadRole::kGlobal}};
    Rig rig({.threads = 2});
    const Outcome sparse = RunSparse(rig, problem);
    const GqaShape& s = problem.shape;
    const Memory memory(rig, problem, nullptr);
    GqaArgs args;
    args.q = Heads(rig.Upload(problem.Q()), problem.num_tokens(), s.num_heads, s.head_dim);
    args.out = Heads(rig.Upload(std::vector<float>(sparse.out.size(), kNan)), problem.num_tokens(),
                     s.num_heads, s.head_dim_v);
    args.cache = memory.cache;
    const auto plan = MakePlan(s, memory.cache.format, memory.inputs.bucket, rig.threads());
    ASSERT_TRUE(plan);
    ASSERT_TRUE(attention::Run(*plan, s, args, memory.inputs, rig.context()));
    EXPECT_TRUE(SameBits(sparse.out, rig.Download<float>(args.out.data, sparse.out.size())));
  }
}

// Even and odd blocks by themselves, merged: the whole, up to rounding; and one partial is itself.
TEST(MergePartials, PartsMakeTheWhole) {
  Problem whole = Make(Precision::kF32, DType::kF32);
  whole.policy.heads = {{sparse::HeadRole::kBlocks}};
  Problem even = whole, odd = whole;
  for (const auto& s : whole.sequences) {
    for (int32_t q = 0; q < s.queries; ++q) {
      std::vector<int32_t> blocks[3];
      for (int32_t b = 0; b * 64 < s.keys; ++b) {
        blocks[b % 2].push_back(b);
        blocks[2].push_back(b);
      }
      even.policy.blocks.Add(blocks[0]);
      odd.policy.blocks.Add(blocks[1]);
      whole.policy.blocks.Add(blocks[2]);
    }
  }
  Rig rig;
  const Outcome a = RunSparse(rig, even), b = RunSparse(rig, odd), all = RunSparse(rig, whole);
  const auto rows = static_cast<int64_t>(all.lse.size());
  const auto merge = [&](const std::vector<Partial>& parts) {
    Outcome merged{std::vector<float>(all.out.size(), kNan), std::vector<float>(all.lse.size())};
    MergePartials(rig.cpu(), parts, rows, 64, merged.out.data(), merged.lse.data());
    return merged;
  };
  const Partial pa{a.out.data(), a.lse.data()}, pb{b.out.data(), b.lse.data()};
  const std::vector<double> expected(all.out.begin(), all.out.end());
  const Outcome merged = merge({pa, pb});
  EXPECT_LE(RelativeError(merged.out, expected), tolerances::kF32Attention);
  EXPECT_LE(RelativeError(merged.lse, std::vector<double>(all.lse.begin(), all.lse.end())),
            tolerances::kF32Attention);
  EXPECT_LE(RelativeError(merge({pb, pa}).out, expected), tolerances::kF32Attention);
  EXPECT_TRUE(SameBits(merged.out, merge({pa, pb}).out));
  EXPECT_TRUE(SameBits(a.out, merge({pa}).out));
  EXPECT_TRUE(SameBits(a.lse, merge({pa}).lse));
  const Outcome nothing = merge({});
  EXPECT_EQ(nothing.out[0], 0);
  EXPECT_EQ(nothing.lse[0], -std::numeric_limits<float>::infinity());
}

TEST(SparseAttention, ErrorsNameWhatIsWrong) {
  Problem problem = Make(Precision::kF32, DType::kF32);
  problem.policy.heads = {{sparse::HeadRole::kGlobal}};
  const auto tiles = problem.Tiles();
  const auto format = *MakeGqaFormat(1, 2, 64, 64, DType::kF32, 64, RopeState::kNone);
  GqaShape other = problem.shape;
  other.num_heads = 8;
  EXPECT_THAT(MakePlan(other, format, tiles, 1).error().message,
              HasSubstr("the tile lists are for 6 over 2"));
  other = problem.shape;
  other.head_dim = 32;
  EXPECT_FALSE(MakePlan(other, format, tiles, 1));
  Problem mla = Problems(Precision::kF32, DType::kF32).back();
  mla.policy.learned_rows = 1;
  const auto latent = *MakeMlaFormat(1, 64, 16, DType::kF32, 64, RopeState::kNone);
  EXPECT_THAT(MakePlan(mla.shape, latent, mla.Tiles(), 1).error().message,
              HasSubstr("learned rows over latents"));
}

}  // namespace
}  // namespace fathom::ops::attention
