#include "prefill_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "element.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/tile_lists.h"
#include "sparse_case.h"

namespace fathom::bench {

// Attention to learned rows, in a call of its own.
struct PrefillLearned {
  LearnedRows rows;
  ops::PrefillAttentionPlan plan;
  kernels::cuda::PrefillParams params;
  Buffer lists, out, lse, workspace;
};

struct PrefillRun::State {
  PrefillCase shape;
  ops::PrefillAttentionPlan plan;
  kernels::cuda::PrefillParams params;
  std::vector<int32_t> query_starts{0};
  int max_kv = 0;
  int table_stride = 0;
  PlaneShape plane[2];
  std::optional<ops::sparse::Plan> sparse;
  std::optional<PrefillLearned> learned;
  Buffer k, v, q, out, lse, table, kv_starts, lengths, starts, lists, workspace;

  // Of a plan's tiles.
  ops::sparse::Plan SparsePlan() const {
    return Checked(ops::sparse::MakePlan({.num_heads = shape.num_heads,
                                          .num_kv_heads = shape.num_kv_heads,
                                          .tile_queries = plan.kernel.rows,
                                          .tile_keys = plan.kernel.keys},
                                         *shape.policy,
                                         SequencesOf(query_starts, shape.kv_lengths)));
  }

  void AddLearned(ops::PrefillAttentionShape planned, const ops::GpuLimits& gpu) {
    planned.page_tokens = ops::LearnedRowsCache::kPageTokens;
    planned.max_kv_tokens = sparse->policy.learned_rows;
    planned.max_total_kv_tokens = 0;
    planned.causal = false;
    learned.emplace(PrefillLearned{LearnedRows(*sparse, shape.dim_qk, shape.dim_v, shape.float16),
                                   Checked(ops::PlanPrefillAttention(planned, {}, gpu)), params});
    PrefillLearned& own = *learned;
    const auto lists = Checked(ops::MakeLearnedPrefillTileLists(*sparse, own.plan));
    const int64_t q_rows = int64_t{query_starts.back()} * shape.num_heads;
    own.lists = Buffer(Checked(ops::PackTileLists(lists, lists.Needs())));
    own.out = Buffer(q_rows * shape.dim_v * 2);
    own.lse = Buffer(q_rows * 4);
    own.workspace = Buffer(own.plan.workspace_bytes);
    own.workspace.Fill(0);
    own.params.k = own.rows.View(0);
    own.params.v = own.rows.View(1);
    own.rows.Bind(&own.params);
    own.params.out = own.out.As<void>();
    own.params.lse = own.lse.As<float>();
    ops::BindPrefillWorkspace(own.plan, own.workspace.As<void>(), &own.params);
    ops::BindTileLists(lists.Needs(), own.lists.As<void>(), &own.params);
    const Status legal = ops::CheckPrefillParams(own.plan, own.params);
    FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
  }

