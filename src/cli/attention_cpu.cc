#include "cli/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/clock.h"
#include "cost/measure.h"
#include "ops/cpu_isa.h"
#include "ops/sparse_attention.h"

namespace fathom::cli {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 31;  // of one array
constexpr int64_t kCheckedRows = 16;

struct Inputs {
  ops::CacheView cache;
  std::vector<uint16_t> pages;  // bf16
  std::vector<int32_t> table;   // [sequences, stride]
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> lengths;
  std::vector<int32_t> live;
  std::vector<ops::Role> roles;
  std::vector<float> q, out;
  ops::StepInputs step;
};

std::vector<uint16_t> RandomBf16(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  // 2^-24 of 24 random bits: even on (-1, 1).
  for (uint16_t& v : values) {
    v = F32ToBf16(static_cast<float>(static_cast<int32_t>(random()) >> 7) * 0x1p-24F);
  }
  return values;
}

Result<Inputs> MakeInputs(const ops::AttentionCase& problem) {
  const cost::AttentionCall& call = problem.call;
  Inputs in;
  FATHOM_ASSIGN_OR_RETURN(
      in.cache.format, ops::MakeGqaFormat(1, call.kv_heads, call.dim_qk, call.dim_v, DType::kBF16,
                                          problem.page_tokens == 0 ? 64 : problem.page_tokens,
                                          ops::RopeState::kRotatedHalves));
  const int64_t page_tokens = in.cache.format.page_tokens;
  int64_t pages = 0;
  int64_t stride = 1;
  int64_t tokens = 0;
  int64_t longest = 0;
  for (const cost::AttentionSequence& s : call.sequences) {
    const int64_t of = (s.keys + page_tokens - 1) / page_tokens;
    pages += of;
    stride = std::max(stride, of);
    tokens += s.queries;
    longest = std::max(longest, s.queries);
  }
  const int64_t row = std::max(call.dim_qk, call.dim_v);
  if (pages * in.cache.format.page_bytes / 2 > kMaxElements ||
      tokens * call.heads * row > kMaxElements) {
    return Err(Code::kResourceExhausted,
               "bench attention --device cpu: {} pages and {} query rows: expected at most {} "
               "elements in each array",
               pages, tokens * call.heads, kMaxElements);
  }
  in.pages = RandomBf16(static_cast<size_t>(pages * in.cache.format.page_bytes / 2), 1);
  in.cache.base = in.pages.data();
  in.cache.num_pages = pages;
  int64_t step = 7919;
  while (std::gcd(step, pages) != 1) ++step;
  in.table.assign(call.sequences.size() * static_cast<size_t>(stride), 0);
  int64_t next = 0;
  for (size_t i = 0; i < call.sequences.size(); ++i) {
    const cost::AttentionSequence& s = call.sequences[i];
    for (int64_t p = 0; p * page_tokens < s.keys; ++p, next = (next + step) % pages) {
      in.table[i * static_cast<size_t>(stride) + static_cast<size_t>(p)] =
          static_cast<int32_t>(next);
    }
    in.starts.push_back(in.starts.back() + static_cast<int32_t>(s.queries));
    in.lengths.push_back(static_cast<int32_t>(s.keys));
  }
  const auto count = static_cast<int32_t>(call.sequences.size());
  in.live = {in.starts.back(), count, 0};
  in.roles.assign(call.sequences.size(),
                  problem.decode ? ops::Role::kGenerated : ops::Role::kPrompt);
  for (const uint16_t v : RandomBf16(static_cast<size_t>(tokens * call.heads * call.dim_qk), 2)) {
    in.q.push_back(3 * Bf16ToF32(v));
  }
  in.out.assign(static_cast<size_t>(tokens * call.heads * call.dim_v), NAN);
  in.step.bucket = {.num_tokens = in.starts.back(),
                    .num_sequences = count,
                    .max_query_tokens = static_cast<int32_t>(longest),
                    .max_kv_tokens = static_cast<int32_t>(stride * page_tokens)};
  in.step.live_counts = in.live.data();
  in.step.query_starts = in.starts.data();
  in.step.kv_lengths = in.lengths.data();
  in.step.roles = in.roles.data();
  in.step.page_tables[0] = in.table.data();
  in.step.page_table_stride[0] = static_cast<int32_t>(stride);
  return in;
}

// Element d of a cached row.
double Cached(const Inputs& in, const ops::Plane& plane, int64_t sequence, int64_t token,
              int64_t head, int64_t d) {
  const int64_t page_tokens = in.cache.format.page_tokens;
  const int64_t page =
      in.table[static_cast<size_t>(sequence * in.step.page_table_stride[0] + token / page_tokens)];
  const int64_t byte = page * in.cache.format.page_bytes + plane.offset_bytes +
                       head * plane.head_stride_bytes +
                       token % page_tokens * plane.token_stride_bytes + d * 2;
  return Bf16ToF32(in.pages[static_cast<size_t>(byte / 2)]);
}

// Rows spread over the output, against float64.
double CheckRows(const ops::AttentionCase& problem, const Inputs& in, float scale,
                 const ops::sparse::Plan& masks) {
  const cost::AttentionCall& call = problem.call;
  const ops::Plane& keys = *in.cache.format.Find(ops::PlaneKind::kK);
  const ops::Plane& values = *in.cache.format.Find(ops::PlaneKind::kV);
  const int64_t rows = int64_t{in.starts.back()} * call.heads;
  double worst = 0;
  double largest = 0;
  for (int64_t i = 0; i < std::min(rows, kCheckedRows); ++i) {
    const int64_t row = i * (rows - 1) / std::max<int64_t>(1, std::min(rows, kCheckedRows) - 1);
    const auto token = static_cast<int32_t>(row / call.heads);
    const auto head = static_cast<int32_t>(row % call.heads);
    const auto after = std::upper_bound(in.starts.begin(), in.starts.end(), token);
    const auto sequence = static_cast<int32_t>(after - in.starts.begin()) - 1;
    const int32_t query = token - in.starts[static_cast<size_t>(sequence)];
    const int64_t kv_head = head / (call.heads / call.kv_heads);
    std::vector<double> scores;
    std::vector<int32_t> seen;
    for (int32_t k = 0; k < in.lengths[static_cast<size_t>(sequence)]; ++k) {
      if (!masks.Sees(sequence, 0, query, k)) continue;
      double sum = 0;
      for (int64_t d = 0; d < call.dim_qk; ++d) {
        sum += double{in.q[static_cast<size_t>(row * call.dim_qk + d)]} *
               Cached(in, keys, sequence, k, kv_head, d);
      }
      scores.push_back(sum * scale);
      seen.push_back(k);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - max);
    for (int64_t d = 0; d < call.dim_v; ++d) {
      double want = 0;
      for (size_t t = 0; t < seen.size(); ++t) {
        want += scores[t] * Cached(in, values, sequence, seen[t], kv_head, d);
      }
      want /= sum;
      const double found = in.out[static_cast<size_t>(row * call.dim_v + d)];
      if (!(std::abs(found - want) <= worst)) worst = std::abs(found - want);  // a NaN stays
      largest = std::max(largest, std::abs(want));
    }
  }
  return worst / largest;
}

}  // namespace

