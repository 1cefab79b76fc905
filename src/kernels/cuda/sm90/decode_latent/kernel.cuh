#pragma once
// MLA decode from a quantised latent cache: 512 codes with a scale for each 128, rotated keys in
// bf16 or float16. As in decode_warps, warps take 16 keys of a tile and mma.sync; here two of them
// share the keys: each multiplies half of the elements, they add their scores through shared
// memory, and each sums half of the output's columns. A group's scale multiplies its part of the
// scores, and, for values, the probabilities.
#include <cuda_runtime.h>

#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/items.cuh"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode/merge_inside.cuh"
#include "kernels/cuda/sm90/decode/tile_walk.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_latent/config.h"
#include "kernels/cuda/sm90/decode_warps/config.h"
#include "kernels/cuda/sm90/decode_warps/convert.cuh"

namespace fathom::kernels::cuda::sm90 {

struct LatentMaps {
  CUtensorMap tokens;  // records, as 32-bit elements
};

template <class Config>
struct LatentShared {
  uint32_t ring;   // [kSlots][kTile] records
  uint32_t q;      // operands of a lane: see LoadQueries
  uint32_t merge;  // [kWarps / 2][kStateFloats][32] f32
  uint32_t swap;   // in the same place: [2][kWarps][32] partial scores, kRows / 2 a lane
  uint32_t peaks;  // [kWarps / 2][kRows] largest element of a stretch of a query row; at the end
                   // [2][kRows] of a half of the output's columns
  uint32_t barriers;
  uint32_t pending;  // of MergeInside

  __device__ __forceinline__ explicit LatentShared(const uint8_t* memory) {
    ring = (ptx::SharedAddress(memory) + 127) & ~127u;
    q = ring + Config::kSlots * Config::kSlotBytes;
    merge = q + Config::kQBytes;
    swap = merge;
    peaks = merge + Config::kMergeBytes;
    barriers = peaks + Config::kPeakBytes;
    pending = barriers + 2 * Config::kSlots * 8;
  }
  __device__ __forceinline__ uint32_t Token(int slot, int token) const {
    return ring + slot * Config::kSlotBytes + token * Config::kTokenBytes;
  }
  __device__ __forceinline__ uint32_t Full(int slot) const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t Empty(int slot) const {
    return barriers + (Config::kSlots + slot) * 8;
  }
  __device__ __forceinline__ void Initialise(int lane) const {  // one warp
    if (lane < Config::kSlots) {
      ptx::MbarrierInit(Full(lane), 1);
      ptx::MbarrierInit(Empty(lane), Config::kWarps);
    }
    if (lane == 0) ptx::StoreShared(pending, uint32_t{0});
    ptx::MbarrierInitFence();
  }
};

template <class Config>
class LatentConsumer {
 public:
  static constexpr int kRowTiles = Config::kRows / 8;
  static constexpr int kOwnGroups = Config::kGroups / Config::kHalves;
  static constexpr int kGroupTiles = Config::kScaleGroup / 16;  // of 16 output columns
  static constexpr int kOwnKeys = 16;
  using Type = ElementType<Config::kFloat16>;
  using Slack = WarpsSlack</*kQuantised=*/true>;
  using Range = ProbabilityRange</*kFloat16=*/true, Slack::kScores, Slack::kScales>;

  __device__ __forceinline__ LatentConsumer(const DecodeParams& params,
                                            const LatentShared<Config>& shared, int row_tile)
      : params_(params),
        shared_(shared),
        row_tile_(row_tile),
        warp_(Uniform(static_cast<int>(threadIdx.x / 32))),
        keys_(warp_ / Config::kHalves),
        half_(warp_ % Config::kHalves),
        lane_(static_cast<int>(threadIdx.x % 32)),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index, const DecodePart& part) {
    DecodeItems items(params_, part_index, part);
    while (items.Next()) {
      const DecodeItem& item = items.item();
      if (item.new_queries) LoadQueries(item);
      if (params_.merge_inside) Merge().Prefetch(item.sequence);
      StartItem();
      for (int tile = item.begin; tile < item.end; ++tile) Step(item, tile);
      EndItem(item);
      if (params_.merge_inside && !item.whole) {
        Merge().Publish(item.sequence, item.slot, item.query_begin, item.query_tokens);
      }
    }
    if (params_.merge_inside) Merge().Run(shared_.merge);
  }

