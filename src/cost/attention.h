#pragma once
// What an attention call has to compute and move, and what a tiled kernel or the unfused sequence
// of operators moves to do it. Exact counts of unmasked pairs; bytes by level of the memory
// hierarchy under the assumptions stated at each function.
#include <cstdint>
#include <string>
#include <vector>

#include "cost/hardware.h"

namespace fathom::cost {

struct AttentionSequence {
  int64_t queries = 0;  // the last ones of its keys
  int64_t keys = 0;
};

// Bytes of one token's keys and values of one kv head.
enum class CacheEncoding : uint8_t { kBF16, kInt8, kFp8 };

struct AttentionCall {
  std::vector<AttentionSequence> sequences;
  int heads = 0;
  int kv_heads = 0;
  int dim_qk = 0;
  int dim_v = 0;
  bool latent = false;  // MLA absorbed: values are the first dim_v elements of the keys
  // MLA expanded: keys (but for dim_qk - dim_v rotated elements that heads share) and values are
  // made from so many elements a token, by weights that are read once. 0: the cache holds them.
  int expanded_from = 0;
  bool causal = true;
  int64_t window = -1;  // >= 0: keys at most this far from the query ...
  int64_t anchors = 0;  // ... or among the first so many are kept
  CacheEncoding cache = CacheEncoding::kBF16;
};

// GQA int8: a float32 scale a token, head and plane. GQA fp8: none. MLA int8 and fp8: 512 one-byte
// latents, 4 float32 scales, 64 bf16 rotated elements (656 bytes).
int64_t CacheBytesPerToken(const AttentionCall& call);

double KeptPairs(const AttentionCall& call);       // of one head
double KeptKeys(const AttentionCall& call);        // that some query of their sequence sees
double RectanglePairs(const AttentionCall& call);  // queries x keys, masked ones too
double ExpansionFlops(const AttentionCall& call);  // of kept keys; 0 where nothing is expanded

// Bytes through each level. HBM: between memory and L2, each operand once. L2: between L2 and the
// SMs. Shared: written and read by copies and matrix operands. Registers: operands and float32
// accumulators that the matrix units read and write.
struct LevelBytes {
  double hbm = 0;
  double l2 = 0;
  double shared = 0;
  double registers = 0;

  LevelBytes& operator+=(const LevelBytes& other);
};

// FLOPs and bytes that no implementation goes below: unmasked pairs and what is expanded; queries,
// kept keys and values (or what they are expanded from) and outputs once.
Cost AttentionFloor(const AttentionCall& call);
double AttentionExponentials(const AttentionCall& call);

// A kernel's inner step: `rows` query rows against `keys` keys.
struct AttentionTile {
  int rows = 0;
  int keys = 0;
  // true: keys are the 64 rows of the matrix instruction and query rows its columns (decode);
  // false: 64 query rows a warpgroup, probabilities stay in registers (prefill).
  bool swapped = false;
};

// The fused kernel: `visits` (row tile, key tile) pairs of all heads; each loads its keys and
// values into shared memory. `row_tiles` is the number of row tiles (queries in, outputs out);
// partial results cost `partial_bytes` written and read once.
LevelBytes FusedBytes(const AttentionCall& call, const AttentionTile& tile, double visits,
                      double row_tiles, double partial_bytes);

// Operator by operator: keys and values repeated for each query head (when heads share them),
// S = Q K' written, softmax reads S and writes P, P V reads P. bf16 throughout, 128 x 128 tiles of
// the products from shared memory.
LevelBytes UnfusedBytes(const AttentionCall& call);

// The handbook's formula for the same (claim B8): 5 N^2 elements unfused, N^2 fused, of 2 bytes.
double HandbookUnfusedBytes(double tokens);
double HandbookFusedBytes(double tokens);

struct Roof {
  std::string name;   // "HBM", "tensor cores", "exp2 units"
  double amount = 0;  // bytes, FLOPs, exponentials
  double per_s = 0;
  double seconds() const { return per_s > 0 ? amount / per_s : 0; }
};
// The slowest first.
std::vector<Roof> AttentionRoofs(const AttentionCall& call, const Hardware& hardware);

}  // namespace fathom::cost
