#include "prefill_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/cuda/launch.h"

namespace fathom::bench {

struct PrefillRun::State {
  PrefillCase shape;
  ops::PrefillAttentionPlan plan;
  kernels::cuda::PrefillParams params;
  std::vector<int32_t> query_starts{0};
  int max_kv = 0;
  int table_stride = 0;
  PlaneShape plane[2];
  Buffer k, v, q, out, lse, table, kv_starts, lengths, starts, workspace;
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
  const auto plan = ops::PlanPrefillAttention({.num_sequences = count,
                                               .num_tokens = num_tokens,
                                               .max_kv_tokens = s.max_kv,
                                               .num_heads = c.num_heads,
                                               .num_kv_heads = c.num_kv_heads,
                                               .head_dim_qk = c.dim_qk,
                                               .head_dim_v = c.dim_v,
                                               .page_tokens = c.page_tokens,
                                               .causal = c.causal,
                                               .window = c.window,
                                               .anchors = c.anchors},
                                              options, gpu);
  FATHOM_CHECK(plan.has_value(), "{}", plan.error().message);
  s.plan = *plan;

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
    FillPlane(buffer->As<void>(), s.plane[index], s.table.As<int32_t>(), s.table_stride, page,
              s.lengths.As<int32_t>(), count, s.max_kv, 1.f, static_cast<uint32_t>(23 + index));
    return kernels::cuda::PagedPlane{buffer->As<void>(), page * token_bytes, token_bytes,
                                     int64_t{dim} * 2};
  };
  auto& p = s.params;
  p.k = make(c.dim_qk, 0, &s.k);
  p.v = make(c.dim_v, 1, &s.v);
  s.q = Buffer(int64_t{num_tokens} * c.num_heads * c.dim_qk * 2);
  s.out = Buffer(int64_t{num_tokens} * c.num_heads * c.dim_v * 2);
  s.lse = Buffer(int64_t{num_tokens} * c.num_heads * 4);
  FillRandom(s.q.As<void>(), int64_t{num_tokens} * c.num_heads * c.dim_qk, c.logit_scale * 3.f, 5);
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
  p.scale = 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  ops::BindPrefillWorkspace(s.plan, s.workspace.As<void>(), &p);
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
  CheckCuda(kernels::cuda::PreparePrefill(s.params, s.plan.rows, s.max_kv, nullptr),
            "PreparePrefill");
  CheckCuda(kernels::cuda::RunPrefill(s.shape.dim_qk, s.shape.dim_v, s.params, nullptr),
            "RunPrefill");
  CheckCuda(cudaDeviceSynchronize(), "RunPrefill");
}

std::vector<uint16_t> PrefillRun::Output() { return state_->out.Read<uint16_t>(); }

AttentionErrors PrefillRun::CompareFloat32(int max_rows) {
  const State& s = *state_;
  ReferenceInputs in;
  in.q = s.q.As<void>();
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
    rows.push_back({sequence, token - s.query_starts[static_cast<size_t>(sequence)],
                    static_cast<int32_t>(row % s.shape.num_heads)});
    index.push_back(row);
  }
  AttentionErrors errors = Compare(Reference(in, rows), index, s.out.Read<uint16_t>(),
                                   s.lse.Read<float>(), s.shape.dim_v);
  // Every element was written, also where no row was sampled.
  for (const uint16_t value : s.out.Read<uint16_t>()) {
    if ((value & 0x7f80) == 0x7f80) errors.finite = false;
  }
  return errors;
}

double PrefillRun::TimeUs(int repeats, L2 l2) {
  const State& s = *state_;
  return TimeCold(
      [&s](cudaStream_t stream) {
        CheckCuda(kernels::cuda::RunPrefill(s.shape.dim_qk, s.shape.dim_v, s.params, stream),
                  "RunPrefill");
      },
      repeats, l2);
}

double PrefillRun::Flops() const {
  const PrefillCase& c = state_->shape;
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
  PrefillCase large = Make(4, 2, 128, 128, true, {2000}, "large logits");
  large.logit_scale = 40;
  cases.push_back(large);
  cases.push_back(Make(8, 2, 128, 128, true, {4097, 300}, "longer"));
  cases.push_back(Make(4, 4, 192, 128, true, {4097}, "longer"));
  cases.push_back(Make(4, 4, 64, 64, true, {4097}, "longer"));
  cases.push_back(Make(2, 2, 128, 128, true, std::vector<int32_t>(200, 33), "many short"));
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
  for (const int length : {16384, 65536}) {
    PrefillCase c = Make(32, 8, 128, 128, true, same(1, length),
                         fmt::format("1 x {}, window 512 + 32 first", length));
    c.window = 512;
    c.anchors = 32;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace fathom::bench