 private:
  __device__ __forceinline__ int LiveRows(const DecodeItem& item) const {
    return item.query_tokens * params_.group - row_tile_ * Config::kRows;
  }
  __device__ __forceinline__ int RowToken(int row) const {
    return ((row_tile_ * Config::kRows + row) * params_.group_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(int row, int token) const {
    return row_tile_ * Config::kRows + row - token * params_.group;
  }
  __device__ __forceinline__ int Row(int j, int i) const { return j * 8 + lane_ % 4 * 2 + i; }

  using Inside =
      MergeInside<Config::kDimV, Config::kRows, 2, Config::kWarps, Config::kConsumersBarrier>;
  __device__ __forceinline__ Inside Merge() const {
    return Inside(params_, shared_.pending, row_tile_);
  }

  __device__ __forceinline__ void Sync() const {
    ptx::BarrierSync(Config::kConsumersBarrier, Config::kWarps * 32);
  }
  __device__ __forceinline__ void SyncPair() const {
    ptx::BarrierSync(2 + keys_, Config::kHalves * 32);
  }

  // B operands in the order of elements that the keys have, lane by lane: of bf16 and float16 two
  // registers a step of 16 elements, of int8 four a step of 32 (high bytes, low bytes). Two
  // neighbouring warps have the same stretch of the elements, and eight rows each.
  __device__ __forceinline__ void LoadQueries(const DecodeItem& item) {
    constexpr int kOwnSteps = Config::kCodeSteps / (Config::kWarps / 2);
    const int stretch = warp_ / 2;
    const int j = warp_ % 2;
    const int row = j * 8 + lane_ / 4;
    const int token = RowToken(row);
    const int head = RowHead(row, token);
    const auto* q = static_cast<const uint16_t*>(params_.q) +
                    (item.query_begin + token) * params_.q_token_stride +
                    head * params_.q_head_stride + stretch * kOwnSteps * 16 + lane_ % 4 * 4;
    const auto* q_pe = static_cast<const uint16_t*>(params_.q_pe) +
                       (item.query_begin + token) * params_.q_pe_token_stride +
                       head * params_.q_pe_head_stride + stretch * 16 + lane_ % 4 * 2;
    const bool live = row < LiveRows(item);
    uint2 v[kOwnSteps];
    uint2 rope = make_uint2(0, 0);
#pragma unroll
    for (int s = 0; s < kOwnSteps; ++s) {
      v[s] = live ? __ldg(reinterpret_cast<const uint2*>(q + s * 16)) : make_uint2(0, 0);
    }
    if (live) {
      rope.x = __ldg(reinterpret_cast<const uint32_t*>(q_pe));
      rope.y = __ldg(reinterpret_cast<const uint32_t*>(q_pe + 8));
    }
    const float peak = QueryPeak<Config::kFloat16>(v);
    Sync();  // the last item's products have read the old queries
    if (lane_ % 4 == 0) {
      ptx::StoreShared(shared_.peaks + (stretch * Config::kRows + row) * 4, peak);
    }
    ptx::StoreShared(QueryAt(Config::kCodeSteps + stretch, j), rope);
    Sync();
    const float factor = RowFactor(row);
#pragma unroll
    for (int s = 0; s < kOwnSteps; s += 2) {
      const int step = stretch * kOwnSteps + s;
      if constexpr (Config::kCode == CacheCode::kInt8) {
        uint32_t high[2], low[2];
        Int8Query<Config::kFloat16>(v[s], factor, high[0], low[0]);
        Int8Query<Config::kFloat16>(v[s + 1], factor, high[1], low[1]);
        ptx::StoreShared(Int8QueryAt(step, j), make_uint4(high[0], high[1], low[0], low[1]));
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::StoreShared(QueryAt(step + i, j),
                           make_uint2(ScaleToF16<Config::kFloat16>(v[s + i].x, factor),
                                      ScaleToF16<Config::kFloat16>(v[s + i].y, factor)));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) inverse_[n][i] = 1.f / RowFactor(Row(n, i));
    }
    Sync();
  }
  __device__ __forceinline__ uint32_t QueryAt(int step, int j) const {
    return shared_.q + ((step * kRowTiles + j) * 32 + lane_) * 8;
  }
  __device__ __forceinline__ uint32_t Int8QueryAt(int step, int j) const {
    return shared_.q + ((step / 2 * kRowTiles + j) * 32 + lane_) * 16;
  }
  __device__ __forceinline__ float RowFactor(int row) const {
    float peak = 0;
#pragma unroll
    for (int i = 0; i < Config::kWarps / 2; ++i) {
      peak = fmaxf(peak, ptx::LoadSharedFloat(shared_.peaks + (i * Config::kRows + row) * 4));
    }
    return QueryFactor(peak);
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
      for (int m = 0; m < kGroupTiles; ++m) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out_[g][m][j][i] = 0;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      base_[j][0] = base_[j][1] = kNoBase;
      sum_[j][0] = sum_[j][1] = 0;
    }
    value_unit_ = inverse_unit_ = 0;
  }

  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (lane_ == 0) ptx::MbarrierArrive(shared_.Empty(position_.slot));
    position_.Next();
  }

