#include "mla_prefill_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/check.h"
#include "element.h"

namespace fathom::bench {
namespace {

using kernels::cuda::kMlaLatent;
using kernels::cuda::kMlaNope;
using kernels::cuda::kMlaRope;
using kernels::cuda::kMlaV;

constexpr int kQueryDim = kMlaNope + kMlaRope;
constexpr uint16_t kPoison = 0xffff;  // a NaN

std::vector<uint16_t> Random(size_t count, float scale, bool float16, std::minstd_rand& engine) {
  std::vector<uint16_t> values(count);
  const float step = 2 * scale / static_cast<float>(std::minstd_rand::max());
  for (uint16_t& v : values) {
    v = F32ToElement(step * static_cast<float>(engine()) - scale, float16);
  }
  return values;
}

float Dot(const uint16_t* a, const double* b, int count, bool float16) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double{ElementToF32(a[i], float16)} * b[i];
  return static_cast<float>(sum);
}

}  // namespace

struct MlaPrefillRun::State {
  MlaPrefillCase shape;
  ops::MlaPrefillPlan plan;
  kernels::cuda::GemmFunction gemm;
  kernels::cuda::MlaPrefillParams params;
  std::vector<int32_t> query_starts{0};
  // On the host: queries, weights, and the sequences' tokens behind each other.
  std::vector<uint16_t> q, w_uk, w_uv, latents, k_pe;
  std::vector<int64_t> token_starts;
  std::vector<Buffer> buffers;
  Buffer out, lse, workspace;

  template <class T>
  T* Upload(const std::vector<T>& values) {
    return buffers.emplace_back(values).template As<T>();
  }
  void MakeCache();
};

// Pages in a scrambled order; rows without a token are NaN, table entries without a page huge.
void MlaPrefillRun::State::MakeCache() {
  constexpr int32_t kPoisonPage = 2147480000;
  const int page = shape.page_tokens;
  const int64_t longest = *std::max_element(shape.kv_lengths.begin(), shape.kv_lengths.end());
  const int64_t stride = (longest + page - 1) / page + 3;
  int64_t num_pages = 3;
  for (const int32_t length : shape.kv_lengths) num_pages += (length + page - 1) / page;
  std::vector<int32_t> table(shape.kv_lengths.size() * static_cast<size_t>(stride), kPoisonPage);
  int64_t step = 7919;
  while (std::gcd(step, num_pages) != 1) ++step;
  const int64_t rows = num_pages * page;
  const int64_t latent_row = shape.interleaved ? kMlaLatent + kMlaRope : kMlaLatent;
  const int64_t rope_row = shape.interleaved ? latent_row : kMlaRope;
  std::vector<uint16_t> planes[2];
  planes[0].assign(static_cast<size_t>(rows * latent_row), kPoison);
  if (!shape.interleaved) planes[1].assign(static_cast<size_t>(rows * rope_row), kPoison);
  uint16_t* rope = shape.interleaved ? planes[0].data() + kMlaLatent : planes[1].data();
  int64_t next = 1;
  int64_t token = 0;
  for (size_t b = 0; b < shape.kv_lengths.size(); ++b) {
    token_starts.push_back(token);
    for (int64_t i = 0; i < shape.kv_lengths[b]; ++i, ++token) {
      if (i % page == 0) {
        next = (next + step) % num_pages;
        table[b * static_cast<size_t>(stride) + static_cast<size_t>(i / page)] =
            static_cast<int32_t>(next);
      }
      const int64_t row = next * page + i % page;
      std::copy_n(latents.begin() + token * kMlaLatent, kMlaLatent,
                  planes[0].begin() + row * latent_row);
      std::copy_n(k_pe.begin() + token * kMlaRope, kMlaRope, rope + row * rope_row);
    }
  }
  const uint16_t* first = Upload(planes[0]);
  const uint16_t* second = shape.interleaved ? first + kMlaLatent : Upload(planes[1]);
  params.plane[0] = {first, page * latent_row * 2, latent_row * 2, latent_row * 2};
  params.plane[1] = {second, page * rope_row * 2, rope_row * 2, rope_row * 2};
  params.num_pages = num_pages;
  params.page_table = Upload(table);
  params.page_table_stride = stride;
}

