#include "ops/attention.h"

#include <limits>
#include <map>

#include "ops/kv_cache.h"
#include "ops/test_rig.h"
#include "tests/tolerances.h"

namespace fathom::ops::attention {
namespace {

using ops::testing::Random;
using ops::testing::RelativeError;
using ops::testing::Rig;
using ops::testing::RigOptions;
using ops::testing::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kPastTheEnd = 2147480000;

// A sequence of a test: all its tokens' keys are given; the queries of the last `queries` are run.
struct Sequence {
  uint32_t seed = 0;  // its content
  int32_t length = 0;
  int32_t queries = 0;
  Role role = Role::kGenerated;
};

// A layer's cache whose unused rows are NaN, and the step's inputs, in device memory.
struct Step {
  CacheView cache;
  StepInputs inputs;
  int32_t num_tokens = 0;

  // Pages are handed out backwards and interleaved over the sequences: a page table is no identity.
  Step(Rig& rig, const CacheFormat& format, const std::vector<Sequence>& sequences) {
    std::vector<int32_t> starts = {0}, kv, positions, pages;
    std::vector<Role> roles;
    int32_t stride = 0, total = 0;
    for (const Sequence& s : sequences) {
      stride = std::max(stride, (s.length + format.page_tokens - 1) / format.page_tokens + 1);
    }
    for (const Sequence& s : sequences) {
      starts.push_back(starts.back() + s.queries);
      kv.push_back(s.length);
      roles.push_back(s.role);
      for (int32_t i = s.length - s.queries; i < s.length; ++i) positions.push_back(i);
    }
    std::vector<int32_t> table(sequences.size() * static_cast<size_t>(stride), kPastTheEnd);
    for (int32_t p = 0; p < stride; ++p) {
      for (size_t i = 0; i < sequences.size(); ++i) {
        if (p * format.page_tokens < sequences[i].length) {
          table[i * static_cast<size_t>(stride) + static_cast<size_t>(p)] = total++;
        }
      }
    }
    for (int32_t& page : table) {
      if (page != kPastTheEnd) page = total - page;  // page 0 stays unused
    }
    cache.format = format;
    cache.num_pages = total + 1;
    num_tokens = starts.back();
    const size_t floats = static_cast<size_t>(cache.num_pages) * format.page_bytes / 4;
    cache.base = rig.Upload(std::vector<float>(floats, kNan));  // NaN as bf16 pairs too
    inputs.bucket = {.num_tokens = num_tokens + 3,
                     .num_sequences = static_cast<int32_t>(sequences.size()) + 1,
                     .num_logits = 1,
                     .max_query_tokens = num_tokens,
                     .max_kv_tokens = 4096};
    inputs.live_counts =
        rig.Upload(std::vector<int32_t>{num_tokens, static_cast<int32_t>(sequences.size()), 0});
    inputs.positions = rig.Upload(positions);
    inputs.query_starts = rig.Upload(starts);
    inputs.kv_lengths = rig.Upload(kv);
    inputs.roles = rig.Upload(roles);
    inputs.page_tables[0] = rig.Upload(table);
    inputs.page_table_stride[0] = stride;
  }
};

// Fills a sequence's pages as another step would: through the writer, all tokens at once.
template <class Write>
void Fill(Rig& rig, Step& step, const std::vector<Sequence>& sequences, const Write& write) {
  StepInputs fill = step.inputs;
  std::vector<int32_t> starts = {0}, positions;
  for (const Sequence& s : sequences) {
    starts.push_back(starts.back() + s.length);
    for (int32_t i = 0; i < s.length; ++i) positions.push_back(i);
  }
  fill.query_starts = rig.Upload(starts);
  fill.positions = rig.Upload(positions);
  fill.live_counts =
      rig.Upload(std::vector<int32_t>{starts.back(), static_cast<int32_t>(sequences.size()), 0});
  write(fill, starts.back());
}

std::vector<float> PerSequence(const std::vector<Sequence>& sequences, int64_t dim, uint32_t salt,
                               bool queries_only) {
  std::vector<float> all;
  for (const Sequence& s : sequences) {
    const auto values = Random(static_cast<size_t>(s.length * dim), s.seed * 16 + salt);
    const int64_t skip = queries_only ? (s.length - s.queries) * dim : 0;
    all.insert(all.end(), values.begin() + skip, values.end());
  }
  return all;
}

double AsCached(float value, DType dtype) {
  return dtype == DType::kBF16 ? Bf16ToF32(F32ToBf16(value)) : value;
}

// softmax(scale q k) v of one query over `keys` keys, in f64.
std::vector<double> Softmax(const std::vector<double>& scores, const std::vector<double>& v,
                            int64_t dim) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(dim), 0.0);
  for (size_t t = 0; t < scores.size(); ++t) {
    const double p = std::exp(scores[t] - max);
    sum += p;
    for (size_t d = 0; d < out.size(); ++d) out[d] += p * v[t * out.size() + d];
  }
  for (double& o : out) o /= sum;
  return out;
}