  __device__ __forceinline__ void Step(const DecodeItem& item, int tile) {
    const int first_key = tile * Config::kTile + keys_ * kOwnKeys;
    const int live_keys = item.kv_tokens - first_key;
    ptx::MbarrierWait(shared_.Full(position_.slot), position_.phase);
    if (live_keys <= 0) {  // nothing for this warp and its partner
      Release();
      return;
    }
    // Behind the last token there may be anything, and 0 x NaN is NaN.
    if (live_keys < kOwnKeys) ZeroDeadKeys(live_keys);
    float scales[kOwnGroups][2];  // of keys lane / 4 and 8 further
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 v = ptx::LoadSharedFloat2(OwnToken(lane_ / 4 + i * 8) + Config::kScalesAt +
                                             half_ * kOwnGroups * 4);
      scales[0][i] = v.x;
      scales[1][i] = v.y;
    }
    float s[kRowTiles][4];
    Scores(scales, s);
    Exchange(s);
    if (live_keys < kOwnKeys + item.query_tokens - 1) Mask(item, first_key, s);
    Softmax(s);
    RelateScales(scales);
    Values(scales, s);
    Release();
  }

  // Of this warp's 16.
  __device__ __forceinline__ uint32_t OwnToken(int key) const {
    return shared_.Token(position_.slot, keys_ * kOwnKeys + key);
  }

  __device__ __forceinline__ void ZeroDeadKeys(int live_keys) const {
    constexpr int kChunks = Config::kTokenBytes / 16;
    for (int i = half_ * 32 + lane_; i < (kOwnKeys - live_keys) * kChunks; i += 64) {
      ptx::StoreShared(OwnToken(live_keys) + i * 16, make_uint4(0, 0, 0, 0));
    }
    ptx::FenceProxyAsync();  // the copy engine writes here afterwards
    SyncPair();
  }

  __device__ __forceinline__ void Scores(const float (&scales)[kOwnGroups][2],
                                         float (&s)[kRowTiles][4]) const {
    const uint32_t own = OwnToken(lane_ % 16) + lane_ / 16 * 16;
    float codes[kRowTiles][4] = {};
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      const int group = half_ * kOwnGroups + g;
      float part[2][kRowTiles][4] = {};  // two sums: one product does not wait for the one before
      int32_t whole[2][kRowTiles][4] = {};
#pragma unroll
      for (int load = 0; load < Config::kScaleGroup / 32; ++load) {
        uint32_t raw[4];
        ptx::LoadMatrix(own + group * Config::kScaleGroup + load * 32, raw);
        const int step = group * kGroupTiles + load * 2;
        if constexpr (Config::kCode == CacheCode::kInt8) {
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            const uint4 q = ptx::LoadSharedQuad(Int8QueryAt(step, j));
            ptx::MmaInt8(whole[0][j], raw, q.x, q.y);
            ptx::MmaInt8Uint8(whole[1][j], raw, q.z, q.w);
          }
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            uint32_t a[4];
            ptx::E4m3ToF16(raw[h * 2], a[0], a[2]);
            ptx::E4m3ToF16(raw[h * 2 + 1], a[1], a[3]);
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              const uint2 q = ptx::LoadSharedPair(QueryAt(step + h, j));
              ptx::MmaF16(part[h][j], a, q.x, q.y);
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = Config::kCode == CacheCode::kInt8
                                ? static_cast<float>(whole[0][j][i] * 256 + whole[1][j][i])
                                : part[0][j][i] + part[1][j][i];
          codes[j][i] = fmaf(sum, scales[g][i / 2], codes[j][i]);
        }
      }
    }
    // The rotated keys' four steps are shared too.
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = codes[j][i] * inverse_[j][i % 2];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = half_ * 2 + i;
      uint32_t a[4];
      ptx::LoadMatrix(own + Config::kRopeAt + step * 32, a);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        const uint2 q = ptx::LoadSharedPair(QueryAt(Config::kCodeSteps + step, j));
        Type::Multiply(s[j], a, q.x, q.y);
      }
    }
  }

  // Adds the partner's scores, in the same order in both warps, and scales to log2.
  __device__ __forceinline__ void Exchange(float (&s)[kRowTiles][4]) {
    const auto at = [&](int warp, int j) {
      return shared_.swap + (((parity_ * Config::kWarps + warp) * kRowTiles + j) * 32 + lane_) * 16;
    };
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      ptx::StoreShared(at(warp_, j), make_float4(s[j][0], s[j][1], s[j][2], s[j][3]));
    }
    SyncPair();
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const float4 other = ptx::LoadSharedFloat4(at(warp_ ^ 1, j));
      const float x[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = (s[j][i] + x[i]) * scale_log2_;
    }
    parity_ ^= 1;  // the other buffer: the partner may still read this one
  }

  __device__ __forceinline__ void Mask(const DecodeItem& item, int first_key,
                                       float (&s)[kRowTiles][4]) const {
    const int key = first_key + lane_ / 4;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int limit = item.kv_tokens - (item.query_tokens - 1 - RowToken(Row(j, i)));
        if (key >= limit) s[j][i] = -INFINITY;
        if (key + 8 >= limit) s[j][i + 2] = -INFINITY;
      }
    }
  }

  // As in decode_warps.
  __device__ __forceinline__ void Softmax(float (&s)[kRowTiles][4]) {
    bool grown = false;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        grown = grown || fmaxf(s[j][i], s[j][i + 2]) > base_[j][i] + Range::kReach;
      }
    }
    if (__any_sync(~0u, grown)) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float peak = fmaxf(s[j][i], s[j][i + 2]);