MlaPrefillRun::MlaPrefillRun(MlaPrefillCase shape, ops::MlaPrefillOptions options,
                             const ops::GpuLimits& gpu, kernels::cuda::GemmFunction gemm)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = std::move(shape);
  s.gemm = std::move(gemm);
  MlaPrefillCase& c = s.shape;
  if (c.query_tokens.empty()) c.query_tokens = c.kv_lengths;
  for (const int32_t n : c.query_tokens) s.query_starts.push_back(s.query_starts.back() + n);
  const int tokens = s.query_starts.back();
  const int64_t keys = std::accumulate(c.kv_lengths.begin(), c.kv_lengths.end(), int64_t{0});
  options.max_states = c.max_states;
  if (c.part_keys != 0) {
    options.expanded_bytes = int64_t{c.part_keys} *
                             (kMlaLatent + kMlaRope + int64_t{c.num_heads} * (kMlaNope + kMlaV)) *
                             2;
  }
  const int32_t longest = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());
  const auto plan = ops::PlanMlaPrefill({.num_sequences = static_cast<int32_t>(c.kv_lengths.size()),
                                         .num_tokens = tokens,
                                         .max_kv_tokens = longest,
                                         .max_total_kv_tokens = keys + c.spare_keys,
                                         .num_heads = c.num_heads,
                                         .page_tokens = c.page_tokens,
                                         .causal = c.causal,
                                         .dtype = c.float16 ? DType::kF16 : DType::kBF16},
                                        options, gpu);
  FATHOM_CHECK(plan.has_value(), "{}", plan.error().message);
  s.plan = *plan;

  std::minstd_rand engine(41);
  // Keys and values as large as latents are.
  const float weight = std::sqrt(3.F / kMlaLatent);
  const auto weights = static_cast<size_t>(c.num_heads) * kMlaNope * kMlaLatent;
  const auto rows = static_cast<size_t>(tokens) * c.num_heads;
  s.latents = Random(static_cast<size_t>(keys) * kMlaLatent, 1, c.float16, engine);
  s.k_pe = Random(static_cast<size_t>(keys) * kMlaRope, 1, c.float16, engine);
  s.w_uk = Random(weights, weight, c.float16, engine);
  s.w_uv = Random(weights, weight, c.float16, engine);
  s.q = Random(rows * kQueryDim, 3, c.float16, engine);
  s.MakeCache();
  s.out = Buffer(static_cast<int64_t>(rows) * kMlaV * 2);
  s.lse = Buffer(static_cast<int64_t>(rows) * 4);
  s.workspace = Buffer(s.plan.workspace_bytes);
  s.workspace.Fill(0xff);
  CheckCuda(cudaMemset(s.workspace.As<void>(), 0, static_cast<size_t>(s.plan.zeroed_bytes)),
            "zero the counter");

  auto& p = s.params;
  p.q = s.Upload(s.q);
  p.q_token_stride = int64_t{c.num_heads} * kQueryDim;
  p.q_head_stride = kQueryDim;
  p.num_tokens = tokens;
  p.kv_lengths = s.Upload(c.kv_lengths);
  p.query_starts = s.Upload(s.query_starts);
  p.w_uk = s.Upload(s.w_uk);
  p.w_uv = s.Upload(s.w_uv);
  p.out = s.out.As<void>();
  p.lse = s.lse.As<float>();
  p.scale = 1.F / std::sqrt(static_cast<float>(kQueryDim));
  ops::BindMlaPrefillWorkspace(s.plan, s.workspace.As<void>(), &p);
  const Status legal = ops::CheckMlaPrefillParams(s.plan, p);
  FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
}

MlaPrefillRun::~MlaPrefillRun() = default;

const ops::MlaPrefillPlan& MlaPrefillRun::plan() const { return state_->plan; }

void MlaPrefillRun::Run() {
  const State& s = *state_;
  s.out.Fill(0xff);
  s.lse.Fill(0xff);
  CheckCuda(kernels::cuda::PrepareMlaPrefill(s.params, s.plan.prefill.rows, nullptr),
            "PrepareMlaPrefill");
  CheckCuda(kernels::cuda::RunMlaPrefill(s.params, s.gemm, nullptr), "RunMlaPrefill");
  CheckCuda(cudaDeviceSynchronize(), "RunMlaPrefill");
}

std::vector<uint16_t> MlaPrefillRun::Output() { return state_->out.Read<uint16_t>(); }