struct Gqa {
  GqaShape shape;
  DType kv;

  std::vector<float> Run(Rig& rig, const std::vector<Sequence>& sequences,
                         int page_tokens = 32) const {
    const auto format = MakeGqaFormat(1, shape.num_kv_heads, shape.head_dim, shape.head_dim_v, kv,
                                      page_tokens, RopeState::kNone);
    Step step(rig, *format, sequences);
    Fill(rig, step, sequences, [&](const StepInputs& inputs, int64_t tokens) {
      kv_cache::GqaArgs args;
      const auto k = PerSequence(sequences, shape.num_kv_heads * shape.head_dim, 1, false);
      const auto v = PerSequence(sequences, shape.num_kv_heads * shape.head_dim_v, 2, false);
      args.q =
          TensorView::Contiguous(nullptr, DType::kF32, {tokens, shape.num_heads, shape.head_dim});
      args.k = TensorView::Contiguous(rig.Upload(k), DType::kF32,
                                      {tokens, shape.num_kv_heads, shape.head_dim});
      args.v = TensorView::Contiguous(rig.Upload(v), DType::kF32,
                                      {tokens, shape.num_kv_heads, shape.head_dim_v});
      args.cache = step.cache;
      EXPECT_TRUE(kv_cache::WriteGqa(args, inputs, rig.context()));
    });
    const auto q = PerSequence(sequences, shape.num_heads * shape.head_dim, 3, true);
    const int64_t out_elements = int64_t{step.num_tokens} * shape.num_heads * shape.head_dim_v;
    GqaArgs args;
    args.q = TensorView::Contiguous(rig.Upload(q), DType::kF32,
                                    {step.num_tokens, shape.num_heads, shape.head_dim});
    args.out = TensorView::Contiguous(
        rig.Upload(std::vector<float>(static_cast<size_t>(out_elements), kNan)), DType::kF32,
        {step.num_tokens, shape.num_heads, shape.head_dim_v});
    args.cache = step.cache;
    const auto plan = MakePlan(shape, *format, step.inputs.bucket, rig.threads());
    EXPECT_TRUE(plan);
    EXPECT_TRUE(attention::Run(*plan, shape, args, step.inputs, rig.context()));
    return rig.Download<float>(args.out.data, static_cast<size_t>(out_elements));
  }

  std::vector<double> Exact(const std::vector<Sequence>& sequences) const {
    std::vector<double> out;
    for (const Sequence& s : sequences) {
      const auto k = PerSequence({s}, shape.num_kv_heads * shape.head_dim, 1, false);
      const auto v = PerSequence({s}, shape.num_kv_heads * shape.head_dim_v, 2, false);
      const auto q = PerSequence({s}, shape.num_heads * shape.head_dim, 3, false);
      for (int32_t i = s.length - s.queries; i < s.length; ++i) {
        for (int h = 0; h < shape.num_heads; ++h) {
          const int kv_head = h / (shape.num_heads / shape.num_kv_heads);
          std::vector<double> scores, values;
          for (int32_t t = 0; t <= i; ++t) {
            double sum = 0;
            for (int d = 0; d < shape.head_dim; ++d) {
              sum +=
                  double{q[static_cast<size_t>((i * shape.num_heads + h) * shape.head_dim + d)]} *
                  AsCached(k[static_cast<size_t>(
                               (t * shape.num_kv_heads + kv_head) * shape.head_dim + d)],
                           kv);
            }
            scores.push_back(sum * shape.softmax_scale);
            for (int d = 0; d < shape.head_dim_v; ++d) {
              values.push_back(AsCached(
                  v[static_cast<size_t>((t * shape.num_kv_heads + kv_head) * shape.head_dim_v + d)],
                  kv));
            }
          }
          const auto o = Softmax(scores, values, shape.head_dim_v);
          out.insert(out.end(), o.begin(), o.end());
        }
      }
    }
    return out;
  }
};