#pragma unroll
          for (int offset = 4; offset < 32; offset *= 2) {
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
          }
          Rebase(j, i, fmaxf(peak - Range::kLift, base_[j][i]));
        }
      }
    }
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

  // Makes a row's sums relative to another base. Returns the factor.
  __device__ __forceinline__ float Rebase(int j, int i, float base) {
    const float factor = ptx::Exp2(base_[j][i] - base);
    base_[j][i] = base;
    sum_[j][i] *= factor;
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
      for (int m = 0; m < kGroupTiles; ++m) {
        out_[g][m][j][i] *= factor;
        out_[g][m][j][i + 2] *= factor;
      }
    }
    return factor;
  }

  // Makes scales relative to the unit of the output, so that their products with probabilities fit
  // float16. The unit is a power of two and follows the largest scale as base_ follows scores.
  __device__ __forceinline__ void RelateScales(float (&scales)[kOwnGroups][2]) {
    constexpr float kSlack = 1 << Slack::kScales;
    float largest = 0;
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      largest = fmaxf(largest, fmaxf(scales[g][0], scales[g][1]));
    }
    if (__any_sync(~0u, largest > value_unit_ * kSlack)) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
      }
      const float unit = __uint_as_float(__float_as_uint(largest) & 0x7f800000);
      inverse_unit_ = unit == 0.f ? 0.f : 1.f / unit;
      ScaleOutput(value_unit_ * inverse_unit_);
      value_unit_ = unit;
    }
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[g][i] *= inverse_unit_;
    }
  }
  __device__ __forceinline__ void ScaleOutput(float factor) {
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
      for (int m = 0; m < kGroupTiles; ++m) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out_[g][m][j][i] *= factor;
        }
      }
    }
  }

  __device__ __forceinline__ void Values(const float (&scales)[kOwnGroups][2],
                                         const float (&s)[kRowTiles][4]) {
    const uint32_t own = OwnToken(lane_ % 16) + lane_ / 16 * 16;
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      uint32_t p[kRowTiles][2];
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[j][i] = ptx::TransposeMatrix(
              ptx::PackF16(s[j][2 * i] * scales[g][i], s[j][2 * i + 1] * scales[g][i]));
        }
      }
      const uint32_t columns = own + (half_ * kOwnGroups + g) * Config::kScaleGroup;