// Absorbed: the query goes into the latent space and the weighted latents come back, so that the
// reference rounds nothing that the kernels expand.
AttentionErrors MlaPrefillRun::CompareFloat64(int max_rows) {
  const State& s = *state_;
  const MlaPrefillCase& c = s.shape;
  const std::vector<uint16_t> out = s.out.Read<uint16_t>();
  const std::vector<float> lse = s.lse.Read<float>();
  AttentionErrors errors;
  const auto value = [&c](uint16_t x) { return double{ElementToF32(x, c.float16)}; };
  errors.finite =
      std::all_of(out.begin(), out.end(), [&](uint16_t x) { return std::isfinite(value(x)); });
  const int64_t total = int64_t{s.query_starts.back()} * c.num_heads;
  int64_t stride = std::max<int64_t>(1, total / max_rows);
  while (std::gcd(stride, total) != 1) ++stride;
  double difference = 0;
  double norm = 0;
  int64_t row = total - 1;  // the last one sees the most
  for (int64_t i = 0; i < std::min<int64_t>(total, max_rows); ++i, row = (row + stride) % total) {
    const auto token = static_cast<int32_t>(row / c.num_heads);
    const int64_t head = row % c.num_heads;
    const auto after = std::upper_bound(s.query_starts.begin(), s.query_starts.end(), token);
    const auto b = static_cast<size_t>(after - s.query_starts.begin()) - 1;
    const int behind = s.query_starts[b + 1] - 1 - token;  // queries that follow
    const int64_t visible = c.causal ? c.kv_lengths[b] - behind : c.kv_lengths[b];
    std::vector<double> query(kMlaLatent + kMlaRope, 0.0);
    const uint16_t* q = s.q.data() + row * kQueryDim;
    for (int d = 0; d < kMlaNope; ++d) {
      const uint16_t* w = s.w_uk.data() + (head * kMlaNope + d) * kMlaLatent;
      for (size_t l = 0; l < kMlaLatent; ++l) query[l] += value(q[d]) * value(w[l]);
    }
    for (size_t d = 0; d < kMlaRope; ++d) query[kMlaLatent + d] = value(q[kMlaNope + d]);
    std::vector<double> p(static_cast<size_t>(std::max<int64_t>(visible, 0)));
    for (size_t key = 0; key < p.size(); ++key) {
      const auto at = s.token_starts[b] + static_cast<int64_t>(key);
      p[key] =
          (double{Dot(s.latents.data() + at * kMlaLatent, query.data(), kMlaLatent, c.float16)} +
           Dot(s.k_pe.data() + at * kMlaRope, query.data() + kMlaLatent, kMlaRope, c.float16)) *
          s.params.scale;
    }
    const double peak = p.empty() ? 0 : *std::max_element(p.begin(), p.end());
    double sum = 0;
    std::vector<double> context(kMlaLatent, 0.0);
    for (size_t key = 0; key < p.size(); ++key) {
      const double weight = std::exp(p[key] - peak);
      sum += weight;
      const uint16_t* latent =
          s.latents.data() + (s.token_starts[b] + static_cast<int64_t>(key)) * kMlaLatent;
      for (size_t l = 0; l < kMlaLatent; ++l) context[l] += weight * value(latent[l]);
    }
    for (int d = 0; d < kMlaV; ++d) {
      const uint16_t* w = s.w_uv.data() + (head * kMlaV + d) * kMlaLatent;
      const double want = sum > 0 ? double{Dot(w, context.data(), kMlaLatent, c.float16)} / sum : 0;
      const double error = value(out[static_cast<size_t>(row * kMlaV + d)]) - want;
      difference += error * error;
      norm += want * want;
    }
    const float got = lse[static_cast<size_t>(row)];
    if (sum == 0) {
      if (!std::isinf(got) || got > 0) errors.lse = std::numeric_limits<double>::infinity();
    } else {
      const double gap = std::abs(peak + std::log(sum) - got);
      errors.lse = std::isfinite(gap) ? std::max(errors.lse, gap) : HUGE_VAL;
    }
  }
  errors.out = std::sqrt(norm > 0 ? difference / norm : difference);
  return errors;
}