const std::vector<Sequence> kMixed = {{1, 5, 5, Role::kPrompt},      {2, 700, 1, Role::kGenerated},
                                      {3, 300, 60, Role::kPrompt},   {4, 1, 1, Role::kPrompt},
                                      {5, 257, 3, Role::kGenerated}, {6, 256, 1, Role::kGenerated}};

TEST(GqaAttention, MatchesF64OnEveryIsaPrecisionAndCacheType) {
  std::map<std::pair<int, DType>, std::vector<double>> exact_of;  // slow, and the same for each
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const DType kv : {DType::kF32, DType::kBF16}) {
        for (const GqaShape& shape : {GqaShape{6, 2, 64, 64, 0.125F, precision},
                                      {3, 3, 24, 40, 0.2F, precision},
                                      {7, 1, 128, 128, 0.0883F, precision}}) {
          const Gqa gqa{shape, kv};
          Rig rig({.threads = 2, .isa = isa});
          EXPECT_LE(
              RelativeError(gqa.Run(rig, kMixed), gqa.Exact(kMixed)),
              precision == Precision::kF32 ? tolerances::kF32Attention : tolerances::kBf16Attention)
              << isa << " " << NameOf(kv) << " heads " << shape.num_heads;
        }
      }
    }
  }
}

// The same sequence alone, in a batch, on other page sizes, with other thread counts, on a device
// that runs late, in one chunk or token by token, in either role.
TEST(GqaAttention, ResultsDependOnTheSequenceAlone) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      const Gqa gqa{{6, 2, 64, 64, 0.125F, precision}, DType::kBF16};
      Rig one({.isa = isa});
      const auto batch = gqa.Run(one, kMixed);
      for (const int threads : {2, 5}) {
        Rig rig({.threads = threads, .isa = isa});
        EXPECT_TRUE(SameBits(batch, gqa.Run(rig, kMixed)));
      }
      Rig late({.deferred = true, .threads = 2, .isa = isa});
      EXPECT_TRUE(SameBits(batch, gqa.Run(late, kMixed)));
      for (const int page_tokens : {16, 64, 128}) {
        EXPECT_TRUE(SameBits(batch, gqa.Run(one, kMixed, page_tokens)));
      }
      size_t at = 0;
      for (const Sequence& s : kMixed) {
        const size_t count = static_cast<size_t>(s.queries) * 6 * 64;
        const std::vector<float> part(batch.begin() + static_cast<int64_t>(at),
                                      batch.begin() + static_cast<int64_t>(at + count));
        Rig split({.threads = 4, .isa = isa});  // one item and several spans: spans are split
        EXPECT_TRUE(SameBits(part, gqa.Run(split, {s})));
        Sequence last = s;
        last.queries = 1;
        last.role = Role::kGenerated;
        EXPECT_TRUE(
            SameBits(std::vector<float>(part.end() - 6 * 64, part.end()), gqa.Run(one, {last})));
        at += count;
      }
    }
  }
}

struct Mla {
  MlaShape shape;
  DType kv;

  int64_t q_dim() const { return int64_t{shape.nope_dim} + shape.rope_dim; }
  int64_t kv_dim() const { return int64_t{shape.kv_lora_rank} + shape.rope_dim; }
  std::vector<float> KvB() const {
    return Random(
        static_cast<size_t>(shape.num_heads * (shape.nope_dim + shape.v_dim) * shape.kv_lora_rank),
        99, 1 / std::sqrt(static_cast<float>(shape.kv_lora_rank)));
  }