#pragma unroll
      for (int load = 0; load < Config::kScaleGroup / 32; ++load) {
        uint32_t raw[4];
        ptx::LoadMatrixTransposed(columns + load * 32, raw);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t a[4];
          ConvertValues<Config::kCode>(raw[h * 2], a[0], a[1]);
          ConvertValues<Config::kCode>(raw[h * 2 + 1], a[2], a[3]);
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            ptx::MmaF16(out_[g][load * 2 + h][j], a, p[j][0], p[j][1]);
          }
        }
      }
    }
  }

  // Float n of this lane in the merge area of `warp`.
  __device__ __forceinline__ uint32_t MergeAt(int warp, int n) const {
    return shared_.merge + ((warp * Config::kStateFloats + n) * 32 + lane_) * 4;
  }
  __device__ __forceinline__ void GiveState(int warp) const {
    int n = 0;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::StoreShared(MergeAt(warp, n++), base_[j][i]);
        ptx::StoreShared(MergeAt(warp, n++), sum_[j][i]);
#pragma unroll
        for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
          for (int m = 0; m < kGroupTiles; ++m) {
            ptx::StoreShared(MergeAt(warp, n++), out_[g][m][j][i]);
            ptx::StoreShared(MergeAt(warp, n++), out_[g][m][j][i + 2]);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void TakeState(int warp) {
    int n = 0;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = ptx::LoadSharedFloat(MergeAt(warp, n++));
        const float sum = ptx::LoadSharedFloat(MergeAt(warp, n++));
        Rebase(j, i, fmaxf(other, base_[j][i]));
        const float factor = ptx::Exp2(other - base_[j][i]);
        sum_[j][i] = fmaf(sum, factor, sum_[j][i]);
#pragma unroll
        for (int g = 0; g < kOwnGroups; ++g) {
#pragma unroll
          for (int m = 0; m < kGroupTiles; ++m) {
            float(&o)[4] = out_[g][m][j];
            o[i] = fmaf(ptx::LoadSharedFloat(MergeAt(warp, n++)), factor, o[i]);
            o[i + 2] = fmaf(ptx::LoadSharedFloat(MergeAt(warp, n++)), factor, o[i + 2]);
          }
        }
      }
    }
  }

  // The states of the four groups of keys, two by two.
  __device__ __forceinline__ void EndItem(const DecodeItem& item) {
    ScaleOutput(value_unit_);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          sum_[j][i] += __shfl_xor_sync(~0u, sum_[j][i], offset);
        }
      }
    }
    Sync();  // nobody needs the others' scores any more
#pragma unroll 1
    for (int groups = Config::kKeyGroups / 2; groups > 0; groups /= 2) {
      const int area = keys_ % groups * Config::kHalves + half_;
      if (keys_ >= groups && keys_ < 2 * groups) GiveState(area);
      Sync();
      if (keys_ < groups) TakeState(area);
      Sync();
    }
    if (keys_ == 0) Write(item);
  }

  // Of a row's columns, of which the neighbouring warp has half. Nobody needs the queries' peaks
  // any more.
  __device__ __forceinline__ void LargestOfRows(float (&largest)[kRowTiles][2]) const {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        largest[j][i] = 0;
#pragma unroll
        for (int n = 0; n < kOwnGroups * kGroupTiles; ++n) {
          const float(&o)[4] = out_[n / kGroupTiles][n % kGroupTiles][j];
          largest[j][i] = fmaxf(largest[j][i], fmaxf(fabsf(o[i]), fabsf(o[i + 2])));
        }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          largest[j][i] = fmaxf(largest[j][i], __shfl_xor_sync(~0u, largest[j][i], offset));
        }
        if (lane_ < 4) ptx::StoreShared(LargestAt(half_, Row(j, i)), largest[j][i]);
      }
    }
    SyncPair();
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = ptx::LoadSharedFloat(LargestAt(1 - half_, Row(j, i)));
        largest[j][i] = fmaxf(largest[j][i], other);
      }
    }
  }
  __device__ __forceinline__ uint32_t LargestAt(int half, int row) const {
    static_assert(Config::kHalves == 2 && 2 * Config::kRows * 4 <= Config::kPeakBytes);
    return shared_.peaks + (half * Config::kRows + row) * 4;
  }

  __device__ __forceinline__ void Write(const DecodeItem& item) const {
    float largest[kRowTiles][2] = {};
    if (!item.whole) LargestOfRows(largest);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = Row(j, i);
        if (row >= LiveRows(item)) continue;
        const int token = RowToken(row);
        const int64_t at_token = item.query_begin + token;
        const int head = RowHead(row, token);
        const bool first = half_ == 0 && lane_ < 4;
        const int column = half_ * kOwnGroups * Config::kScaleGroup + lane_ / 4 * 2;
        if (item.whole) {
          const RowState state{sum_[j][i] == 0.f ? 0.f : base_[j][i], sum_[j][i]};
          const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
          if (params_.lse != nullptr && first) {
            params_.lse[at_token * params_.group + head] = LogSumExp(state);
          }
          auto* out = static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                      head * params_.out_head_stride + column;
#pragma unroll
          for (int n = 0; n < kOwnGroups * kGroupTiles; ++n) {
            const float(&o)[4] = out_[n / kGroupTiles][n % kGroupTiles][j];
            *reinterpret_cast<uint32_t*>(out + n * 16) = Type::Pack(o[i] * scale, o[i + 2] * scale);
          }
        } else {
          const int64_t at =
              (int64_t{item.slot} * params_.row_tiles + row_tile_) * Config::kRows + row;
          static_assert(kPartialFormat<Config::kDimV, Config::kRows, 90> ==
                        PartialFormat::kPairedFloat16);
          const PartialScale scale(largest[j][i]);
          if (first) {
            reinterpret_cast<float2*>(params_.partial_ml)[at] =
                scale.State(base_[j][i] == kNoBase ? -INFINITY : base_[j][i], sum_[j][i]);
          }
          auto* out = static_cast<uint16_t*>(params_.partial_out) + at * Config::kDimV +
                      PairedPosition(column);
#pragma unroll
          for (int n = 0; n < kOwnGroups * kGroupTiles; ++n) {
            const float(&o)[4] = out_[n / kGroupTiles][n % kGroupTiles][j];
            *reinterpret_cast<uint32_t*>(out + n * 16) =
                ptx::PackF16(o[i] * scale.factor, o[i + 2] * scale.factor);
          }
        }
      }
    }
  }

  const DecodeParams& params_;
  const LatentShared<Config>& shared_;
  int row_tile_;
  int warp_;
  int keys_;
  int half_;
  int lane_;
  int parity_ = 0;
  float scale_log2_;
  RingPosition<Config::kSlots> position_;
  float inverse_[kRowTiles][2];  // of the factors of query rows
  float base_[kRowTiles][2];     // log2
  float sum_[kRowTiles][2];      // of this lane's keys
  float value_unit_;             // of out_, a power of two
  float inverse_unit_;
  float out_[kOwnGroups][kGroupTiles][kRowTiles][4];
};

