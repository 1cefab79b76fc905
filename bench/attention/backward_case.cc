#include "backward_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

#include "base/check.h"
#include "base/dtype.h"
#include "element.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/prefill_attention.h"

namespace fathom::bench {
namespace {

std::vector<uint16_t> Noise(size_t count, float scale, uint32_t seed, bool float16) {
  std::minstd_rand engine(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = F32ToElement(uniform(engine), float16);
  return values;
}

}  // namespace

struct BackwardRun::State {
  BackwardCase shape;
  kernels::cuda::BackwardParams params;
  kernels::cuda::PrefillParams forward;
  ops::PrefillAttentionPlan plan;
  std::vector<uint16_t> host_q, host_k, host_v, host_d_out;
  Buffer q, k, v, d_out, out, lse, d_q, d_k, d_v, stats, starts, kv_starts, lengths, workspace;
};

BackwardRun::BackwardRun(BackwardCase shape, const ops::GpuLimits& gpu)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = std::move(shape);
  const BackwardCase& c = s.shape;
  const int tokens = c.batch * c.length;
  const size_t q_size = static_cast<size_t>(tokens) * c.num_heads * c.dim;
  const size_t k_size = static_cast<size_t>(tokens) * c.num_kv_heads * c.dim;
  s.host_q = Noise(q_size, 2, 11, c.float16);
  s.host_k = Noise(k_size, 1, 12, c.float16);
  s.host_v = Noise(k_size, 1, 13, c.float16);
  s.host_d_out = Noise(q_size, c.d_out_scale, 14, c.float16);
  if (c.sink != 0) {  // along each head's first element
    const auto dim = static_cast<size_t>(c.dim);
    const float score = c.sink * std::numbers::ln2_v<float> * std::sqrt(static_cast<float>(c.dim));
    const size_t sequence = k_size / static_cast<size_t>(c.batch);
    for (size_t i = 0; i < q_size; i += dim) s.host_q[i] = F32ToElement(1, c.float16);
    for (size_t i = 0; i < k_size; i += dim) {
      const bool first = i % sequence < static_cast<size_t>(c.num_kv_heads) * dim;
      s.host_k[i] = F32ToElement(first ? score : 0, c.float16);
    }
  }
  s.q = Buffer(s.host_q);
  s.k = Buffer(s.host_k);
  s.v = Buffer(s.host_v);
  s.d_out = Buffer(s.host_d_out);
  const auto q_bytes = static_cast<int64_t>(q_size * 2);
  const auto k_bytes = static_cast<int64_t>(k_size * 2);
  s.out = Buffer(q_bytes);
  s.lse = Buffer(int64_t{tokens} * c.num_heads * 4);
  s.d_q = Buffer(q_bytes);
  s.d_k = Buffer(k_bytes);
  s.d_v = Buffer(k_bytes);
  s.stats = Buffer(int64_t{tokens} * c.num_heads * 8);

  std::vector<int32_t> starts, lengths(static_cast<size_t>(c.batch), c.length);
  for (int b = 0; b <= c.batch; ++b) starts.push_back(b * c.length);
  s.starts = Buffer(starts);
  s.kv_starts = Buffer(starts);
  s.lengths = Buffer(lengths);
  const auto plan = ops::PlanPrefillAttention({.num_sequences = c.batch,
                                               .num_tokens = tokens,
                                               .max_kv_tokens = c.length,
                                               .num_heads = c.num_heads,
                                               .num_kv_heads = c.num_kv_heads,
                                               .head_dim_qk = c.dim,
                                               .head_dim_v = c.dim,
                                               .causal = c.causal,
                                               .dtype = c.float16 ? DType::kF16 : DType::kBF16},
                                              {}, gpu);
  FATHOM_CHECK(plan.has_value(), "{}", plan.error().message);
  s.plan = *plan;
  s.workspace = Buffer(s.plan.workspace_bytes);
  CheckCuda(cudaMemset(s.workspace.As<void>(), 0, static_cast<size_t>(s.plan.zeroed_bytes)),
            "zero the counter");
  auto& f = s.forward;
  const int64_t q_stride = int64_t{c.num_heads} * c.dim;
  const int64_t k_stride = int64_t{c.num_kv_heads} * c.dim;
  f.q = s.q.As<void>();
  f.q_token_stride = f.out_token_stride = q_stride;
  f.q_head_stride = f.out_head_stride = c.dim;
  f.num_tokens = tokens;
  f.k = {s.k.As<void>(), tokens * k_stride * 2, k_stride * 2, int64_t{c.dim} * 2};
  f.v = {s.v.As<void>(), tokens * k_stride * 2, k_stride * 2, int64_t{c.dim} * 2};
  f.num_pages = 1;
  f.page_tokens = tokens;
  f.kv_starts = s.kv_starts.As<int32_t>();
  f.kv_lengths = s.lengths.As<int32_t>();
  f.query_starts = s.starts.As<int32_t>();
  f.out = s.out.As<void>();
  f.lse = s.lse.As<float>();
  f.scale = 1.f / std::sqrt(static_cast<float>(c.dim));
  ops::BindPrefillWorkspace(s.plan, s.workspace.As<void>(), &f);