  void Launch(cudaStream_t stream) const {
    CheckCuda(kernels::cuda::RunPrefill(shape.dim_qk, shape.dim_v, params, stream), "RunPrefill");
    if (!learned) return;
    CheckCuda(kernels::cuda::RunPrefill(shape.dim_qk, shape.dim_v, learned->params, stream),
              "RunPrefill, learned rows");
    FoldLearned(learned->out, learned->lse, int64_t{query_starts.back()} * shape.num_heads,
                shape.dim_v, shape.float16, out, lse, stream);
  }
};

PrefillRun::PrefillRun(PrefillCase shape, const ops::PrefillAttentionOptions& options,
                       const ops::GpuLimits& gpu)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = std::move(shape);
  PrefillCase& c = s.shape;
  if (c.query_tokens.empty()) c.query_tokens = c.kv_lengths;
  const int count = static_cast<int>(c.kv_lengths.size());
  for (const int queries : c.query_tokens)
    s.query_starts.push_back(s.query_starts.back() + queries);
  const int num_tokens = s.query_starts.back();
  s.max_kv = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());
  const int64_t keys = std::accumulate(c.kv_lengths.begin(), c.kv_lengths.end(), int64_t{0});
  const ops::PrefillAttentionShape planned = {.num_sequences = count,
                                              .num_tokens = num_tokens,
                                              .max_kv_tokens = s.max_kv,
                                              .max_total_kv_tokens = keys,
                                              .num_heads = c.num_heads,
                                              .num_kv_heads = c.num_kv_heads,
                                              .head_dim_qk = c.dim_qk,
                                              .head_dim_v = c.dim_v,
                                              .page_tokens = c.page_tokens,
                                              .causal = c.causal,
                                              .window = c.window,
                                              .anchors = c.anchors,
                                              .tile_lists = c.policy.has_value(),
                                              .dtype = c.float16 ? DType::kF16 : DType::kBF16};
  s.plan = Checked(ops::PlanPrefillAttention(planned, options, gpu));

  // Keys live in pages in a scrambled order, or one sequence after the other with a gap of NaN.
  constexpr int32_t kPoisonPage = 2147480000;
  constexpr int kGapTokens = 5;
  const int page = c.page_tokens == 0 ? 1 : c.page_tokens;
  s.table_stride = (s.max_kv + page - 1) / page + 3;
  std::vector<int32_t> table(static_cast<size_t>(s.table_stride) * count, kPoisonPage);
  std::vector<int32_t> kv_starts;
  int64_t num_pages = 3;
  int64_t rows = kGapTokens;
  for (const int32_t length : c.kv_lengths) {
    num_pages += (length + page - 1) / page;
    kv_starts.push_back(static_cast<int32_t>(rows));
    rows += length + kGapTokens;
  }
  int64_t step = 7919;
  while (std::gcd(step, num_pages) != 1) ++step;
  int64_t next = 1;
  for (int b = 0; b < count; ++b) {
    for (int i = 0; i < (c.kv_lengths[static_cast<size_t>(b)] + page - 1) / page; ++i) {
      table[static_cast<size_t>(b) * s.table_stride + i] =
          c.page_tokens == 0 ? kv_starts[static_cast<size_t>(b)] + i : static_cast<int32_t>(next);
      next = (next + step) % num_pages;
    }
  }
  const int64_t total_rows = c.page_tokens == 0 ? rows : num_pages * page;
  s.table = Buffer(table);
  s.kv_starts = Buffer(kv_starts);
  s.lengths = Buffer(c.kv_lengths);
  s.starts = Buffer(s.query_starts);
  const auto make = [&](int dim, int index, Buffer* buffer) {
    *buffer = Buffer(total_rows * c.num_kv_heads * dim * 2);
    buffer->Fill(0xff);
    const int64_t token_bytes = int64_t{c.num_kv_heads} * dim * 2;
    s.plane[index] = {page * token_bytes, token_bytes, int64_t{dim} * 2, c.num_kv_heads, dim};
    s.plane[index].float16 = c.float16;
    FillPlane(
        buffer->As<void>(), s.plane[index], s.table.As<int32_t>(), s.table_stride, page,
        s.lengths.As<int32_t>(), count, s.max_kv,
        {.seed = static_cast<uint32_t>(23 + index), .weights = c.weights, .keys = index == 0});
    return kernels::cuda::PagedPlane{buffer->As<void>(), page * token_bytes, token_bytes,
                                     int64_t{dim} * 2};
  };
  auto& p = s.params;
  p.k = make(c.dim_qk, 0, &s.k);
  p.v = make(c.dim_v, 1, &s.v);
  const int64_t q_rows = int64_t{num_tokens} * c.num_heads;
  s.q = Buffer(q_rows * c.dim_qk * 2);
  s.out = Buffer(q_rows * c.dim_v * 2);
  s.lse = Buffer(q_rows * 4);
  if (c.weights == Weights::kRandom) {
    FillRandom(s.q.As<void>(), q_rows * c.dim_qk, c.logit_scale * 3.f, 5, c.float16);
  } else {
    s.q = UnitQueries(q_rows, c.dim_qk, 0, c.float16);
  }
  s.workspace = Buffer(s.plan.workspace_bytes);
  s.workspace.Fill(0xff);
  CheckCuda(cudaMemset(s.workspace.As<void>(), 0, static_cast<size_t>(s.plan.zeroed_bytes)),
            "zero the counter");

  p.q = s.q.As<void>();
  p.q_token_stride = int64_t{c.num_heads} * c.dim_qk;
  p.q_head_stride = c.dim_qk;
  p.num_tokens = num_tokens;
  p.num_pages = c.page_tokens == 0 ? 1 : num_pages;
  p.page_tokens = c.page_tokens == 0 ? total_rows : page;
  if (c.page_tokens != 0) p.page_table = s.table.As<int32_t>();
  p.page_table_stride = s.table_stride;
  p.kv_starts = s.kv_starts.As<int32_t>();
  p.kv_lengths = s.lengths.As<int32_t>();
  p.query_starts = s.starts.As<int32_t>();
  p.out = s.out.As<void>();
  p.out_token_stride = int64_t{c.num_heads} * c.dim_v;
  p.out_head_stride = c.dim_v;
  p.lse = s.lse.As<float>();
  p.scale =
      c.weights != Weights::kRandom ? kWeightsScale : 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  ops::BindPrefillWorkspace(s.plan, s.workspace.As<void>(), &p);
  if (c.policy) {
    s.sparse = s.SparsePlan();
    const auto lists = Checked(ops::MakePrefillTileLists(*s.sparse, s.plan));
    s.lists = Buffer(Checked(ops::PackTileLists(lists, lists.Needs())));
    ops::BindTileLists(lists.Needs(), s.lists.As<void>(), &p);
    if (c.policy->learned_rows > 0) s.AddLearned(planned, gpu);
  }
  const Status legal = ops::CheckPrefillParams(s.plan, p);
  FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
  CheckCuda(cudaDeviceSynchronize(), "fill");
}