// One warp. A lane has one box of a tile: tokens of one page.
template <class Config>
__device__ __forceinline__ void ProduceTokens(const DecodeParams& params, const LatentMaps& maps,
                                              const LatentShared<Config>& shared,
                                              const DecodePart& part, int32_t ids) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t policy = CachePolicy(params, part, Config::kSlotBytes);
  RingPosition<Config::kSlots> position;
  TileWalk walk(params, lane, lane % 4, 0);
  walk.Run(part, ids, [&](int32_t page, int token, const VisitedTile&) {
    const uint32_t full = shared.Full(position.slot);
    if (lane == 0) {
      ptx::MbarrierWait(shared.Empty(position.slot), position.phase ^ 1);
      ptx::MbarrierExpectBytes(full, Config::kSlotBytes);
    }
    __syncwarp();
    if (lane < walk.boxes()) {
      ptx::TmaLoad4(shared.Token(position.slot, lane * walk.box_tokens()), &maps.tokens, full, 0,
                    token, 0, page, policy);
    }
    position.Next();
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void DecodeLatentKernel(const __grid_constant__ DecodeParams params,
                                                        const __grid_constant__ LatentMaps maps) {
  const LatentShared<Config> shared(ptx::DynamicShared());
  const int part_index = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int row_tile = static_cast<int>(blockIdx.x) % params.row_tiles;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);

  ptx::WaitForPreviousKernel();
  ptx::LaunchDependents();  // what comes next gets ready meanwhile, as a merge kernel
  if (warp == 0) {
    shared.Initialise(lane);
    if (lane == 0) ptx::TmaPrefetchMap(&maps.tokens);
  }
  // Behind the fence in Initialise, which would wait for them.
  const DecodePart part = params.parts[part_index];
  const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
  __syncthreads();

  if (warp >= Config::kWarps) {
    ptx::RegistersDecrease<Config::kProducerRegisters>();
    if (warp == Config::kWarps) {
      ProduceTokens<Config>(params, maps, shared, part, ids);
      WriteEmpty<Config>(params, part_index, 0, row_tile);
    }
  } else {
    ptx::RegistersIncrease<Config::kConsumerRegisters>();
    LatentConsumer<Config>(params, shared, row_tile).Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
