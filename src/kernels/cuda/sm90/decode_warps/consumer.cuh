#pragma once
// One consumer warp of a free-running decode block: 16 keys of each tile.
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/items.cuh"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode_warps/config.h"
#include "kernels/cuda/sm90/decode_warps/convert.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
struct WarpsShared {
  uint32_t ring;    // [kSlots] keys or values of a tile, swizzled
  uint32_t scales;  // [kSlots][kTile] f32, 16 tokens in 128 bytes where pages are so short
  uint32_t tiles;   // [kSlots] which listed tile a slot holds, where there are lists
  float* merge;     // [kWarps][kRows][kDim] output of each warp
  float2* state;    // [kWarps][kRows] its maximum (log2) and sum
  uint32_t barriers;

  __device__ __forceinline__ explicit WarpsShared(uint8_t* memory) {
    const uint32_t base = ptx::SharedAddress(memory);
    ring = (base + 1023) & ~1023u;
    scales = ring + Config::kSlots * Config::kSlotBytes;
    uint32_t at = scales + Config::kSlots * Config::kScaleBytes;
    merge = reinterpret_cast<float*>(memory + (at - base));
    at += Config::kWarps * Config::kRows * Config::kDim * 4;
    state = reinterpret_cast<float2*>(memory + (at - base));
    barriers = at + Config::kWarps * Config::kRows * 8;
    tiles = barriers + 2 * Config::kSlots * 8;
  }
  __device__ __forceinline__ uint32_t Slot(int slot) const {
    return ring + slot * Config::kSlotBytes;
  }
  __device__ __forceinline__ uint32_t Scales(int slot) const {
    return scales + slot * Config::kScaleBytes;
  }
  __device__ __forceinline__ uint32_t Tile(int slot) const { return tiles + slot * 8; }
  __device__ __forceinline__ uint32_t Full(int slot) const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t Empty(int slot) const {
    return barriers + (Config::kSlots + slot) * 8;
  }
  // 16-byte chunk of a row of a tile.
  __device__ __forceinline__ static uint32_t Chunk(int row, int chunk) {
    if constexpr (Config::kBlockRowBytes == 128) {
      return chunk / 8 * (Config::kTile * 128) + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
    } else {
      static_assert(Config::kBlockRowBytes == 64);
      return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
    }
  }

  __device__ __forceinline__ void Initialise(int lane) const {  // one warp
    if (lane < Config::kSlots) {
      ptx::MbarrierInit(Full(lane), 1);
      ptx::MbarrierInit(Empty(lane), Config::kWarps);
    }
    ptx::MbarrierInitFence();
  }
};

// Tiles as the producer warp's ring delivers them.
template <class Config>
class RingSource {
 public:
  __device__ __forceinline__ explicit RingSource(const WarpsShared<Config>& shared)
      : shared_(shared) {}
  // Waits for the next keys or values of the part; Slot and Scales say where they are.
  __device__ __forceinline__ void Take() {
    ptx::MbarrierWait(shared_.Full(position_.slot), position_.phase);
  }
  // Called by the whole warp when it has read them.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(shared_.Empty(position_.slot));
    position_.Next();
  }
  __device__ __forceinline__ uint32_t Slot() const { return shared_.Slot(position_.slot); }
  // Of what was taken; `visit` when tiles are visited in order.
  __device__ __forceinline__ ListedTile Tile(bool lists, int visit) const {
    if (!lists) return {visit, kNoMask};
    const uint2 tile = ptx::LoadSharedPair(shared_.Tile(position_.slot));
    return {static_cast<int32_t>(tile.x), static_cast<int32_t>(tile.y)};
  }
  __device__ __forceinline__ uint32_t Scales() const { return shared_.Scales(position_.slot); }

 private:
  const WarpsShared<Config>& shared_;
  RingPosition<Config::kSlots> position_;
};

template <class Config, class Source>
class WarpsConsumer {
 public:
  static constexpr int kRows = Config::kRows;
  static constexpr int kRowTiles = kRows / 8;       // n-tiles of the products
  static constexpr int kSteps = Config::kDim / 16;  // of 16 elements
  static constexpr int kOwnKeys = 16;
  using Type = ElementType<Config::kFloat16>;
  using Slack = WarpsSlack<Config::kQuantised>;
  using Range =
      ProbabilityRange<Config::kQuantised || Config::kFloat16, Slack::kScores, Slack::kScales>;

