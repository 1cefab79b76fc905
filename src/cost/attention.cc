#include "cost/attention.h"

#include <algorithm>
#include <cmath>

namespace fathom::cost {
namespace {

constexpr double kBf16Bytes = 2;
constexpr double kF32Bytes = 4;
constexpr int kMmaRows = 64;   // of a warpgroup's matrix instruction
constexpr int kMmaDepth = 16;  // elements of the inner dimension of one instruction

// Keys that the query at `position` sees.
int64_t SeenKeys(const AttentionCall& call, int64_t position, int64_t keys) {
  const int64_t end = call.causal ? std::min(position + 1, keys) : keys;
  if (call.window < 0) return end;
  const int64_t first = std::max<int64_t>(0, position - call.window);
  const int64_t last = std::min(end, position + call.window + 1);  // one past
  const int64_t near = std::max<int64_t>(0, last - first);
  const int64_t anchors = std::min(call.anchors, end);
  return near + std::min(anchors, first) + std::max<int64_t>(0, anchors - last);
}

double Queries(const AttentionCall& call) {
  double sum = 0;
  for (const AttentionSequence& s : call.sequences) sum += static_cast<double>(s.queries);
  return sum;
}

// Queries and outputs.
double Rows(const AttentionCall& call) {
  return Queries(call) * call.heads * (call.dim_qk + call.dim_v) * kBf16Bytes;
}

// Of MLA that is expanded: what the cache holds, what is made of it, and by what. Keys have as many
// elements of their own as values.
double LatentBytes(const AttentionCall& call) {
  return KeptKeys(call) * (call.expanded_from + call.dim_qk - call.dim_v) * kBf16Bytes;
}
double ExpandedBytes(const AttentionCall& call) {
  return KeptKeys(call) * call.heads * 2 * call.dim_v * kBf16Bytes;
}
double ExpansionWeightBytes(const AttentionCall& call) {
  return 2.0 * call.heads * call.dim_v * call.expanded_from * kBf16Bytes;
}

// C [m, n] = A [m, k] B [n, k]' by tile x tile blocks from shared memory.
LevelBytes Product(double m, double n, double k, double tile) {
  const double columns = std::min(n, tile);
  const double a = m * k * kBf16Bytes * std::ceil(n / tile);
  const double b = n * k * kBf16Bytes * std::ceil(m / tile);
  const double c = m * n * kBf16Bytes;
  const double steps = std::ceil(m / kMmaRows) * std::ceil(n / tile) * std::ceil(k / kMmaDepth);
  const double operands = (kMmaRows + columns) * kMmaDepth * kBf16Bytes;
  return {.hbm = 0,
          .l2 = a + b + c,
          .shared = a + b + steps * operands,
          .registers = steps * 2 * kMmaRows * columns * kF32Bytes};
}

}  // namespace

LevelBytes& LevelBytes::operator+=(const LevelBytes& other) {
  hbm += other.hbm;
  l2 += other.l2;
  shared += other.shared;
  registers += other.registers;
  return *this;
}

int64_t CacheBytesPerToken(const AttentionCall& call) {
  constexpr int kScaleBytes = 4;
  constexpr int kLatentPerScale = 128;
  const int64_t elements = call.latent ? call.dim_qk : int64_t{call.dim_qk} + call.dim_v;
  if (call.cache == CacheEncoding::kBF16) return elements * 2;
  if (call.latent) {
    const int64_t rotated = call.dim_qk - call.dim_v;
    return call.dim_v + call.dim_v / kLatentPerScale * kScaleBytes + rotated * 2;
  }
  return elements + (call.cache == CacheEncoding::kInt8 ? 2 * kScaleBytes : 0);
}

double KeptPairs(const AttentionCall& call) {
  double pairs = 0;
  for (const AttentionSequence& s : call.sequences) {
    for (int64_t q = s.keys - s.queries; q < s.keys; ++q) {
      pairs += static_cast<double>(SeenKeys(call, q, s.keys));
    }
  }
  return pairs;
}

double KeptKeys(const AttentionCall& call) {
  double keys = 0;
  for (const AttentionSequence& s : call.sequences) {
    if (s.queries == 0) continue;
    int64_t kept = s.keys;
    if (call.window >= 0) {
      // The windows of neighbouring queries overlap: their union has no hole.
      const int64_t first = std::max<int64_t>(0, s.keys - s.queries - call.window);
      kept = s.keys - first + std::min(call.anchors, first);
    }
    keys += static_cast<double>(kept);
  }
  return keys;
}

double RectanglePairs(const AttentionCall& call) {
  double pairs = 0;
  for (const AttentionSequence& s : call.sequences) {
    pairs += static_cast<double>(s.queries) * static_cast<double>(s.keys);
  }
  return pairs;
}

double ExpansionFlops(const AttentionCall& call) {
  return call.expanded_from == 0
             ? 0
             : 2 * KeptKeys(call) * call.expanded_from * call.heads * 2 * call.dim_v;
}

Cost AttentionFloor(const AttentionCall& call) {
  double cache = KeptKeys(call) * call.kv_heads * static_cast<double>(CacheBytesPerToken(call));
  if (call.expanded_from != 0) cache = LatentBytes(call) + ExpansionWeightBytes(call);
  return {.bytes = cache + Rows(call),
          .flops =
              2 * KeptPairs(call) * call.heads * (call.dim_qk + call.dim_v) + ExpansionFlops(call)};
}

double AttentionExponentials(const AttentionCall& call) { return KeptPairs(call) * call.heads; }

LevelBytes FusedBytes(const AttentionCall& call, const AttentionTile& tile, double visits,
                      double row_tiles, double partial_bytes) {
  const double token = static_cast<double>(CacheBytesPerToken(call));
  const double tile_bytes = tile.keys * token;  // loaded by a visit
  const double q_bytes = tile.rows * call.dim_qk * kBf16Bytes;
  const double out_bytes = tile.rows * call.dim_v * kBf16Bytes;
  LevelBytes total;
  total.hbm = AttentionFloor(call).bytes + 2 * partial_bytes;
  if (call.expanded_from != 0) {  // gathered, and what is made of it, written and read
    total.hbm += 2 * (LatentBytes(call) + ExpandedBytes(call));
  }
  total.l2 = visits * tile_bytes + row_tiles * (q_bytes + out_bytes) + 2 * partial_bytes;
  // Written by the copies; then read as matrix operands.
  total.shared = visits * tile_bytes + row_tiles * q_bytes;
  const double keys = tile.keys;
  const double rows = tile.rows;
  if (tile.swapped) {
    const double key_blocks = std::ceil(keys / kMmaRows);
    const double value_blocks = std::ceil(static_cast<double>(call.dim_v) / kMmaRows);
    const double p_bytes = rows * keys * kBf16Bytes;
    total.shared += visits * (keys * call.dim_qk * kBf16Bytes + key_blocks * q_bytes);
    total.shared += visits * (keys * call.dim_v * kBf16Bytes + (1 + value_blocks) * p_bytes);
  } else {
    const double groups = std::ceil(rows / kMmaRows);
    total.shared += visits * (q_bytes + groups * keys * call.dim_qk * kBf16Bytes);
    total.shared += visits * groups * keys * call.dim_v * kBf16Bytes;
    total.registers += visits * rows * keys * kBf16Bytes;  // probabilities as an operand
  }
  const double score_steps = std::ceil(static_cast<double>(call.dim_qk) / kMmaDepth);
  const double value_steps = std::ceil(keys / kMmaDepth);
  total.registers +=
      visits * 2 * kF32Bytes * (rows * keys * score_steps + rows * call.dim_v * value_steps);
  return total;
}

LevelBytes UnfusedBytes(const AttentionCall& call) {
  constexpr double kTile = 128;
  LevelBytes total;
  for (const AttentionSequence& s : call.sequences) {
    const auto q = static_cast<double>(s.queries);
    const auto k = static_cast<double>(s.keys);
    const double cache =
        k * call.kv_heads * (call.latent ? call.dim_qk : call.dim_qk + call.dim_v) * kBf16Bytes;
    const double repeated = k * call.heads * (call.dim_qk + call.dim_v) * kBf16Bytes;
    const bool repeats = call.heads != call.kv_heads;
    if (repeats) {
      total.hbm += cache + repeated;
      total.l2 += cache + repeated;
    }
    const double scores = q * k * call.heads * kBf16Bytes;
    const double io = q * call.heads * (call.dim_qk + call.dim_v) * kBf16Bytes;
    total.hbm += io + (repeats ? repeated : cache) + 4 * scores;
    LevelBytes product = Product(q, k, call.dim_qk, kTile);
    product += Product(q, call.dim_v, k, kTile);
    product.l2 *= call.heads;
    product.shared *= call.heads;
    product.registers *= call.heads;
    total += product;
    total.l2 += 2 * scores;  // softmax
  }
  if (call.expanded_from != 0) {  // keys and values, which are read above, are made first
    total.hbm += AttentionFloor(call).bytes - Rows(call) + ExpandedBytes(call);
  }
  return total;
}

double HandbookUnfusedBytes(double tokens) { return 5 * tokens * tokens * kBf16Bytes; }
double HandbookFusedBytes(double tokens) { return tokens * tokens * kBf16Bytes; }

std::vector<Roof> AttentionRoofs(const AttentionCall& call, const Hardware& hardware) {
  const Cost floor = AttentionFloor(call);
  const SmLimits sm = SmLimitsOf(hardware);
  std::vector<Roof> roofs = {
      {"HBM", floor.bytes, hardware.memory_bytes_per_s},
      {"tensor cores", floor.flops, hardware.bf16_flops_per_s},
      {"exp2 units", AttentionExponentials(call),
       sm.exp2_per_clock * hardware.num_sms * hardware.clock_hz},
  };
  std::stable_sort(roofs.begin(), roofs.end(),
                   [](const Roof& a, const Roof& b) { return a.seconds() > b.seconds(); });
  return roofs;
}

}  // namespace fathom::cost