PrefillRun::~PrefillRun() = default;

const ops::PrefillAttentionPlan& PrefillRun::plan() const { return state_->plan; }

void PrefillRun::Run() {
  const State& s = *state_;
  s.out.Fill(0xff);
  s.lse.Fill(0xff);
  if (!s.sparse) {
    CheckCuda(kernels::cuda::PreparePrefill(s.params, s.plan.rows, s.max_kv, nullptr),
              "PreparePrefill");
  }
  s.Launch(nullptr);
  CheckCuda(cudaDeviceSynchronize(), "RunPrefill");
}

std::vector<uint16_t> PrefillRun::Output() { return state_->out.Read<uint16_t>(); }

AttentionErrors PrefillRun::CompareFloat32(int max_rows) {
  const State& s = *state_;
  ReferenceInputs in;
  in.q = s.q.As<void>();
  in.float16 = s.shape.float16;
  in.base[0] = s.k.As<void>();
  in.base[1] = s.v.As<void>();
  in.plane[0] = s.plane[0];
  in.plane[1] = s.plane[1];
  in.causal = s.shape.causal;
  in.window = s.shape.window;
  in.anchors = s.shape.anchors;
  // Contiguous rows are pages of one token for the reference.
  in.page_table = s.table.As<int32_t>();
  in.table_stride = s.table_stride;
  in.page_tokens = s.shape.page_tokens == 0 ? 1 : s.shape.page_tokens;
  in.kv_lengths = s.lengths.As<int32_t>();
  in.query_starts = s.starts.As<int32_t>();
  in.max_kv_tokens = s.max_kv;
  in.num_heads = s.shape.num_heads;
  in.group = s.shape.num_heads / s.shape.num_kv_heads;
  in.dim_qk = s.shape.dim_qk;
  in.dim_v = s.shape.dim_v;
  in.scale = s.params.scale;
  const int64_t total = int64_t{s.query_starts.back()} * s.shape.num_heads;
  // A stride without common factors meets every head, tile position and sequence.
  int64_t stride = std::max<int64_t>(1, total / max_rows);
  while (std::gcd(stride, total) != 1) ++stride;
  std::vector<QueryRow> rows;
  std::vector<int64_t> index;
  for (int64_t i = 0, row = 0; i < std::min<int64_t>(total, max_rows);
       ++i, row = (row + stride) % total) {
    const auto token = static_cast<int32_t>(row / s.shape.num_heads);
    const auto after = std::upper_bound(s.query_starts.begin(), s.query_starts.end(), token);
    const auto sequence = static_cast<int32_t>(after - s.query_starts.begin()) - 1;
    const auto head = static_cast<int32_t>(row % s.shape.num_heads);
    const bool off = s.sparse && s.sparse->PolicyOf(head).role == ops::sparse::HeadRole::kOff;
    rows.push_back({sequence, token - s.query_starts[static_cast<size_t>(sequence)], head,
                    s.learned && !off ? s.sparse->policy.learned_rows : 0});
    index.push_back(row);
  }
  Buffer seen;
  if (s.sparse) {
    seen = SetSparse(*s.sparse, s.learned ? &s.learned->rows : nullptr, rows, s.max_kv, &in);
  }
  AttentionErrors errors = Compare(Reference(in, rows), index, s.out.Read<uint16_t>(),
                                   s.lse.Read<float>(), s.shape.dim_v, s.shape.float16);
  // Every element was written, also where no row was sampled.
  for (const uint16_t value : s.out.Read<uint16_t>()) {
    if (!std::isfinite(ElementToF32(value, s.shape.float16))) errors.finite = false;
  }
  return errors;
}

