#include "writer_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/check.h"
#include "element.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/launch.h"

namespace fathom::bench {
namespace {

using kernels::cuda::CacheCode;
using kernels::cuda::CacheRows;
using kernels::cuda::RopePairs;

constexpr int kRank = 512;
constexpr int kRope = 64;
constexpr int kLatentGroup = 128;  // elements that share a scale
constexpr int kUnused = 2;         // rows behind the live tokens
constexpr float kNormEps = 1e-6F;

int ElementBytes(CacheCode code) { return code == CacheCode::kBf16 ? 2 : 1; }

// Where one kind of rows goes, with byte strides.
struct Target {
  int rows = 0;  // index in CacheWriteParams
  int64_t offset = 0;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t scale_offset = 0;
  int64_t scale_token_stride = 0;
  int64_t scale_head_stride = 0;
};

}  // namespace

struct WriterRun::State {
  WriterCase shape;
  kernels::cuda::CacheWriteParams params;
  std::vector<int32_t> starts{0}, positions, sequences, table;
  int table_stride = 0;
  int64_t num_pages = 0;
  int64_t page_bytes = 0;
  std::vector<Target> targets;
  std::vector<std::vector<uint16_t>> host_rows;  // of each kind
  std::vector<float> rope, norm;
  std::vector<Buffer> rows;
  Buffer cache, rope_table, rope_tables, norm_weights, live, starts_d, positions_d, table_d;