  std::vector<float> Run(Rig& rig, const std::vector<Sequence>& sequences,
                         int page_tokens = 32) const {
    const auto format =
        MakeMlaFormat(1, shape.kv_lora_rank, shape.rope_dim, kv, page_tokens, RopeState::kNone);
    Step step(rig, *format, sequences);
    const std::vector<float> ones(static_cast<size_t>(shape.kv_lora_rank), 1.0F);
    Fill(rig, step, sequences, [&](const StepInputs& inputs, int64_t tokens) {
      kv_cache::MlaArgs args;
      args.q = TensorView::Contiguous(nullptr, DType::kF32, {tokens, shape.num_heads, q_dim()});
      args.kv_a = TensorView::Contiguous(rig.Upload(PerSequence(sequences, kv_dim(), 1, false)),
                                         DType::kF32, {tokens, kv_dim()});
      args.norm_weight = ones.data();
      args.cache = step.cache;
      EXPECT_TRUE(kv_cache::WriteMla(args, inputs, rig.context()));
    });
    auto kv_b = KvB();
    linear::WeightSource source;
    source.weight = TensorView::Contiguous(
        kv_b.data(), DType::kF32,
        {int64_t{shape.num_heads} * (shape.nope_dim + shape.v_dim), shape.kv_lora_rank});
    const auto weights = PackMlaWeights(source, shape, rig.device(), rig.cpu());
    EXPECT_TRUE(weights);
    EXPECT_EQ(weights->Bytes(), PackedMlaBytes(DType::kF32, shape));
    const auto q = PerSequence(sequences, shape.num_heads * q_dim(), 3, true);
    const int64_t out_elements = int64_t{step.num_tokens} * shape.num_heads * shape.v_dim;
    MlaArgs args;
    args.q = TensorView::Contiguous(rig.Upload(q), DType::kF32,
                                    {step.num_tokens, shape.num_heads, q_dim()});
    args.out = TensorView::Contiguous(
        rig.Upload(std::vector<float>(static_cast<size_t>(out_elements), kNan)), DType::kF32,
        {step.num_tokens, shape.num_heads, shape.v_dim});
    args.cache = step.cache;
    const auto plan = MakePlan(shape, *format, step.inputs.bucket, rig.threads());
    EXPECT_TRUE(plan);
    EXPECT_TRUE(attention::Run(*plan, shape, *weights, args, step.inputs, rig.context()));
    return rig.Download<float>(args.out.data, static_cast<size_t>(out_elements));
  }

  std::vector<double> Exact(const std::vector<Sequence>& sequences) const {
    std::vector<double> out;
    const auto kv_b = KvB();
    const int64_t rank = shape.kv_lora_rank;
    for (const Sequence& s : sequences) {
      auto cached = PerSequence({s}, kv_dim(), 1, false);
      std::vector<double> c;  // [length, kv_dim] as cached: normed latents, shared keys
      for (int32_t t = 0; t < s.length; ++t) {
        const float* row = cached.data() + t * kv_dim();
        double mean = 0;
        for (int64_t d = 0; d < rank; ++d) mean += double{row[d]} * row[d];
        const double norm = 1 / std::sqrt(mean / static_cast<double>(rank) + 1e-6);
        for (int64_t d = 0; d < kv_dim(); ++d) {
          c.push_back(AsCached(static_cast<float>(d < rank ? row[d] * norm : row[d]), kv));
        }
      }
      const auto q = PerSequence({s}, shape.num_heads * q_dim(), 3, false);
      for (int32_t i = s.length - s.queries; i < s.length; ++i) {
        for (int h = 0; h < shape.num_heads; ++h) {
          const float* qi = q.data() + (i * shape.num_heads + h) * q_dim();
          const float* uk = kv_b.data() + h * (shape.nope_dim + shape.v_dim) * rank;
          const float* uv = uk + shape.nope_dim * rank;
          std::vector<double> q_lat(static_cast<size_t>(rank), 0.0);
          for (int d = 0; d < shape.nope_dim; ++d) {
            for (int64_t r = 0; r < rank; ++r) {
              q_lat[static_cast<size_t>(r)] += double{qi[d]} * uk[d * rank + r];
            }
          }
          std::vector<double> scores, latents;
          for (int32_t t = 0; t <= i; ++t) {
            const double* ct = c.data() + t * kv_dim();
            double sum = 0;
            for (int64_t r = 0; r < rank; ++r) sum += q_lat[static_cast<size_t>(r)] * ct[r];
            for (int d = 0; d < shape.rope_dim; ++d) {
              sum += double{qi[shape.nope_dim + d]} * ct[rank + d];
            }
            scores.push_back(sum * shape.softmax_scale);
            latents.insert(latents.end(), ct, ct + rank);
          }
          const auto o_lat = Softmax(scores, latents, rank);
          for (int d = 0; d < shape.v_dim; ++d) {
            double sum = 0;
            for (int64_t r = 0; r < rank; ++r) {
              sum += o_lat[static_cast<size_t>(r)] * uv[d * rank + r];
            }
            out.push_back(sum);
          }
        }
      }
    }
    return out;
  }
};

const std::vector<Sequence> kMlaMixed = {{1, 5, 5, Role::kPrompt},
                                         {2, 400, 1, Role::kGenerated},
                                         {3, 300, 140, Role::kPrompt},
                                         {5, 257, 3, Role::kGenerated},
                                         {6, 70, 1, Role::kGenerated}};