Result<CpuAttentionResult> RunCpuAttention(const ops::AttentionCase& problem,
                                           const CpuAttentionOptions& options) {
  const cost::AttentionCall& call = problem.call;
  if (call.latent || call.expanded_from != 0 || call.cache != cost::CacheEncoding::kBF16) {
    return Err(Code::kUnsupported,
               "bench attention --device cpu: expected GQA over a bf16 cache; MLA is timed with "
               "its projections by bench model");
  }
  if (!call.causal && call.window < 0) {
    return Err(Code::kUnsupported,
               "bench attention --device cpu: the dense op is causal; with --window it need not "
               "be");
  }
  FATHOM_ASSIGN_OR_RETURN(const int threads, ThreadsFor(options.threads));
  FATHOM_ASSIGN_OR_RETURN(const kernels::cpu::KernelTable* cpu, ops::SelectCpu(options.cpu_isa));
  ThreadPool pool(threads);
  FATHOM_ASSIGN_OR_RETURN(Inputs in, MakeInputs(problem));

  ops::sparse::HeadPolicy head;
  if (call.window >= 0) {
    head = {ops::sparse::HeadRole::kLocal,
            static_cast<int32_t>(std::min<int64_t>(call.window, 1 << 30)),
            static_cast<int32_t>(std::min<int64_t>(call.anchors, 1 << 30))};
  }
  std::vector<ops::sparse::Sequence> sequences;
  for (const cost::AttentionSequence& s : call.sequences) {
    sequences.push_back({static_cast<int32_t>(s.queries), static_cast<int32_t>(s.keys)});
  }
  constexpr int kTileRows = 128;
  const int group = call.heads / call.kv_heads;
  FATHOM_ASSIGN_OR_RETURN(
      ops::sparse::Plan lists,
      ops::sparse::MakePlan({.num_heads = call.heads,
                             .num_kv_heads = call.kv_heads,
                             .tile_queries = std::max(1, kTileRows / group)},
                            {.causal = call.causal, .heads = {head}}, std::move(sequences)));
  const auto tiles = std::make_shared<const ops::sparse::Plan>(std::move(lists));

  const std::unique_ptr<ops::Device> device = ops::MakeCpuDevice();
  const ops::attention::GqaShape shape{
      .num_heads = call.heads,
      .num_kv_heads = call.kv_heads,
      .head_dim = call.dim_qk,
      .head_dim_v = call.dim_v,
      .softmax_scale = 1 / std::sqrt(static_cast<float>(call.dim_qk)),
      .precision = ops::Precision::kBF16};
  const auto view = [&](std::vector<float>& data, int64_t dim) {
    return TensorView::Contiguous(data.data(), DType::kF32, {in.starts.back(), call.heads, dim});
  };
  const bool sparse = call.window >= 0;
  FATHOM_ASSIGN_OR_RETURN(
      const ops::attention::SparsePlan sparse_plan,
      ops::attention::MakePlan(shape, in.cache.format, tiles, pool.num_threads()));
  FATHOM_ASSIGN_OR_RETURN(
      const ops::attention::Plan dense_plan,
      ops::attention::MakePlan(shape, in.cache.format, in.step.bucket, pool.num_threads()));
  FATHOM_ASSIGN_OR_RETURN(const ops::DeviceBuffer scratch,
                          ops::DeviceBuffer::Make(*device, std::max(sparse_plan.workspace_bytes,
                                                                    dense_plan.workspace_bytes)));
  ops::Comm comm;
  std::vector<double> us;
  for (int i = 0; i < std::max(1, options.repeats); ++i) {
    Arena arena({static_cast<std::byte*>(scratch.data()), scratch.size()});
    ops::Context context{
        .device = *device, .pool = pool, .cpu = *cpu, .comm = comm, .arena = arena, .sink = {}};
    const int64_t start = NowNs();
    if (sparse) {
      FATHOM_TRY(ops::attention::Run(
          sparse_plan, shape,
          {.q = view(in.q, call.dim_qk), .out = view(in.out, call.dim_v), .cache = in.cache},
          in.step, context));
    } else {
      FATHOM_TRY(ops::attention::Run(
          dense_plan, shape,
          {.q = view(in.q, call.dim_qk), .out = view(in.out, call.dim_v), .cache = in.cache},
          in.step, context));
    }
    us.push_back(static_cast<double>(NowNs() - start) / 1e3);
  }
  std::nth_element(us.begin(), us.begin() + static_cast<int64_t>(us.size() / 2), us.end());
  CpuAttentionResult result{
      .isa = std::string(ops::IsaOf(*cpu)), .threads = pool.num_threads(), .us = us[us.size() / 2]};
  result.gb_per_s = cost::KeptKeys(call) * call.kv_heads *
                    static_cast<double>(cost::CacheBytesPerToken(call)) / result.us / 1e3;
  result.gflops = cost::AttentionFloor(call).flops / result.us / 1e3;
  result.error = CheckRows(problem, in, shape.softmax_scale, *tiles);
  result.roof_bytes_per_s = cost::MeasureReadBandwidth(pool);
  if (sparse) {
    result.tiles = static_cast<int64_t>(tiles->tiles.size());
    result.dense_tiles = tiles->DenseTiles();
  }
  return result;
}

}  // namespace fathom::cli