double PrefillRun::TimeUs(int repeats, L2 l2) {
  const State& s = *state_;
  return TimeCold([&s](cudaStream_t stream) { s.Launch(stream); }, repeats, l2);
}

double PrefillRun::Flops() const {
  const PrefillCase& c = state_->shape;
  if (state_->sparse) return 2 * KeptPairs(*state_->sparse) * (c.dim_qk + c.dim_v);
  double pairs = 0;
  for (size_t b = 0; b < c.kv_lengths.size(); ++b) {
    const double keys = c.kv_lengths[b];
    const double queries = c.query_tokens[b];
    if (c.window != INT32_MAX) {
      for (double p = keys - queries; p < keys; ++p) {
        const double low = std::max(0.0, p - c.window);
        pairs += p - low + 1 + std::min<double>(low, c.anchors);
      }
      continue;
    }
    pairs += c.causal ? queries * keys - queries * (queries - 1) / 2 : queries * keys;
  }
  return 2 * pairs * c.num_heads * (c.dim_qk + c.dim_v);
}

namespace {

PrefillCase Make(int heads, int kv_heads, int dim_qk, int dim_v, bool causal,
                 std::vector<int32_t> lengths, const std::string& what) {
  PrefillCase c{.num_heads = heads,
                .num_kv_heads = kv_heads,
                .dim_qk = dim_qk,
                .dim_v = dim_v,
                .causal = causal,
                .kv_lengths = std::move(lengths)};
  c.name = fmt::format("{}/{}h d{}{} {} {}", heads, kv_heads, dim_qk,
                       dim_qk == dim_v ? "" : fmt::format("/{}", dim_v), causal ? "causal" : "full",
                       what);
  return c;
}

PrefillCase Float16(PrefillCase c) {
  c.float16 = true;
  c.name += ", float16";
  return c;
}

void AddSparseChecks(std::vector<PrefillCase>* cases) {
  const std::vector<int32_t> chunks = {500, 1, 7};
  for (const auto& [heads, kv_heads, dim_qk, dim_v] :
       {std::tuple{8, 4, 128, 128}, {8, 8, 64, 64}, {8, 8, 192, 128}}) {
    // A sanitizer gets through the first.
    const std::vector<int32_t> lengths = {dim_qk == 128 ? 2000 : 2100, 1, 700};
    for (const bool chunked : {false, true}) {
      const std::vector<int32_t>& queries = chunked ? chunks : lengths;
      const auto add = [&, heads = heads, kv_heads = kv_heads, dim_qk = dim_qk, dim_v = dim_v](
                           ops::sparse::Policy policy, const std::string& what) {
        PrefillCase c = Make(heads, kv_heads, dim_qk, dim_v, policy.causal, lengths,
                             fmt::format("lists: {}{}", what, chunked ? ", chunks, paged" : ""));
        if (chunked) {
          c.query_tokens = chunks;
          c.page_tokens = 64;
        }
        c.policy = std::move(policy);
        cases->push_back(std::move(c));
      };
      std::vector<ops::sparse::Sequence> sequences;
      for (size_t i = 0; i < lengths.size(); ++i) sequences.push_back({queries[i], lengths[i]});
      add(Local(512, 32), "window 512 + 32 first");
      ops::sparse::Policy both = Local(100, 3);
      both.causal = false;
      add(both, "window of both sides");
      add(RandomAnchors(heads, sequences, chunked), "anchor lists");
      add(RandomBlocks(heads, sequences, chunked, 1), "blocks of each query");
      add(RandomBlocks(heads, sequences, !chunked, 100), "blocks of 100 queries");
      ops::sparse::Policy roles = Roles(heads, kv_heads);
      add(roles, "policy table");
      roles.learned_rows = chunked ? 256 : 100;
      add(roles, fmt::format("policy table, {} learned rows", roles.learned_rows));
      cases->push_back(Float16(cases->back()));
    }
  }
}

// Kernels walk from the end: what falls with the position rises for them. None is small: a
// sanitizer sees the same accesses elsewhere.
void AddUnevenWeights(std::vector<PrefillCase>* cases) {
  for (const auto& [dim_qk, dim_v] : {std::pair{64, 64}, {128, 128}, {192, 128}}) {
    for (const auto& [weights, what] : {std::pair{Weights::kSink, "weights beside a sink"},
                                        {Weights::kFalling, "weights that fall"},
                                        {Weights::kSteepFall, "weights that fall steeply"}}) {
      for (const bool causal : {true, false}) {
        PrefillCase c = Make(2, 2, dim_qk, dim_v, causal, {2300, 500, 1}, what);
        c.query_tokens = {500, 200, 1};
        c.page_tokens = 64;
        c.weights = weights;
        cases->push_back(c);
        cases->push_back(Float16(c));
      }
    }
  }
}

}  // namespace