TEST(MlaAttention, BothPathsMatchF64OnEveryIsaPrecisionAndCacheType) {
  std::map<std::pair<int, DType>, std::vector<double>> exact_of;  // slow, and the same for each
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const DType kv : {DType::kF32, DType::kBF16}) {
        for (const MlaShape& shape : {MlaShape{3, 128, 32, 16, 48, 0.15F, precision},
                                      MlaShape{2, 64, 72, 8, 80, 0.12F, precision}}) {
          const Mla mla{shape, kv};
          Rig rig({.threads = 2, .isa = isa});
          EXPECT_LE(
              RelativeError(mla.Run(rig, kMlaMixed), mla.Exact(kMlaMixed)),
              precision == Precision::kF32 ? tolerances::kF32Attention : tolerances::kBf16Attention)
              << isa << " " << NameOf(kv) << " heads " << shape.num_heads;
        }
      }
    }
  }
}

TEST(MlaAttention, ResultsDependOnTheSequenceAndTheRoleAlone) {
  for (const std::string& isa : ops::testing::RunnableIsas()) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      const Mla mla{{3, 128, 32, 16, 48, 0.15F, precision}, DType::kBF16};
      constexpr int kRow = 3 * 48;
      Rig one({.isa = isa});
      const auto batch = mla.Run(one, kMlaMixed);
      for (const int threads : {2, 5}) {
        Rig rig({.threads = threads, .isa = isa});
        EXPECT_TRUE(SameBits(batch, mla.Run(rig, kMlaMixed)));
      }
      Rig late({.deferred = true, .threads = 2, .isa = isa});
      EXPECT_TRUE(SameBits(batch, mla.Run(late, kMlaMixed)));
      for (const int page_tokens : {16, 128}) {
        EXPECT_TRUE(SameBits(batch, mla.Run(one, kMlaMixed, page_tokens)));
      }
      size_t at = 0;
      for (const Sequence& s : kMlaMixed) {
        const size_t count = static_cast<size_t>(s.queries) * kRow;
        const std::vector<float> part(batch.begin() + static_cast<int64_t>(at),
                                      batch.begin() + static_cast<int64_t>(at + count));
        Rig split({.threads = 4, .isa = isa});
        EXPECT_TRUE(SameBits(part, mla.Run(split, {s})));
        Sequence last = s;  // another chunking of the same tokens
        last.queries = 1;
        EXPECT_TRUE(
            SameBits(std::vector<float>(part.end() - kRow, part.end()), mla.Run(one, {last})));
        at += count;
      }
    }
  }
}

// Query blocks of several items and the windows of many generated tokens.
TEST(MlaAttention, LongChunksAndManyGeneratedTokens) {
  const std::vector<Sequence> sequences = {{7, 600, 560, Role::kPrompt},
                                           {8, 150, 150, Role::kGenerated}};
  const Mla mla{{2, 64, 16, 8, 16, 0.2F, Precision::kF32}, DType::kF32};
  Rig rig({.threads = 2});
  const auto found = mla.Run(rig, sequences);
  EXPECT_LE(RelativeError(found, mla.Exact(sequences)), tolerances::kF32Attention);
  Rig one;
  EXPECT_TRUE(SameBits(found, mla.Run(one, sequences)));
}

TEST(Attention, PlansNameWhatIsWrong) {
  const auto format = MakeGqaFormat(1, 2, 64, 64, DType::kBF16, 64, RopeState::kNone);
  const StepBucket bucket{1, 1, 1, 1, 64};
  const auto uneven = MakePlan(GqaShape{5, 2, 64, 64, 1, Precision::kF32}, *format, bucket, 1);
  ASSERT_FALSE(uneven);
  EXPECT_NE(uneven.error().message.find("5 heads over 2"), std::string::npos);
  EXPECT_FALSE(MakePlan(GqaShape{4, 2, 32, 64, 1, Precision::kF32}, *format, bucket, 1));
  EXPECT_FALSE(MakePlan(MlaShape{4, 64, 16, 8, 16, 1, Precision::kF32}, *format, bucket, 1));
  const auto quantised = MakeGqaFormat(1, 2, 64, 64, DType::kI8, 64, RopeState::kNone);
  const auto refused = MakePlan(GqaShape{4, 2, 64, 64, 1, Precision::kF32}, *quantised, bucket, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace fathom::ops::attention
