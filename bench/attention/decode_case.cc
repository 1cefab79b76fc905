#include "decode_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "copy_tiles.h"
#include "device.h"
#include "element.h"
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/tile_lists.h"
#include "sparse_case.h"

namespace fathom::bench {
namespace {

constexpr int32_t kPoisonPage = 2147480000;

bool IsLatent(const DecodeCase& shape) { return shape.dim_qk > shape.dim_v; }

int64_t ElementBytes(const DecodeCase& shape) {
  return shape.code == kernels::cuda::CacheCode::kBf16 ? 2 : 1;
}

PlaneShape MakePlane(const DecodeCase& shape, int heads, int dim, int64_t page_bytes) {
  const int64_t row = dim * ElementBytes(shape);
  PlaneShape plane{
      .page_stride_bytes = page_bytes, .num_heads = heads, .dim = dim, .code = shape.code};
  plane.float16 = shape.float16;
  plane.token_stride_bytes = shape.token_major ? heads * row : row;
  plane.head_stride_bytes = shape.token_major ? row : shape.page_tokens * row;
  return plane;
}

}  // namespace

AttentionErrors Compare(const ReferenceResult& want, const std::vector<int64_t>& index,
                        const std::vector<uint16_t>& out, const std::vector<float>& lse, int dim_v,
                        bool float16) {
  AttentionErrors errors{.finite = true};
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    const auto row = static_cast<size_t>(index[i]);
    for (size_t d = 0; d < static_cast<size_t>(dim_v); ++d) {
      const double expected = want.out[i * static_cast<size_t>(dim_v) + d];
      const uint16_t bits = out[row * static_cast<size_t>(dim_v) + d];
      const double value = ElementToF32(bits, float16);
      if (!std::isfinite(value)) errors.finite = false;
      difference += (value - expected) * (value - expected);
      norm += expected * expected;
    }
    if (want.lse[i] == lse[row]) continue;  // also -inf
    const double gap = std::abs(double{want.lse[i]} - lse[row]);
    errors.lse =
        std::isfinite(gap) ? std::max(errors.lse, gap) : std::numeric_limits<double>::infinity();
  }
  errors.out = norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
  return errors;
}

// Attention to learned rows, in a call of its own.
struct DecodeLearned {
  LearnedRows rows;
  ops::DecodeAttentionPlan plan;
  kernels::cuda::DecodeParams params;
  Buffer lists, out, lse, workspace;
};

struct DecodeRun::State {
  DecodeCase shape;
  ops::DecodeAttentionPlan plan;
  kernels::cuda::DecodeParams params;
  std::vector<int32_t> query_starts{0};
  std::vector<int32_t> page_table;
  int table_stride = 0;
  int max_kv = 0;
  int num_tokens = 0;
  PlaneShape plane[2];
  std::vector<int32_t> visited;  // tokens that count in the schedule, of sequences or of lists
  std::optional<ops::sparse::Plan> sparse;
  std::optional<DecodeLearned> learned;
  Buffer lists;
  Buffer cache, scales, q, q_split, out, lse, table, lengths, starts, workspace;

  ReferenceInputs Inputs() const {
    ReferenceInputs in;
    in.q = q.As<void>();
    in.float16 = shape.float16;
    for (int i = 0; i < 2; ++i) {
      in.base[i] = params.plane[i].base;
      in.plane[i] = plane[i];
    }
    in.latent = IsLatent(shape);
    in.page_table = table.As<int32_t>();
    in.table_stride = table_stride;
    in.page_tokens = shape.page_tokens;
    in.kv_lengths = lengths.As<int32_t>();
    in.query_starts = starts.As<int32_t>();
    in.max_kv_tokens = max_kv;
    in.num_heads = shape.num_heads;
    in.group = shape.num_heads / shape.num_kv_heads;
    in.dim_qk = shape.dim_qk;
    in.dim_v = shape.dim_v;
    in.scale = params.scale;
    return in;
  }