std::vector<PrefillCase> PrefillCheckCases() {
  std::vector<PrefillCase> cases;
  const std::vector<int32_t> odd = {1, 63, 64, 65, 127, 255, 256, 257, 1025};
  for (const bool causal : {true, false}) {
    cases.push_back(Make(4, 1, 128, 128, causal, odd, "odd lengths"));
    cases.push_back(Make(3, 3, 64, 64, causal, odd, "odd lengths"));
    cases.push_back(Make(2, 2, 192, 128, causal, odd, "odd lengths"));
    for (const int page : {16, 32, 64, 128}) {
      PrefillCase paged = Make(4, 2, 128, 128, causal, odd, fmt::format("pages of {}", page));
      paged.page_tokens = page;
      cases.push_back(paged);
    }
    PrefillCase chunk = Make(4, 2, 128, 128, causal, {1000, 3000, 129}, "chunks of a longer cache");
    chunk.query_tokens = {100, 513, 1};
    cases.push_back(chunk);
    chunk.page_tokens = 64;
    chunk.name += ", paged";
    cases.push_back(chunk);
  }
  for (const auto& [window, anchors] : {std::pair{100, 10}, {512, 32}, {63, 0}, {300, 400}}) {
    PrefillCase c = Make(4, 2, 128, 128, true, {2000, 1, 700},
                         fmt::format("window {} + {} first", window, anchors));
    c.window = window;
    c.anchors = anchors;
    cases.push_back(c);
    c = Make(4, 4, 64, 64, true, {2000, 300},
             fmt::format("window {} + {} first, chunks, paged", window, anchors));
    c.query_tokens = {500, 7};
    c.page_tokens = 64;
    c.window = window;
    c.anchors = anchors;
    cases.push_back(c);
  }
  AddSparseChecks(&cases);
  PrefillCase large = Make(4, 2, 128, 128, true, {2000}, "large logits");
  large.logit_scale = 40;
  cases.push_back(large);
  cases.push_back(Make(8, 2, 128, 128, true, {4097, 300}, "longer"));
  cases.push_back(Make(4, 4, 192, 128, true, {4097}, "longer"));
  cases.push_back(Make(4, 4, 64, 64, true, {4097}, "longer"));
  cases.push_back(Make(2, 2, 128, 128, true, std::vector<int32_t>(200, 33), "many short"));
  for (const bool causal : {true, false}) {
    cases.push_back(Float16(Make(4, 1, 128, 128, causal, odd, "odd lengths")));
    cases.push_back(Float16(Make(3, 3, 64, 64, causal, odd, "odd lengths")));
    cases.push_back(Float16(Make(2, 2, 192, 128, causal, odd, "odd lengths")));
  }
  PrefillCase chunk = Make(4, 2, 128, 128, true, {1000, 3000, 129}, "chunks, paged");
  chunk.query_tokens = {100, 513, 1};
  chunk.page_tokens = 64;
  cases.push_back(Float16(chunk));
  PrefillCase window = Make(4, 4, 64, 64, true, {2000, 1, 700}, "window 100 + 10 first");
  window.window = 100;
  window.anchors = 10;
  cases.push_back(Float16(window));
  cases.push_back(Float16(large));
  AddUnevenWeights(&cases);
  return cases;
}