  __device__ __forceinline__ WarpsConsumer(const DecodeParams& params,
                                           const WarpsShared<Config>& shared, Source& source,
                                           int kv_head, int row_tile)
      : params_(params),
        shared_(shared),
        source_(source),
        kv_head_(kv_head),
        row_tile_(row_tile),
        warp_(Uniform(static_cast<int>(threadIdx.x / 32))),
        lane_(static_cast<int>(threadIdx.x % 32)),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index, const DecodePart& part) {
    DecodeItems items(params_, part_index, part);
    while (items.Next()) {
      const DecodeItem& item = items.item();
      if (item.new_queries) {
        LoadQueries(item);
        kv_tokens_ = item.kv_tokens;
        if (params_.lists != nullptr) {
          kv_tokens_ = Uniform(params_.kv_lengths[params_.lists[item.sequence].sequence]);
        }
      }
      StartItem();
      for (int tile = item.begin; tile < item.end; ++tile) Step(item, tile);
      EndItem(item);
    }
  }

 private:
  // Read again wherever they are needed: registers are short.
  __device__ __forceinline__ DecodeList Heads(const DecodeItem& item) const {
    return DecodeListAt(params_, item.sequence, kv_head_);
  }
  __device__ __forceinline__ int LiveRows(const DecodeItem& item, const DecodeList& heads) const {
    return item.query_tokens * heads.num_heads - row_tile_ * kRows;
  }
  __device__ __forceinline__ int RowToken(const DecodeList& heads, int row) const {
    return ((row_tile_ * kRows + row) * heads.heads_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(const DecodeList& heads, int row, int token) const {
    return heads.first_head + row_tile_ * kRows + row - token * heads.num_heads;
  }
  // Row of the n-tile j that register i % 2 of this lane's accumulators belongs to.
  __device__ __forceinline__ int Row(int j, int i) const { return j * 8 + lane_ % 4 * 2 + i; }

  // B operands: row lane / 4, in the order of elements that keys have as A operands.
  __device__ __forceinline__ void LoadQueries(const DecodeItem& item) {
    const DecodeList heads = Heads(item);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = j * 8 + lane_ / 4;
      const int token = RowToken(heads, row);
      const auto* q = static_cast<const uint16_t*>(params_.q) +
                      (item.query_begin + token) * params_.q_token_stride +
                      RowHead(heads, row, token) * params_.q_head_stride;
      const bool live = row < LiveRows(item, heads);
      uint2 v[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        v[s] = make_uint2(0, 0);
        if (live) {
          if constexpr (Config::kQuantised) {
            v[s] = __ldg(reinterpret_cast<const uint2*>(q + s * 16 + lane_ % 4 * 4));
          } else {
            v[s].x = __ldg(reinterpret_cast<const uint32_t*>(q + s * 16 + lane_ % 4 * 2));
            v[s].y = __ldg(reinterpret_cast<const uint32_t*>(q + s * 16 + 8 + lane_ % 4 * 2));
          }
        }
      }
      if constexpr (Config::kQuantised) {
        QuantisedQueries(v, j);
      } else {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          q_[j][s][0] = v[s].x;
          q_[j][s][1] = v[s].y;
        }
        score_factor_[j][0] = score_factor_[j][1] = scale_log2_;
      }
    }
  }

  __device__ __forceinline__ void QuantisedQueries(const uint2 (&v)[kSteps], int j) {
    const float factor = QueryFactor(QueryPeak<Config::kFloat16>(v));
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if constexpr (Config::kCode == CacheCode::kInt8) {
        // A step of int8 has 32 elements: registers 2n hold the high bytes, 2n + 1 the low ones.
        Int8Query<Config::kFloat16>(v[s], factor, q_[j][s / 2 * 2][s % 2],
                                    q_[j][s / 2 * 2 + 1][s % 2]);
      } else {
        q_[j][s][0] = ScaleToF16<Config::kFloat16>(v[s].x, factor);
        q_[j][s][1] = ScaleToF16<Config::kFloat16>(v[s].y, factor);
      }
    }
    const float inverse = scale_log2_ / factor;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      score_factor_[j][i] = __shfl_sync(~0u, inverse, (lane_ % 4 * 2 + i) * 4);
    }
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[j][s][i] = 0;
      }
      base_[j][0] = base_[j][1] = kNoBase;
      sum_[j][0] = sum_[j][1] = 0;
    }
    value_unit_ = inverse_unit_ = 0;
  }

  __device__ __forceinline__ void Step(const DecodeItem& item, int visit) {
    source_.Take();
    const ListedTile tile = source_.Tile(params_.lists != nullptr, visit);
    const int first_key = tile.tile * Config::kTile + warp_ * kOwnKeys;
    const int live_keys = kv_tokens_ - first_key;
    if (live_keys <= 0) {  // nothing for this warp
      source_.Release();
      source_.Take();
      source_.Release();
      return;
    }
    uint32_t seen[kRowTiles][2];
    if (tile.mask >= 0) LoadMask(item, tile.mask, seen);
    float s[kRowTiles][4];
    Scores(s);
    if constexpr (Config::kQuantised) {
      float scale[2];
      LoadScales(scale);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[j][i] *= scale[i / 2];
      }
    }
    source_.Release();
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] *= score_factor_[j][i % 2];
    }
    if (tile.mask >= 0) {
      MaskListed(seen, s);
    } else if (params_.lists == nullptr && live_keys < kOwnKeys + item.query_tokens - 1) {
      Mask(item, first_key, s);
    }
    Softmax(s);

    source_.Take();
    if (Config::kCode != CacheCode::kInt8 && live_keys < kOwnKeys) ZeroDeadValues(live_keys);
    if constexpr (Config::kQuantised) ScaleProbabilities(live_keys, s);
    uint32_t p[kRowTiles][2];
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        p[j][i] =
            ptx::TransposeMatrix(Config::kQuantised ? ptx::PackF16(s[j][2 * i], s[j][2 * i + 1])
                                                    : Type::Pack(s[j][2 * i], s[j][2 * i + 1]));
      }
    }
    Values(p);
    source_.Release();
  }

  // Of keys lane / 4 and 8 further.
  __device__ __forceinline__ void LoadScales(float (&scale)[2]) const {
    const uint32_t own =
        source_.Scales() + warp_ * (params_.page_tokens == 16 ? 128 : 64) + lane_ / 4 * 4;
    scale[0] = ptx::LoadSharedFloat(own);
    scale[1] = ptx::LoadSharedFloat(own + 32);
  }

  // Multiplies probabilities by the scales of their values, relative to value_unit_, so that they
  // fit float16. The unit is a power of two and follows the largest scale as base_ follows scores.
  __device__ __forceinline__ void ScaleProbabilities(int live_keys, float (&s)[kRowTiles][4]) {
    constexpr float kSlack = 1 << Slack::kScales;
    float scale[2];
    LoadScales(scale);
    if (live_keys < kOwnKeys) {  // where there is no key there may be anything
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (lane_ / 4 + i * 8 >= live_keys) scale[i] = 0;
      }
    }
    float largest = fmaxf(scale[0], scale[1]);
    if (__any_sync(~0u, largest > value_unit_ * kSlack)) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
      }
      const float unit = __uint_as_float(__float_as_uint(largest) & 0x7f800000);
      inverse_unit_ = unit == 0.f ? 0.f : 1.f / unit;
      const float change = value_unit_ * inverse_unit_;
      value_unit_ = unit;
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out_[j][step][i] *= change;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] *= inverse_unit_;
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        s[j][2 * i] *= scale[i];
        s[j][2 * i + 1] *= scale[i];
      }
    }
  }

  // Chunk 2 * load + `side` of row `row`, of which 16 rows are this warp's. The swizzle is an
  // exclusive or of address bits.
  __device__ __forceinline__ uint32_t Chunks(int row, int side, int load) const {
    constexpr int kLoads = Config::kBlockRowBytes / 32;  // of a swizzled row
    return ((source_.Slot() + WarpsShared<Config>::Chunk(warp_ * kOwnKeys + row, side)) ^
            (load % kLoads * 32)) +
           load / kLoads * (Config::kTile * Config::kBlockRowBytes);
  }

  __device__ __forceinline__ void Scores(float (&s)[kRowTiles][4]) const {
    // Two sums: one product does not wait for the one before.
    float part[2][kRowTiles][4] = {};
    int32_t codes[2][kRowTiles][4] = {};
#pragma unroll
    for (int load = 0; load < Config::kRowBytes / 32; ++load) {
      uint32_t raw[4];
      ptx::LoadMatrix(Chunks(lane_ % 16, lane_ / 16, load), raw);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        if constexpr (Config::kCode == CacheCode::kInt8) {
          ptx::MmaInt8(codes[0][j], raw, q_[j][load * 2][0], q_[j][load * 2][1]);
          ptx::MmaInt8Uint8(codes[1][j], raw, q_[j][load * 2 + 1][0], q_[j][load * 2 + 1][1]);
        } else if constexpr (!Config::kQuantised) {
          Type::Multiply(part[load % 2][j], raw, q_[j][load][0], q_[j][load][1]);
        }
      }
      if constexpr (Config::kCode == CacheCode::kE4m3) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          ptx::E4m3ToF16(raw[half * 2], a[0], a[2]);
          ptx::E4m3ToF16(raw[half * 2 + 1], a[1], a[3]);
          const int step = load * 2 + half;
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            ptx::MmaF16(part[half][j], a, q_[j][step][0], q_[j][step][1]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[j][i] = Config::kCode == CacheCode::kInt8
                      ? static_cast<float>(codes[0][j][i] * 256 + codes[1][j][i])
                      : part[0][j][i] + part[1][j][i];
      }
    }
  }

  __device__ __forceinline__ void Values(const uint32_t (&p)[kRowTiles][2]) {
    // bf16: four matrices are (dims, + 8) x (keys, + 8); quantised: (16 dims, 16 more) x (keys, +
    // 8).
    const int row = lane_ % 8 + (Config::kQuantised ? lane_ / 8 % 2 : lane_ / 16) * 8;
    const int side = Config::kQuantised ? lane_ / 16 : lane_ / 8 % 2;
#pragma unroll
    for (int load = 0; load < Config::kRowBytes / 32; ++load) {
      uint32_t raw[4];
      ptx::LoadMatrixTransposed(Chunks(row, side, load), raw);
      if constexpr (Config::kQuantised) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          ConvertValues<Config::kCode>(raw[half * 2], a[0], a[1]);
          ConvertValues<Config::kCode>(raw[half * 2 + 1], a[2], a[3]);
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j)
            ptx::MmaF16(out_[j][load * 2 + half], a, p[j][0], p[j][1]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) Type::Multiply(out_[j][load], raw, p[j][0], p[j][1]);
      }
    }
  }

  // Of a listed tile, the bits of this warp's keys from lane / 4 on.
  __device__ __forceinline__ void LoadMask(const DecodeItem& item, int mask,
                                           uint32_t (&seen)[kRowTiles][2]) const {
    const DecodeList heads = Heads(item);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = min(RowToken(heads, Row(j, i)), item.query_tokens - 1);
        const auto* bits = reinterpret_cast<const uint16_t*>(params_.masks + mask + token);
        seen[j][i] = static_cast<uint32_t>(__ldg(bits + warp_)) >> (lane_ / 4);
      }
    }
  }
  __device__ __forceinline__ void MaskListed(const uint32_t (&seen)[kRowTiles][2],
                                             float (&s)[kRowTiles][4]) const {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if ((seen[j][i] & 1) == 0) s[j][i] = -INFINITY;
        if ((seen[j][i] & 0x100) == 0) s[j][i + 2] = -INFINITY;
      }
    }
  }

  // A query token sees the keys up to its own.
  __device__ __forceinline__ void Mask(const DecodeItem& item, int first_key,
                                       float (&s)[kRowTiles][4]) const {
    const DecodeList heads = Heads(item);
    const int key = first_key + lane_ / 4;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int position = kv_tokens_ - item.query_tokens + RowToken(heads, Row(j, i));
        if (key > position) s[j][i] = -INFINITY;
        if (key + 8 > position) s[j][i + 2] = -INFINITY;
      }
    }
  }

  // Scores (log2) become probabilities relative to 2^base_, which follows the running maximum only
  // when that has grown by 2^8 or 2^6 (WarpsSlack): until then nothing has to be rescaled, and no
  // maximum to be taken over lanes.
  __device__ __forceinline__ void Softmax(float (&s)[kRowTiles][4]) {
    bool grown = false;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        grown = grown || fmaxf(s[j][i], s[j][i + 2]) > base_[j][i] + Range::kReach;
      }
    }
    if (__any_sync(~0u, grown)) Rebase(s);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[j][i] = ptx::Exp2(s[j][i] - base_[j][i]);
        s[j][i + 2] = ptx::Exp2(s[j][i + 2] - base_[j][i]);
        sum_[j][i] += s[j][i] + s[j][i + 2];
      }
    }
  }

  __device__ __forceinline__ void Rebase(const float (&s)[kRowTiles][4]) {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float peak = fmaxf(s[j][i], s[j][i + 2]);
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
        }
        const float base = fmaxf(peak - Range::kLift, base_[j][i]);
        const float rescale = ptx::Exp2(base_[j][i] - base);
        base_[j][i] = base;
        sum_[j][i] *= rescale;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          out_[j][step][i] *= rescale;
          out_[j][step][i + 2] *= rescale;
        }
      }
    }
  }

  // Rows of the last page that hold no token may hold anything, and 0 x NaN is NaN. (Every int8 is
  // finite.) Only this warp reads them.
  __device__ __forceinline__ void ZeroDeadValues(int live_keys) const {
    constexpr int kChunks = Config::kRowBytes / 16;
    for (int i = live_keys * kChunks + lane_; i < kOwnKeys * kChunks; i += 32) {
      ptx::StoreShared(
          source_.Slot() + WarpsShared<Config>::Chunk(warp_ * kOwnKeys + i / kChunks, i % kChunks),
          make_uint4(0, 0, 0, 0));
    }
    if constexpr (Config::kCopyEngine) ptx::FenceProxyAsync();  // it may write here afterwards
    __syncwarp();
  }

  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(1, Config::kWarps * 32); }

  // Element of accumulator i of step s: which of the head's elements it is.
  __device__ __forceinline__ int Element(int s, int i) const {
    return s * 16 + (Config::kQuantised ? lane_ / 4 * 2 + i / 2 : lane_ / 4 + i / 2 * 8);
  }

  // Merges the warps' states and writes the item's result.
  __device__ __forceinline__ void EndItem(const DecodeItem& item) {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sum_[j][i];
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (lane_ < 4) {
          const float base = base_[j][i] == kNoBase ? -INFINITY : base_[j][i];
          shared_.state[warp_ * kRows + Row(j, i)] = make_float2(base, sum);
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          shared_.merge[(warp_ * kRows + Row(j, i % 2)) * Config::kDim + Element(s, i)] =
              Config::kQuantised ? out_[j][s][i] * value_unit_ : out_[j][s][i];
        }
      }
    }
    Sync();
    constexpr int kChunks = Config::kDim / 4;  // of a row, four elements each
    const DecodeList heads = Heads(item);
    const int live = min(LiveRows(item, heads), kRows);
    for (int unit = static_cast<int>(threadIdx.x); unit < live * kChunks;
         unit += Config::kWarps * 32) {
      const int row = unit / kChunks;
      const int column = unit % kChunks * 4;
      float peak = -INFINITY;
#pragma unroll
      for (int w = 0; w < Config::kWarps; ++w) peak = fmaxf(peak, shared_.state[w * kRows + row].x);
      const float base = peak == -INFINITY ? 0.f : peak;
      float4 total = make_float4(0, 0, 0, 0);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < Config::kWarps; ++w) {
        const float2 state = shared_.state[w * kRows + row];
        const float weight = ptx::Exp2(state.x - base);
        const float4 part = *reinterpret_cast<const float4*>(
            shared_.merge + (w * kRows + row) * Config::kDim + column);
        total.x += weight * part.x;
        total.y += weight * part.y;
        total.z += weight * part.z;
        total.w += weight * part.w;
        sum += weight * state.y;
      }
      Write(item, heads, row, column, total, RowState{item.whole ? base : peak, sum});
    }
    Sync();  // the states may be written again
  }

  __device__ __forceinline__ void Write(const DecodeItem& item, const DecodeList& heads, int row,
                                        int column, float4 total, const RowState& state) const {
    if (!item.whole) {
      const int64_t at =
          (int64_t{item.slot} * DecodeGroups(params_) + kv_head_ * params_.row_tiles + row_tile_) *
              kRows +
          row;
      ptx::StoreGlobal(static_cast<float*>(params_.partial_out) + at * Config::kDim + column,
                       total);
      if (column == 0) {
        reinterpret_cast<float2*>(params_.partial_ml)[at] = make_float2(state.max_log2, state.sum);
      }
      return;
    }
    const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
    const int token = RowToken(heads, row);
    const int64_t at_token = item.query_begin + token;
    const int head = RowHead(heads, row, token);
    auto* out = static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                head * params_.out_head_stride + column;
    *reinterpret_cast<uint2*>(out) = make_uint2(Type::Pack(total.x * scale, total.y * scale),
                                                Type::Pack(total.z * scale, total.w * scale));
    if (params_.lse != nullptr && column == 0) {
      params_.lse[at_token * params_.num_kv_heads * params_.group + head] = LogSumExp(state);
    }
  }

  const DecodeParams& params_;
  const WarpsShared<Config>& shared_;
  Source& source_;
  int kv_head_;  // 0 where lists have their own
  int row_tile_;
  int warp_;
  int lane_;
  float scale_log2_;
  int kv_tokens_ = 0;                 // of the sequence, visited or not
  float score_factor_[kRowTiles][2];  // makes log2 of scores
  float base_[kRowTiles][2];          // log2
  float sum_[kRowTiles][2];           // of this lane's keys
  // Quantised: the unit of out_, a power of two, and its inverse.
  float value_unit_;
  float inverse_unit_;
  uint32_t q_[kRowTiles][kSteps][2];
  float out_[kRowTiles][kSteps][4];
};

}  // namespace fathom::kernels::cuda::sm90