  // Every row, in the output's order.
  std::vector<QueryRow> Rows() const {
    std::vector<QueryRow> rows;
    for (size_t b = 0; b + 1 < query_starts.size(); ++b) {
      for (int j = 0; j < query_starts[b + 1] - query_starts[b]; ++j) {
        for (int h = 0; h < shape.num_heads; ++h) {
          const bool off = sparse && sparse->PolicyOf(h).role == ops::sparse::HeadRole::kOff;
          rows.push_back(
              {static_cast<int32_t>(b), j, h, learned && !off ? sparse->policy.learned_rows : 0});
        }
      }
    }
    return rows;
  }

  void AddLearned(ops::DecodeAttentionShape planned, const ops::DecodeAttentionOptions& options,
                  const ops::GpuLimits& gpu) {
    const ops::DecodeTileLists lists = Checked(ops::MakeLearnedDecodeTileLists(*sparse));
    planned.page_tokens = ops::LearnedRowsCache::kPageTokens;
    planned.code = kernels::cuda::CacheCode::kBf16;
    planned.max_kv_tokens = lists.LongestTokens();
    learned.emplace(DecodeLearned{LearnedRows(*sparse, shape.dim_qk, shape.dim_v, shape.float16),
                                  Checked(ops::PlanDecodeAttention(planned, options, gpu)),
                                  params});
    DecodeLearned& own = *learned;
    const int64_t q_rows = int64_t{num_tokens} * shape.num_heads;
    own.lists = Buffer(Checked(ops::PackTileLists(lists, lists.Needs())));
    own.out = Buffer(q_rows * shape.dim_v * 2);
    own.lse = Buffer(q_rows * 4);
    own.workspace = Buffer(own.plan.workspace_bytes);
    for (int i = 0; i < 2; ++i) own.params.plane[i] = own.rows.View(i);
    own.rows.Bind(&own.params);
    ops::BindTileLists(lists.Needs(), own.lists.As<void>(), &own.params);
    own.params.out = own.out.As<void>();
    own.params.lse = own.lse.As<float>();
    ops::BindDecodeWorkspace(own.plan, own.workspace.As<void>(), &own.params);
    const Status legal = ops::CheckDecodeParams(own.plan, own.params);
    FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
  }

  void Launch(cudaStream_t stream) const {
    CheckCuda(kernels::cuda::RunDecode(shape.dim_qk, shape.dim_v, plan.rows, params, stream),
              "RunDecode");
    if (!learned) return;
    CheckCuda(kernels::cuda::RunDecode(shape.dim_qk, shape.dim_v, learned->plan.rows,
                                       learned->params, stream),
              "RunDecode, learned rows");
    FoldLearned(learned->out, learned->lse, int64_t{num_tokens} * shape.num_heads, shape.dim_v,
                shape.float16, out, lse, stream);
  }

  AttentionErrors CompareAll(const ReferenceResult& want) const {
    std::vector<int64_t> index(want.lse.size());
    std::iota(index.begin(), index.end(), 0);
    return Compare(want, index, out.Read<uint16_t>(), lse.Read<float>(), shape.dim_v,
                   shape.float16);
  }
};