  int tokens() const { return starts.back(); }
};

WriterRun::WriterRun(WriterCase shape, const ops::GpuLimits& gpu)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = std::move(shape);
  const WriterCase& c = s.shape;
  std::minstd_rand engine(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  int longest = 0;
  for (size_t b = 0; b < c.kv_lengths.size(); ++b) {
    longest = std::max(longest, c.kv_lengths[b]);
    s.starts.push_back(s.starts.back() + c.query_tokens[b]);
    for (int j = 0; j < c.query_tokens[b]; ++j) {
      s.positions.push_back(c.kv_lengths[b] - c.query_tokens[b] + j);
      s.sequences.push_back(static_cast<int32_t>(b));
    }
  }
  s.table_stride = (longest + c.page_tokens - 1) / c.page_tokens + 2;
  s.table.assign(s.table_stride * c.kv_lengths.size(), 2147480000);
  for (size_t b = 0; b < c.kv_lengths.size(); ++b) {
    const int pages = (c.kv_lengths[b] + c.page_tokens - 1) / c.page_tokens;
    for (int i = pages - 1; i >= 0; --i) {  // in no order that a token's position would give
      s.table[b * s.table_stride + i] = static_cast<int32_t>(s.num_pages++);
    }
  }
  ++s.num_pages;

  auto& p = s.params;
  const auto add = [&](int heads, int dim, bool rotate, int64_t token_stride, int64_t offset,
                       const Buffer& from) {
    CacheRows& rows = p.rows[p.num_rows++];
    rows.rows = from.As<uint16_t>() + offset;
    rows.token_stride = token_stride;
    rows.head_stride = dim;
    rows.num_heads = heads;
    rows.dim = dim;
    rows.rotate = rotate;
    return &rows;
  };
  const auto make = [&](int64_t elements) {
    std::vector<uint16_t> values(static_cast<size_t>(elements));
    for (uint16_t& value : values) value = F32ToElement(3 * uniform(engine), c.float16);
    s.host_rows.push_back(values);
    s.rows.emplace_back(values);
  };
  const int64_t all = s.tokens() + kUnused;
  const int element = ElementBytes(c.code);
  if (c.latent) {
    make(all * c.num_heads * c.dim);
    make(all * (kRank + kRope));
    CacheRows* q =
        add(c.num_heads, kRope, true, int64_t{c.num_heads} * c.dim, c.dim - kRope, s.rows[0]);
    q->head_stride = c.dim;
    CacheRows* latent = add(1, kRank, false, kRank + kRope, 0, s.rows[1]);
    for (int i = 0; i < kRank; ++i) s.norm.push_back(1 + uniform(engine) / 2);
    s.norm_weights = Buffer(s.norm);
    latent->norm = s.norm_weights.As<float>();
    latent->scale_group = kLatentGroup;
    add(1, kRope, true, kRank + kRope, kRank, s.rows[1]);
    const int64_t scales = c.code == CacheCode::kBf16 ? 0 : kRank / kLatentGroup * 4;
    const int64_t token = kRank * element + scales + kRope * 2;
    s.page_bytes = token * c.page_tokens;
    s.targets = {{1, 0, s.page_bytes, token, token, kRank * element, token, token},
                 {2, kRank * element + scales, s.page_bytes, token, token, 0, 0, 0}};
    latent->code = c.code;
  } else {
    make(all * c.num_heads * c.dim);
    make(all * c.num_kv_heads * c.dim);
    make(all * c.num_kv_heads * c.dim);
    add(c.num_heads, c.dim, true, int64_t{c.num_heads} * c.dim, 0, s.rows[0]);
    const int64_t token = int64_t{c.num_kv_heads} * c.dim * element;
    const int64_t plane = token * c.page_tokens;
    const int64_t scale_plane =
        c.code == CacheCode::kBf16 ? 0 : int64_t{c.num_kv_heads} * c.page_tokens * 4;
    s.page_bytes = 2 * (plane + scale_plane);
    for (int i = 0; i < 2; ++i) {
      CacheRows* rows = add(c.num_kv_heads, c.dim, i == 0, int64_t{c.num_kv_heads} * c.dim, 0,
                            s.rows[static_cast<size_t>(i) + 1]);
      rows->code = c.code;
      rows->scale_group = c.dim;
      s.targets.push_back({i + 1, i * plane, s.page_bytes, token, int64_t{c.dim} * element,
                           2 * plane + i * scale_plane, 4, int64_t{c.page_tokens} * 4});
    }
  }
  s.cache = Buffer(s.num_pages * s.page_bytes);
  for (const Target& t : s.targets) {
    CacheRows& rows = p.rows[t.rows];
    rows.plane = {s.cache.As<char>() + t.offset, t.page_stride, t.token_stride, t.head_stride};
    rows.scales = {s.cache.As<char>() + t.scale_offset, t.page_stride, t.scale_token_stride,
                   t.scale_head_stride};
  }
  for (int i = 0; i < (longest + 1) * c.rope_dim; ++i) s.rope.push_back(uniform(engine));
  s.rope_table = Buffer(s.rope);
  s.rope_tables = Buffer(std::vector<const float*>{s.rope_table.As<float>()});
  s.live = Buffer(std::vector<int32_t>{s.tokens()});
  s.starts_d = Buffer(s.starts);
  s.positions_d = Buffer(s.positions);
  s.table_d = Buffer(s.table);
  p.num_tokens = static_cast<int32_t>(all);
  p.num_sequences = static_cast<int32_t>(c.kv_lengths.size());
  p.page_tokens = c.page_tokens;
  p.norm_eps = kNormEps;
  p.float16 = c.float16;
  p.live_tokens = s.live.As<int32_t>();
  p.positions = s.positions_d.As<int32_t>();
  p.query_starts = s.starts_d.As<int32_t>();
  p.page_table = s.table_d.As<int32_t>();
  p.page_table_stride = s.table_stride;
  p.num_pages = s.num_pages;
  p.rope_tables = s.rope_tables.As<const float*>();
  p.pairs = c.pairs;
  p.rope_dim = c.rope_dim;
  const Status legal = ops::CheckCacheWriteParams(p, gpu);
  FATHOM_CHECK(legal.has_value(), "{}", legal.error().message);
}

WriterRun::~WriterRun() = default;

void WriterRun::Run() {
  State& s = *state_;
  s.cache.Fill(0xff);
  for (size_t i = 0; i < s.rows.size(); ++i) {  // queries are rotated in place
    CheckCuda(cudaMemcpy(s.rows[i].As<void>(), s.host_rows[i].data(), s.host_rows[i].size() * 2,
                         cudaMemcpyHostToDevice),
              "copy to device");
  }
  CheckCuda(kernels::cuda::RunCacheWrite(s.params, nullptr), "RunCacheWrite");
  CheckCuda(cudaDeviceSynchronize(), "RunCacheWrite");
}

WriterErrors WriterRun::Compare() const {
  const State& s = *state_;
  const WriterCase& c = s.shape;
  WriterErrors errors;
  auto cache = s.cache.Read<uint8_t>();
  // What a row should hold.
  const auto expected = [&](const CacheRows& rows, size_t kind, int token, int head) {
    const int64_t offset = static_cast<const uint16_t*>(rows.rows) - s.rows[kind].As<uint16_t>() +
                           token * rows.token_stride + head * rows.head_stride;
    std::vector<double> x(static_cast<size_t>(rows.dim));
    for (size_t d = 0; d < x.size(); ++d) {
      x[d] = ElementToF32(s.host_rows[kind][static_cast<size_t>(offset) + d], c.float16);
    }
    if (rows.norm != nullptr) {
      double squares = 0;
      for (const double value : x) squares += value * value;
      const double factor = 1 / std::sqrt(squares / rows.dim + kNormEps);
      for (size_t d = 0; d < x.size(); ++d) x[d] *= factor * s.norm[d];
    }
    if (!rows.rotate) return x;
    const int half = c.rope_dim / 2;
    const float* table = s.rope.data() + s.positions[static_cast<size_t>(token)] * c.rope_dim;
    for (int i = 0; i < half; ++i) {
      double& a = x[static_cast<size_t>(c.pairs == RopePairs::kHalves ? i : 2 * i)];
      double& b = x[static_cast<size_t>(c.pairs == RopePairs::kHalves ? i + half : 2 * i + 1)];
      const double first = a * table[i] - b * table[half + i];
      b = b * table[i] + a * table[half + i];
      a = first;
    }
    return x;
  };
  const auto note = [&errors](double got, double want, double bound) {
    const double ratio = std::abs(got - want) / bound;
    errors.worst = std::isnan(ratio) ? ratio : std::max(errors.worst, ratio);
  };
  const auto rounding = [&c](double want) {
    return std::abs(want) / (c.float16 ? 2048 : 256) + 1e-5;
  };
  // Queries, rotated in place; rows behind the live tokens unchanged.
  const auto q = s.rows[0].Read<uint16_t>();
  const CacheRows& q_rows = s.params.rows[0];
  for (int token = 0; token < s.tokens() + kUnused; ++token) {
    for (int head = 0; head < q_rows.num_heads; ++head) {
      const int64_t at = static_cast<const uint16_t*>(q_rows.rows) - s.rows[0].As<uint16_t>() +
                         token * q_rows.token_stride + head * q_rows.head_stride;
      const auto want =
          token < s.tokens() ? expected(q_rows, 0, token, head) : std::vector<double>();
      for (int d = 0; d < q_rows.dim; ++d) {
        const auto i = static_cast<size_t>(at + d);
        if (token < s.tokens()) {
          note(ElementToF32(q[i], c.float16), want[static_cast<size_t>(d)],
               rounding(want[static_cast<size_t>(d)]));
        } else if (q[i] != s.host_rows[0][i]) {
          ++errors.stray;
        }
      }
    }
  }
  for (const Target& t : s.targets) {
    const CacheRows& rows = s.params.rows[t.rows];
    const size_t kind = c.latent ? 1 : static_cast<size_t>(t.rows);
    for (int token = 0; token < s.tokens(); ++token) {
      const int position = s.positions[static_cast<size_t>(token)];
      const int64_t page =
          s.table[static_cast<size_t>(s.sequences[static_cast<size_t>(token)]) * s.table_stride +
                  position / c.page_tokens];
      for (int head = 0; head < rows.num_heads; ++head) {
        const auto want = expected(rows, kind, token, head);
        uint8_t* at = cache.data() + page * t.page_stride + t.offset +
                      position % c.page_tokens * t.token_stride + head * t.head_stride;
        uint8_t* scales = cache.data() + page * t.page_stride + t.scale_offset +
                          position % c.page_tokens * t.scale_token_stride +
                          head * t.scale_head_stride;
        for (int d = 0; d < rows.dim; ++d) {
          const double w = want[static_cast<size_t>(d)];
          if (rows.code == CacheCode::kBf16) {
            uint16_t bits;
            std::memcpy(&bits, at + d * 2, 2);
            note(ElementToF32(bits, c.float16), w, rounding(w));
            continue;
          }
          float scale;
          std::memcpy(&scale, scales + d / rows.scale_group * 4, 4);
          if (rows.code == CacheCode::kInt8) {
            note(static_cast<int8_t>(at[d]) * double{scale}, w, scale * 0.501);
          } else {  // half of the last of three mantissa bits, or half of the smallest step
            note(kernels::cuda::DecodeE4m3(at[d]) * double{scale}, w,
                 std::max(std::abs(w) / 16, double{scale} / 1024) * 1.001);
          }
        }
        // What has been checked becomes poison again: nothing else may be left.
        std::memset(at, 0xff, static_cast<size_t>(rows.dim * ElementBytes(rows.code)));
        if (rows.code != CacheCode::kBf16) {
          std::memset(scales, 0xff, static_cast<size_t>(rows.dim / rows.scale_group * 4));
        }
      }
    }
  }
  for (const uint8_t byte : cache) errors.stray += byte == 0xff ? 0 : 1;
  return errors;
}

double WriterRun::TimeUs(int repeats, L2 l2) {
  return TimeCold(
      [this](cudaStream_t stream) {
        CheckCuda(kernels::cuda::RunCacheWrite(state_->params, stream), "RunCacheWrite");
      },
      repeats, l2);
}

double WriterRun::Bytes() const {
  const State& s = *state_;
  double bytes = 0;
  for (int i = 0; i < s.params.num_rows; ++i) {
    const CacheRows& rows = s.params.rows[i];
    const double elements = double{1} * s.tokens() * rows.num_heads * rows.dim;
    const bool back = rows.plane.base == nullptr;
    bytes += elements * 2 + elements * (back ? 2 : ElementBytes(rows.code));
    if (!back && rows.code != CacheCode::kBf16) bytes += elements / rows.scale_group * 4;
  }
  return bytes;
}

namespace {

WriterCase Make(bool latent, CacheCode code, RopePairs pairs, const std::string& what,
                bool float16 = false) {
  WriterCase c{.latent = latent, .code = code, .pairs = pairs, .float16 = float16};
  c.num_heads = latent ? 16 : 32;
  c.num_kv_heads = latent ? 1 : 8;
  c.dim = latent ? 192 : 128;
  c.rope_dim = latent ? kRope : 128;
  const char* const names[] = {float16 ? "f16" : "bf16", "int8", "e4m3"};
  c.name = fmt::format("write {} {} {} {}", latent ? "mla" : "gqa", names[static_cast<int>(code)],
                       pairs == RopePairs::kHalves ? "halves" : "interleaved", what);
  return c;
}

}  // namespace

std::vector<WriterCase> WriterCheckCases() {
  std::vector<WriterCase> cases;
  for (const bool latent : {false, true}) {
    for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
      for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
        for (const int page : {16, 128}) {
          WriterCase c = Make(latent, code, pairs, fmt::format("pages of {}", page));
          c.page_tokens = page;
          c.kv_lengths = {70, 17, 5, 9, 257};
          c.query_tokens = {3, 1, 0, 9, 130};
          cases.push_back(c);
          if (latent) continue;
          c.dim = 64;
          c.rope_dim = 32;
          c.num_heads = c.num_kv_heads = 3;
          c.name += ", d64, half rotated";
          cases.push_back(c);
        }
      }
      WriterCase c = Make(latent, code, RopePairs::kHalves, "from float16", true);
      c.kv_lengths = {70, 17, 257};
      c.query_tokens = {3, 1, 130};
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<WriterCase> WriterTimeCases() {
  std::vector<WriterCase> cases;
  for (const bool latent : {false, true}) {
    for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
      for (const auto& [batch, tokens] : {std::pair{64, 1}, {4, 4096}}) {
        WriterCase c =
            Make(latent, code, RopePairs::kHalves, fmt::format("{} x {} tokens", batch, tokens));
        c.kv_lengths.assign(static_cast<size_t>(batch), 4096);
        c.query_tokens.assign(static_cast<size_t>(batch), tokens);
        cases.push_back(c);
      }
    }
    WriterCase c = Make(latent, CacheCode::kBf16, RopePairs::kHalves, "4 x 4096 tokens", true);
    c.kv_lengths.assign(4, 4096);
    c.query_tokens.assign(4, 4096);
    cases.push_back(c);
  }
  return cases;
}

}  // namespace fathom::bench