  auto& p = s.params;
  p.q = {s.q.As<void>(), q_stride, c.dim};
  p.k = {s.k.As<void>(), k_stride, c.dim};
  p.v = {s.v.As<void>(), k_stride, c.dim};
  p.out = {s.out.As<void>(), q_stride, c.dim};
  p.d_out = {s.d_out.As<void>(), q_stride, c.dim};
  p.lse = s.lse.As<float>();
  p.d_q = {s.d_q.As<void>(), q_stride, c.dim};
  p.d_k = {s.d_k.As<void>(), k_stride, c.dim};
  p.d_v = {s.d_v.As<void>(), k_stride, c.dim};
  p.row_stats = s.stats.As<float>();
  p.scale = f.scale;
  p.causal = c.causal;
  p.float16 = c.float16;
  p.batch = c.batch;
  p.length = c.length;
  p.num_heads = c.num_heads;
  p.num_kv_heads = c.num_kv_heads;
  const Status legal = ops::CheckBackwardParams(p, c.dim, gpu);
  FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
}

BackwardRun::~BackwardRun() = default;

void BackwardRun::Run() {
  const State& s = *state_;
  for (const Buffer* buffer : {&s.out, &s.lse, &s.d_q, &s.d_k, &s.d_v, &s.stats}) {
    buffer->Fill(0xff);
  }
  CheckCuda(kernels::cuda::PreparePrefill(s.forward, s.plan.rows, s.shape.length, nullptr),
            "PreparePrefill");
  CheckCuda(kernels::cuda::RunPrefill(s.shape.dim, s.shape.dim, s.forward, nullptr), "RunPrefill");
  CheckCuda(kernels::cuda::RunBackward(s.shape.dim, s.params, nullptr), "RunBackward");
  CheckCuda(cudaDeviceSynchronize(), "RunBackward");
}

std::vector<uint16_t> BackwardRun::Output() const {
  auto all = state_->d_q.Read<uint16_t>();
  for (const Buffer* buffer : {&state_->d_k, &state_->d_v}) {
    const auto more = buffer->Read<uint16_t>();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

GradientErrors BackwardRun::Compare(int rows) const {
  const State& s = *state_;
  const BackwardCase& c = s.shape;
  const auto out = s.out.Read<uint16_t>();
  const auto lse = s.lse.Read<float>();
  const int group = c.num_heads / c.num_kv_heads;
  const auto dim = static_cast<size_t>(c.dim);
  const auto value = [&c](uint16_t bits) { return double{ElementToF32(bits, c.float16)}; };
  const auto dot = [dim, &value](const uint16_t* a, const uint16_t* b) {
    double sum = 0;
    for (size_t d = 0; d < dim; ++d) sum += value(a[d]) * value(b[d]);
    return sum;
  };
  const auto q_row = [&](int b, int i, int h) {
    return (static_cast<size_t>(b) * c.length + i) * c.num_heads + h;
  };
  const auto k_row = [&](int b, int j, int h) {
    return (static_cast<size_t>(b) * c.length + j) * c.num_kv_heads + h;
  };
  // Probability of a pair, and its gradient.
  const auto pair = [&](size_t q, size_t k, double* p, double* d_s) {
    *p = std::exp(dot(&s.host_q[q * dim], &s.host_k[k * dim]) * s.params.scale - lse[q]);
    const double delta = dot(&s.host_d_out[q * dim], &out[q * dim]);
    *d_s = *p * (dot(&s.host_d_out[q * dim], &s.host_v[k * dim]) - delta) * s.params.scale;
  };
  struct Sum {
    double difference = 0;
    double norm = 0;
    void Add(const std::vector<double>& want, const uint16_t* got, bool float16) {
      for (size_t d = 0; d < want.size(); ++d) {
        const double found = ElementToF32(got[d], float16);
        if (!std::isfinite(found)) difference = std::numeric_limits<double>::quiet_NaN();
        difference += (found - want[d]) * (found - want[d]);
        norm += want[d] * want[d];
      }
    }
    double Error() const {
      return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
    }
  } errors[3];
  const auto got_q = s.d_q.Read<uint16_t>();
  const auto got_k = s.d_k.Read<uint16_t>();
  const auto got_v = s.d_v.Read<uint16_t>();
  std::minstd_rand engine(1);
  for (int n = 0; n < rows; ++n) {
    const int b = static_cast<int>(engine() % static_cast<unsigned>(c.batch));
    const int i = static_cast<int>(engine() % static_cast<unsigned>(c.length));
    const int h = static_cast<int>(engine() % static_cast<unsigned>(c.num_heads));
    if (c.sink != 0 && i == 0) continue;
    std::vector<double> d_q(dim), d_k(dim), d_v(dim);
    double p, d_s;
    for (int j = 0; j < (c.causal ? i + 1 : c.length); ++j) {
      const size_t k = k_row(b, j, h / group);
      pair(q_row(b, i, h), k, &p, &d_s);
      for (size_t d = 0; d < dim; ++d) d_q[d] += d_s * value(s.host_k[k * dim + d]);
    }
    errors[0].Add(d_q, &got_q[q_row(b, i, h) * dim], c.float16);
    const size_t k = k_row(b, i, h / group);
    for (int other = h / group * group; other < (h / group + 1) * group; ++other) {
      for (int j = c.causal ? i : 0; j < c.length; ++j) {
        const size_t q = q_row(b, j, other);
        pair(q, k, &p, &d_s);
        for (size_t d = 0; d < dim; ++d) {
          d_k[d] += d_s * value(s.host_q[q * dim + d]);
          d_v[d] += p * value(s.host_d_out[q * dim + d]);
        }
      }
    }
    errors[1].Add(d_k, &got_k[k * dim], c.float16);
    errors[2].Add(d_v, &got_v[k * dim], c.float16);
  }
  // Every element was written, also where no row was sampled.
  GradientErrors result{errors[0].Error(), errors[1].Error(), errors[2].Error()};
  for (const uint16_t bits : Output()) {
    if (!std::isfinite(value(bits))) result.d_q = std::numeric_limits<double>::infinity();
  }
  return result;
}

double BackwardRun::TimeUs(int repeats, L2 l2) {
  const State& s = *state_;
  return TimeCold(
      [&s](cudaStream_t stream) {
        CheckCuda(kernels::cuda::RunBackward(s.shape.dim, s.params, stream), "RunBackward");
      },
      repeats, l2);
}

double BackwardRun::Flops() const {
  const BackwardCase& c = state_->shape;
  const double pairs =
      c.causal ? double{1} * c.length * (c.length + 1) / 2 : double{1} * c.length * c.length;
  return 2 * 5 * pairs * c.dim * c.num_heads * c.batch;
}

std::vector<BackwardCase> BackwardCheckCases() {
  std::vector<BackwardCase> cases;
  for (const bool float16 : {false, true}) {
    for (const bool causal : {true, false}) {
      for (const int dim : {64, 128}) {
        for (const int length : {1, 63, 65, 200, 513}) {
          BackwardCase c{.batch = 2,
                         .length = length,
                         .num_heads = 4,
                         .num_kv_heads = length % 2 == 0 ? 4 : 2,
                         .dim = dim,
                         .causal = causal,
                         .float16 = float16};
          c.name = fmt::format("backward d{} {} {}{}", dim, causal ? "causal" : "full", length,
                               float16 ? ", float16" : "");
          cases.push_back(c);
          if (length != 200) continue;
          c.name += ", a sink";
          c.sink = 18;
          c.d_out_scale = 512;  // so that the others' gradients are not too small for float16
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

std::vector<BackwardCase> BackwardTimeCases() {
  std::vector<BackwardCase> cases;
  for (const bool causal : {true, false}) {
    for (const auto& [batch, length, heads, dim] : {std::array{4, 2048, 16, 128},
                                                    {2, 4096, 16, 128},
                                                    {1, 8192, 16, 128},
                                                    {4, 2048, 32, 64},
                                                    {2, 4096, 32, 64}}) {
      for (const bool float16 : {false, true}) {
        if (float16 && length == 8192) continue;
        cases.push_back(
            {fmt::format("backward {}h d{} {} {} x {}{}", heads, dim, causal ? "causal" : "full",
                         batch, length, float16 ? ", float16" : ""),
             batch, length, heads, heads, dim, causal, float16});
      }
    }
  }
  return cases;
}

}  // namespace fathom::bench