DecodeRun::DecodeRun(DecodeCase shape, const ops::DecodeAttentionOptions& options,
                     const ops::GpuLimits& gpu)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = std::move(shape);
  const DecodeCase& c = s.shape;
  const int count = static_cast<int>(c.kv_lengths.size());
  int max_queries = 1;
  for (int i = 0; i < count; ++i) {
    const int queries = c.query_tokens.empty() ? 1 : c.query_tokens[static_cast<size_t>(i)];
    max_queries = std::max(max_queries, queries);
    s.query_starts.push_back(s.query_starts.back() + queries);
  }
  s.num_tokens = s.query_starts.back();
  s.max_kv = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());

  s.visited = c.kv_lengths;
  ops::DecodeAttentionShape planned = {.num_sequences = count,
                                       .max_query_tokens = max_queries,
                                       .num_heads = c.num_heads,
                                       .num_kv_heads = c.num_kv_heads,
                                       .head_dim_qk = c.dim_qk,
                                       .head_dim_v = c.dim_v,
                                       .page_tokens = c.page_tokens,
                                       .max_kv_tokens = std::max(s.max_kv, 1),
                                       .dtype = c.float16 ? DType::kF16 : DType::kBF16,
                                       .code = c.code,
                                       .tile_lists = c.sparse()};
  ops::DecodeTileLists lists;
  if (c.sparse()) {
    auto made = ops::sparse::MakePlan(
        {.num_heads = c.num_heads, .num_kv_heads = c.num_kv_heads, .tile_queries = max_queries},
        *c.policy, SequencesOf(s.query_starts, c.kv_lengths));
    FATHOM_CHECK(made.has_value(), "{}", made.error().message);
    s.sparse = std::move(*made);
    lists = Checked(ops::MakeDecodeTileLists(*s.sparse));
    s.visited = lists.visited_tokens;
    planned.max_kv_tokens = lists.LongestTokens();
    planned.max_lists = static_cast<int32_t>(lists.Needs().lists);
  }
  s.plan = Checked(ops::PlanDecodeAttention(planned, options, gpu));

  // Pages in a scrambled order; every table entry past a sequence's end is poison.
  s.table_stride = std::max(1, (s.max_kv + c.page_tokens - 1) / c.page_tokens) + 3;
  s.page_table.assign(static_cast<size_t>(s.table_stride) * count, kPoisonPage);
  int64_t pages = 0;
  for (const int32_t length : c.kv_lengths) pages += (length + c.page_tokens - 1) / c.page_tokens;
  const int64_t num_pages = pages + 3;
  int64_t step = c.scattered ? 7919 : 1;
  while (std::gcd(step, num_pages) != 1) ++step;
  int64_t next = 1;
  for (int b = 0; b < count; ++b) {
    const int n = (c.kv_lengths[static_cast<size_t>(b)] + c.page_tokens - 1) / c.page_tokens;
    for (int i = 0; i < n; ++i) {
      s.page_table[static_cast<size_t>(b) * s.table_stride + i] = static_cast<int32_t>(next);
      next = (next + step) % num_pages;
    }
  }

  const int first_dim = IsLatent(c) ? c.dim_v : c.dim_qk;
  const int second_dim = IsLatent(c) ? c.dim_qk - c.dim_v : c.dim_v;
  const bool quantised = c.code != kernels::cuda::CacheCode::kBf16;
  const int64_t page_rows = int64_t{c.page_tokens} * c.num_kv_heads;
  int64_t second_offset = page_rows * first_dim * ElementBytes(c);
  int64_t page_bytes = second_offset + page_rows * second_dim * ElementBytes(c);
  if (quantised && IsLatent(c)) {
    // A token is 512 codes, a scale for each 128, and 64 elements of 16 bits.
    constexpr int kGroup = 128;
    second_offset = first_dim + first_dim / kGroup * 4;
    const int64_t token_bytes = second_offset + second_dim * 2;
    page_bytes = page_rows * token_bytes;
    s.plane[0] = MakePlane(c, 1, first_dim, page_bytes);
    s.plane[0].scale_group = kGroup;
    s.plane[1] = MakePlane(c, 1, second_dim, page_bytes);
    s.plane[1].code = kernels::cuda::CacheCode::kBf16;
    for (PlaneShape& plane : s.plane) {
      plane.token_stride_bytes = plane.head_stride_bytes = token_bytes;
    }
  } else {
    s.plane[0] = MakePlane(c, c.num_kv_heads, first_dim, page_bytes);
    s.plane[1] = MakePlane(c, c.num_kv_heads, second_dim, page_bytes);
    s.plane[0].scale_group = first_dim;
    s.plane[1].scale_group = second_dim;
  }

  if (c.contiguous) {
    for (PlaneShape& plane : s.plane) {
      plane.token_stride_bytes = plane.dim * ElementBytes(c);
      plane.page_stride_bytes = c.page_tokens * plane.token_stride_bytes;
      plane.head_stride_bytes = num_pages * plane.page_stride_bytes;
    }
    second_offset = c.num_kv_heads * s.plane[0].head_stride_bytes;
  }

  s.cache = Buffer(num_pages * page_bytes);
  s.cache.Fill(0xff);  // NaN
  s.table = Buffer(s.page_table);
  s.lengths = Buffer(c.kv_lengths);
  s.starts = Buffer(s.query_starts);
  const int64_t q_rows = int64_t{s.num_tokens} * c.num_heads;
  s.q = Buffer(q_rows * c.dim_qk * 2);
  s.out = Buffer(q_rows * c.dim_v * 2);
  s.lse = Buffer(q_rows * 4);
  s.workspace = Buffer(s.plan.workspace_bytes);
  s.workspace.Fill(0xff);

  auto& p = s.params;
  auto* base = s.cache.As<char>();
  if (quantised && IsLatent(c)) {
    p.scales[0] = {base + first_dim, s.plane[0].page_stride_bytes, s.plane[0].token_stride_bytes,
                   s.plane[0].head_stride_bytes};
    s.plane[0].scales = p.scales[0];
  } else if (quantised) {
    s.scales = Buffer(num_pages * page_rows * 2 * 4);
    s.scales.Fill(0xff);
    for (int i = 0; i < 2; ++i) {
      p.scales[i] = {s.scales.As<float>() + i * page_rows, page_rows * 2 * 4, 4,
                     int64_t{c.page_tokens} * 4};
      s.plane[i].scales = p.scales[i];
    }
  }
  for (int i = 0; i < 2; ++i) {
    p.plane[i] = {base + (i == 0 ? 0 : second_offset), s.plane[i].page_stride_bytes,
                  s.plane[i].token_stride_bytes, s.plane[i].head_stride_bytes};
    FillPlane(base + (i == 0 ? 0 : second_offset), s.plane[i], s.table.As<int32_t>(),
              s.table_stride, c.page_tokens, s.lengths.As<int32_t>(), count, s.max_kv,
              {.seed = static_cast<uint32_t>(17 + i),
               .weights = c.weights,
               .keys = i == (IsLatent(c) ? 1 : 0)});
  }
  if (c.weights == Weights::kRandom) {
    FillRandom(s.q.As<void>(), q_rows * c.dim_qk, c.logit_scale * 3.f, 5, c.float16);
  } else {
    s.q = UnitQueries(q_rows, c.dim_qk, IsLatent(c) ? c.dim_v : 0, c.float16);
  }
  p.q = s.q.As<void>();
  p.q_token_stride = int64_t{c.num_heads} * c.dim_qk;
  p.q_head_stride = c.dim_qk;
  if (IsLatent(c)) {
    p.q_pe = s.q.As<uint16_t>() + c.dim_v;
    p.q_pe_token_stride = p.q_token_stride;
    p.q_pe_head_stride = p.q_head_stride;
  }
  p.num_pages = num_pages;
  p.page_table = s.table.As<int32_t>();
  p.page_table_stride = s.table_stride;
  p.kv_lengths = s.lengths.As<int32_t>();
  p.query_starts = s.starts.As<int32_t>();
  p.out = s.out.As<void>();
  p.out_token_stride = int64_t{c.num_heads} * c.dim_v;
  p.out_head_stride = c.dim_v;
  p.lse = s.lse.As<float>();
  p.scale = c.weights != Weights::kRandom
                ? kWeightsScale
                : 1.f / std::sqrt(static_cast<float>(IsLatent(c) ? 192 : c.dim_qk));
  if (c.sparse()) {
    s.lists = Buffer(Checked(ops::PackTileLists(lists, lists.Needs())));
    ops::BindTileLists(lists.Needs(), s.lists.As<void>(), &p);
  }
  ops::BindDecodeWorkspace(s.plan, s.workspace.As<void>(), &p);
  const Status legal = ops::CheckDecodeParams(s.plan, p);
  FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
  if (c.sparse() && c.policy->learned_rows > 0) s.AddLearned(planned, options, gpu);
  CheckCuda(cudaDeviceSynchronize(), "fill");
}