double MlaPrefillRun::TimeUs(int repeats, L2 l2) {
  const State& s = *state_;
  return TimeCold(
      [&s](cudaStream_t stream) {
        CheckCuda(kernels::cuda::RunMlaPrefill(s.params, s.gemm, stream), "RunMlaPrefill");
      },
      repeats, l2);
}

double MlaPrefillRun::AttentionFlops() const {
  const MlaPrefillCase& c = state_->shape;
  double pairs = 0;
  for (size_t b = 0; b < c.kv_lengths.size(); ++b) {
    const double keys = c.kv_lengths[b];
    const double queries = c.query_tokens[b];
    pairs += c.causal ? queries * keys - queries * (queries - 1) / 2 : queries * keys;
  }
  return 2 * pairs * c.num_heads * (kQueryDim + kMlaV);
}

double MlaPrefillRun::ExpansionFlops() const {
  const MlaPrefillCase& c = state_->shape;
  const double keys = std::accumulate(c.kv_lengths.begin(), c.kv_lengths.end(), 0.0);
  return 2 * keys * kMlaLatent * c.num_heads * (kMlaNope + kMlaV);
}

namespace {

MlaPrefillCase Make(int heads, std::vector<int32_t> lengths, const std::string& what) {
  MlaPrefillCase c{.num_heads = heads, .kv_lengths = std::move(lengths)};
  c.name = fmt::format("mla {}h {}", heads, what);
  return c;
}

}  // namespace

std::vector<MlaPrefillCase> MlaPrefillCheckCases() {
  std::vector<MlaPrefillCase> cases;
  const std::vector<int32_t> odd = {1, 63, 0, 65, 257, 640};
  for (const int page : {16, 32, 64, 128}) {
    for (const int part_keys : {0, 256}) {
      MlaPrefillCase c = Make(
          4, odd,
          fmt::format("odd lengths, pages of {}{}", page, part_keys == 0 ? "" : ", parts of 256"));
      c.page_tokens = page;
      c.part_keys = part_keys;
      c.interleaved = page == 32;
      cases.push_back(c);
    }
  }
  for (const int heads : {4, 16, 128}) {
    MlaPrefillCase c = Make(heads, {4097}, "longer, parts of 1024");
    c.part_keys = 1024;
    cases.push_back(c);
    c = Make(heads, {9000, 3, 700}, "chunks of a longer cache, parts of 2048");
    c.query_tokens = {512, 2, 129};
    c.part_keys = 2048;
    cases.push_back(c);
  }
  MlaPrefillCase c = Make(4, {4097, 300}, "many parts, few merged at once");
  c.part_keys = 256;
  c.max_states = 3;
  cases.push_back(c);
  c = Make(4, {700, 1000}, "full, parts of 512");
  c.query_tokens = {100, 1000};
  c.part_keys = 512;
  c.causal = false;
  cases.push_back(c);
  c = Make(4, {900}, "planned for more, parts of 512");
  c.part_keys = 512;
  c.spare_keys = 3000;
  cases.push_back(c);
  c = Make(4, odd, "odd lengths, parts of 256, float16");
  c.part_keys = 256;
  c.float16 = true;
  cases.push_back(c);
  c = Make(16, {9000, 3, 700}, "chunks of a longer cache, parts of 2048, float16");
  c.query_tokens = {512, 2, 129};
  c.part_keys = 2048;
  c.float16 = true;
  cases.push_back(c);
  return cases;
}

std::vector<MlaPrefillCase> MlaPrefillTimeCases() {
  std::vector<MlaPrefillCase> cases;
  for (const int heads : {16, 128}) {
    cases.push_back(Make(heads, {4096}, "1 x 4096"));
    cases.push_back(Make(heads, {32768}, "2048 of 32768"));
    cases.back().query_tokens = {2048};
    // Other workspaces: for 16 heads small enough for L2, for 128 larger than the default.
    for (const int part_keys : heads == 16 ? std::array{4096, 32768} : std::array{8192, 16384}) {
      MlaPrefillCase c = Make(heads, {32768}, fmt::format("2048 of 32768, parts of {}", part_keys));
      c.query_tokens = {2048};
      c.part_keys = part_keys;
      cases.push_back(c);
    }
    cases.push_back(Make(heads, {4096}, "1 x 4096, float16"));
    cases.back().float16 = true;
  }
  return cases;
}

}  // namespace fathom::bench