std::vector<PrefillCase> PrefillTimeCases() {
  const auto same = [](int batch, int length) { return std::vector<int32_t>(batch, length); };
  std::vector<PrefillCase> cases;
  for (const auto& [batch, length] :
       {std::pair{16, 1024}, {8, 2048}, {4, 4096}, {2, 8192}, {1, 16384}, {1, 32768}, {1, 65536}}) {
    cases.push_back(
        Make(32, 8, 128, 128, true, same(batch, length), fmt::format("{} x {}", batch, length)));
  }
  cases.push_back(Make(32, 8, 128, 128, false, same(4, 4096), "4 x 4096"));
  cases.push_back(Make(32, 8, 128, 128, false, same(1, 16384), "1 x 16384"));
  for (const auto& [chunk, length] : {std::pair{2048, 32768}, {512, 65536}}) {
    PrefillCase c = Make(32, 8, 128, 128, true, {length}, fmt::format("{} of {}", chunk, length));
    c.query_tokens = {chunk};
    cases.push_back(c);
  }
  cases.push_back(Make(12, 12, 64, 64, true, same(8, 2048), "8 x 2048"));
  cases.push_back(Make(12, 12, 64, 64, false, same(8, 2048), "8 x 2048"));
  cases.push_back(Make(32, 32, 64, 64, true, same(1, 16384), "1 x 16384"));
  for (const int length : {4096, 16384, 32768}) {
    cases.push_back(Make(16, 16, 192, 128, true, same(1, length), fmt::format("1 x {}", length)));
  }
  cases.push_back(Make(128, 128, 192, 128, true, same(1, 8192), "1 x 8192"));
  cases.push_back(Float16(Make(32, 8, 128, 128, true, same(4, 4096), "4 x 4096")));
  cases.push_back(Float16(Make(32, 8, 128, 128, true, same(1, 16384), "1 x 16384")));
  cases.push_back(Float16(Make(12, 12, 64, 64, true, same(8, 2048), "8 x 2048")));
  cases.push_back(Float16(Make(16, 16, 192, 128, true, same(1, 4096), "1 x 4096")));
  for (const int length : {16384, 65536}) {
    PrefillCase c = Make(32, 8, 128, 128, true, same(1, length),
                         fmt::format("1 x {}, window 512 + 32 first", length));
    c.window = 512;
    c.anchors = 32;
    cases.push_back(c);
    PrefillCase listed = Make(32, 8, 128, 128, true, same(1, length),
                              fmt::format("1 x {}, window 512 + 32 first, by lists", length));
    listed.policy = Local(512, 32);
    cases.push_back(listed);
  }
  PrefillCase sparse = Make(32, 8, 128, 128, true, {16384}, "1 x 16384, all keys by lists");
  sparse.policy = {.heads = {{ops::sparse::HeadRole::kGlobal}}};
  cases.push_back(sparse);
  sparse = Make(32, 32, 128, 128, true, {16384}, "1 x 16384, policy table");
  sparse.policy = Roles(32, 32);
  cases.push_back(sparse);
  sparse = Make(32, 8, 128, 128, true, {65536}, "1 x 65536, key ranges 1k to 64k");
  sparse.policy = Ranges(32, 8);
  cases.push_back(sparse);
  sparse = Make(32, 8, 128, 128, true, {16384}, "1 x 16384, a quarter of the blocks");
  sparse.policy = RandomBlocks(32, {{16384, 16384}}, false, 128);
  cases.push_back(sparse);
  return cases;
}

}  // namespace fathom::bench