DecodeRun::~DecodeRun() = default;

const ops::DecodeAttentionPlan& DecodeRun::plan() const { return state_->plan; }

void DecodeRun::Prepare() {
  CheckCuda(kernels::cuda::PrepareDecode(state_->params, nullptr), "PrepareDecode");
  if (state_->learned) {
    CheckCuda(kernels::cuda::PrepareDecode(state_->learned->params, nullptr), "PrepareDecode");
  }
  CheckCuda(cudaDeviceSynchronize(), "PrepareDecode");
}

void DecodeRun::Run() {
  state_->out.Fill(0xff);
  state_->lse.Fill(0xff);
  state_->Launch(nullptr);
  CheckCuda(cudaDeviceSynchronize(), "RunDecode");
}

std::vector<uint16_t> DecodeRun::Output() { return state_->out.Read<uint16_t>(); }

AttentionErrors DecodeRun::CompareFloat32() {
  const State& s = *state_;
  const std::vector<QueryRow> rows = s.Rows();
  ReferenceInputs in = s.Inputs();
  Buffer seen;
  if (s.sparse) {
    seen = SetSparse(*s.sparse, s.learned ? &s.learned->rows : nullptr, rows, s.max_kv, &in);
  }
  return s.CompareAll(Reference(in, rows));
}

AttentionErrors DecodeRun::CompareFloat64() {
  const State& s = *state_;
  const auto cache = s.cache.Read<uint16_t>();
  const auto q = s.q.Read<uint16_t>();
  const int group = s.shape.num_heads / s.shape.num_kv_heads;
  const bool latent = IsLatent(s.shape);
  const auto* base = s.cache.As<char>();
  const auto value = [&s](uint16_t bits) { return double{ElementToF32(bits, s.shape.float16)}; };
  const auto row = [&](int plane, int b, int token, int head) {
    const int64_t page =
        s.page_table[static_cast<size_t>(b) * s.table_stride + token / s.shape.page_tokens];
    const int64_t offset = static_cast<const char*>(s.params.plane[plane].base) - base +
                           page * s.plane[plane].page_stride_bytes +
                           token % s.shape.page_tokens * s.plane[plane].token_stride_bytes +
                           head * s.plane[plane].head_stride_bytes;
    return cache.data() + offset / 2;
  };
  const size_t rows = static_cast<size_t>(s.num_tokens) * s.shape.num_heads;
  ReferenceResult want;
  want.out.resize(rows * s.shape.dim_v);
  want.lse.assign(rows, -INFINITY);
  for (size_t b = 0; b + 1 < s.query_starts.size(); ++b) {
    const int queries = s.query_starts[b + 1] - s.query_starts[b];
    for (int j = 0; j < queries; ++j) {
      const int visible = s.shape.kv_lengths[b] - (queries - 1 - j);
      if (visible <= 0) continue;
      for (int h = 0; h < s.shape.num_heads; ++h) {
        const size_t r = static_cast<size_t>(s.query_starts[b] + j) * s.shape.num_heads + h;
        const int kv_head = h / group;
        std::vector<double> scores(static_cast<size_t>(visible));
        const int first = latent ? s.shape.dim_v : s.shape.dim_qk;
        for (int t = 0; t < visible; ++t) {
          double sum = 0;
          const uint16_t* k = row(0, static_cast<int>(b), t, kv_head);
          const uint16_t* pe = row(1, static_cast<int>(b), t, kv_head);
          for (int d = 0; d < s.shape.dim_qk; ++d) {
            sum += value(q[r * s.shape.dim_qk + d]) * value(d < first ? k[d] : pe[d - first]);
          }
          scores[static_cast<size_t>(t)] = sum * s.params.scale;
        }
        const double peak = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - peak);
        want.lse[r] = static_cast<float>(peak + std::log(sum));
        for (int d = 0; d < s.shape.dim_v; ++d) {
          double total = 0;
          for (int t = 0; t < visible; ++t) {
            total += scores[static_cast<size_t>(t)] *
                     value(row(latent ? 0 : 1, static_cast<int>(b), t, kv_head)[d]);
          }
          want.out[r * s.shape.dim_v + d] = static_cast<float>(total / sum);
        }
      }
    }
  }
  return s.CompareAll(want);
}

bool DecodeRun::ScheduleMatchesHost() {
  namespace cuda = kernels::cuda;
  const State& s = *state_;
  const int count = static_cast<int>(s.visited.size());
  std::vector<int32_t> tiles{0};
  std::vector<int32_t> segments{0};
  for (const int32_t length : s.visited) {
    tiles.push_back(tiles.back() + cuda::DecodeTiles(length));
    segments.push_back(segments.back() + cuda::DecodeSegments(s.plan.split, length));
  }
  const auto& lengths = s.visited;
  const bool equal = std::all_of(lengths.begin(), lengths.end(), [&](int32_t length) {
    return cuda::DecodeTiles(length) == cuda::DecodeTiles(lengths[0]);
  });
  const int used = cuda::DecodeUsedParts(tiles.back(), count, equal, s.plan.num_parts);
  std::vector<cuda::DecodePart> parts(static_cast<size_t>(s.plan.num_parts));
  CheckCuda(cudaMemcpy(parts.data(), s.params.parts, parts.size() * sizeof(parts[0]),
                       cudaMemcpyDeviceToHost),
            "read parts");
  for (int i = 0; i < s.plan.num_parts; ++i) {
    const cuda::DecodePart want = cuda::MakeDecodePart(s.plan.split, tiles.data(), segments.data(),
                                                       s.visited.data(), count, used, i);
    const cuda::DecodePart& got = parts[static_cast<size_t>(i)];
    if (want.sequence != got.sequence || want.tile != got.tile || want.num_tiles != got.num_tiles ||
        want.slot != got.slot || want.kv_tokens != got.kv_tokens) {
      return false;
    }
  }
  return true;
}

double DecodeRun::TimeUs(int repeats, L2 state) {
  return TimeCold([this](cudaStream_t stream) { state_->Launch(stream); }, repeats, state);
}

std::optional<double> DecodeRun::TimeCopiesUs(int repeats, L2 state) {
  const State& s = *state_;
  if (s.shape.sparse() || s.shape.page_tokens != kernels::cuda::kDecodeTileTokens ||
      s.plan.kernel.kind == ops::KernelKind::kPortable) {
    return std::nullopt;
  }
  CopyTilesOptions options = {.blocks_per_sm = s.plan.kernel.blocks_per_sm};
  const auto run = [&](cudaStream_t stream) {
    CheckCuda(RunCopyTiles(s.params, s.shape.dim_qk, s.shape.dim_v, options, stream),
              "RunCopyTiles");
  };
  // Copies bring what plain loads find there.
  const Buffer words(std::vector<uint32_t>(2));
  CheckCuda(RunXorTiles(s.params, s.shape.dim_qk, s.shape.dim_v, words.As<uint32_t>(), nullptr),
            "RunXorTiles");
  options.arrived = words.As<uint32_t>() + 1;
  run(nullptr);
  options.arrived = nullptr;
  const auto sums = words.Read<uint32_t>();
  FATHOM_CHECK(sums[0] == sums[1], "copies brought {:x}, the cache has {:x}", sums[1], sums[0]);
  std::vector<double> times;  // rings that hold more are not always faster
  for (const int slots : {2, 3, 8}) {
    options.slots = slots;
    times.push_back(TimeCold(run, repeats, state));
  }
  return *std::min_element(times.begin(), times.end());
}

double DecodeRun::CacheBytes() const {
  const DecodeCase& c = state_->shape;
  // A list has one kv head, a sequence all.
  const double tokens = std::accumulate(state_->visited.begin(), state_->visited.end(), 0.0) *
                        (c.sparse() ? 1 : c.num_kv_heads);
  if (c.code == kernels::cuda::CacheCode::kBf16) {
    return tokens * 2 * (IsLatent(c) ? c.dim_qk : c.dim_qk + c.dim_v);
  }
  const double token = IsLatent(c) ? c.dim_v + c.dim_v / 128 * 4 + (c.dim_qk - c.dim_v) * 2
                                   : c.dim_qk + c.dim_v + 2 * 4;
  return tokens * token;
}

double DecodeRun::Flops() const {
  const DecodeCase& c = state_->shape;
  if (c.sparse()) return 2 * KeptPairs(*state_->sparse) * (c.dim_qk + c.dim_v);
  double pairs = 0;
  for (size_t b = 0; b < c.kv_lengths.size(); ++b) {
    const int queries = state_->query_starts[b + 1] - state_->query_starts[b];
    for (int j = 0; j < queries; ++j) pairs += std::max(0, state_->visited[b] - (queries - 1 - j));
  }
  return 2 * pairs * c.num_heads * (c.dim_qk + c.dim_v);
}

}  // namespace fathom::bench
