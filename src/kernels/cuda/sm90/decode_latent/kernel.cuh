#pragma once
// MLA decode from a quantised latent cache: 512 codes with a scale for each 128, rotated keys in
// bf16. As in decode_warps, warps take 16 keys of a tile and mma.sync; here two of them share the
// keys: each multiplies half of the elements, they add their scores through shared memory, and each
// sums half of the output's columns. A group's scale multiplies its part of the scores, and, for
// values, the probabilities.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/items.cuh"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode/tile_walk.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_latent/config.h"
#include "kernels/cuda/sm90/decode_warps/convert.cuh"

namespace fathom::kernels::cuda::sm90 {

struct LatentMaps {
  CUtensorMap codes;
  CUtensorMap rope;
  CUtensorMap scales;
};

template <class Config>
struct LatentShared {
  uint32_t ring;   // [kSlots]: codes [kGroups][kTile][128], rotated keys [kTile][64] bf16, both
                   // swizzled, scales [kTile][kGroups] f32
  uint32_t q;      // [kSteps][kRows / 8][32 lanes] two pairs of bf16
  uint32_t merge;  // [kWarps / 2][kStateFloats][32] f32
  uint32_t swap;   // in the same place: [2][kWarps][32] partial scores, kRows / 2 a lane
  uint32_t barriers;

  __device__ __forceinline__ explicit LatentShared(const uint8_t* memory) {
    ring = (ptx::SharedAddress(memory) + 1023) & ~1023u;
    q = ring + Config::kSlots * Config::kSlotBytes;
    merge = q + Config::kQBytes;
    swap = merge;
    barriers = merge + Config::kMergeBytes;
  }
  __device__ __forceinline__ uint32_t Block(int slot, int block) const {
    return ring + slot * Config::kSlotBytes + block * Config::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t Scales(int slot) const {
    return Block(slot, Config::kGroups + 1);
  }
  __device__ __forceinline__ static uint32_t Chunk(int row, int chunk) {
    return row * 128 + ((chunk ^ (row & 7)) << 4);
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
      StartItem();
      for (int tile = item.begin; tile < item.end; ++tile) Step(item, tile);
      EndItem(item);
    }
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

  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(1, Config::kWarps * 32); }
  __device__ __forceinline__ void SyncPair() const {
    ptx::BarrierSync(2 + keys_, Config::kHalves * 32);
  }

  // B operands in the order of elements that the keys have: four neighbours a lane for codes.
  __device__ __forceinline__ void LoadQueries(const DecodeItem& item) const {
    Sync();  // the last item's products have read the old queries
    for (int e = static_cast<int>(threadIdx.x); e < Config::kSteps * kRowTiles * 32;
         e += Config::kWarps * 32) {
      const int lane = e % 32;
      const int row = e / 32 % kRowTiles * 8 + lane / 4;
      const int step = e / 32 / kRowTiles;
      const int token = RowToken(row);
      const int head = RowHead(row, token);
      uint2 value = make_uint2(0, 0);
      if (row < LiveRows(item)) {
        if (step < Config::kDimV / 16) {
          const auto* q = static_cast<const uint16_t*>(params_.q) +
                          (item.query_begin + token) * params_.q_token_stride +
                          head * params_.q_head_stride;
          value = __ldg(reinterpret_cast<const uint2*>(q + step * 16 + lane % 4 * 4));
        } else {
          const auto* q = static_cast<const uint16_t*>(params_.q_pe) +
                          (item.query_begin + token) * params_.q_pe_token_stride +
                          head * params_.q_pe_head_stride + (step - Config::kDimV / 16) * 16;
          value.x = __ldg(reinterpret_cast<const uint32_t*>(q + lane % 4 * 2));
          value.y = __ldg(reinterpret_cast<const uint32_t*>(q + 8 + lane % 4 * 2));
        }
      }
      ptx::StoreShared(shared_.q + e * 8, value);
    }
    Sync();
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
      base_[j][0] = base_[j][1] = -INFINITY;
      sum_[j][0] = sum_[j][1] = 0;
    }
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
    float scales[kOwnGroups][2];  // of keys lane / 4 and 8 further; zero where there is no key
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = lane_ / 4 + i * 8;
      const float2 v = ptx::LoadSharedFloat2(
          shared_.Scales(position_.slot) +
          ((keys_ * kOwnKeys + key) * Config::kGroups + half_ * kOwnGroups) * 4);
      scales[0][i] = key < live_keys ? v.x : 0.f;
      scales[1][i] = key < live_keys ? v.y : 0.f;
    }
    float s[kRowTiles][4];
    Scores(scales, s);
    Exchange(s);
    if (live_keys < kOwnKeys + item.query_tokens - 1) Mask(item, first_key, s);
    Softmax(s);
    Values(scales, s);
    Release();
  }

  __device__ __forceinline__ void Multiply(const uint32_t (&a)[4], int step,
                                           float (&s)[kRowTiles][4]) const {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const uint2 b = ptx::LoadSharedPair(shared_.q + ((step * kRowTiles + j) * 32 + lane_) * 8);
      ptx::Mma(s[j], a, b.x, b.y);
    }
  }

  __device__ __forceinline__ void Scores(const float (&scales)[kOwnGroups][2],
                                         float (&s)[kRowTiles][4]) const {
    const int row = keys_ * kOwnKeys + lane_ % 16;
    // The rotated keys' four steps are shared too.
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = half_ * 2 + i;
      uint32_t a[4];
      ptx::LoadMatrix(shared_.Block(position_.slot, Config::kGroups) +
                          LatentShared<Config>::Chunk(row, step * 2 + lane_ / 16),
                      a);
      Multiply(a, Config::kDimV / 16 + step, s);
    }
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      const int group = half_ * kOwnGroups + g;
      float part[kRowTiles][4] = {};
#pragma unroll
      for (int load = 0; load < 4; ++load) {
        uint32_t raw[4];
        ptx::LoadMatrix(shared_.Block(position_.slot, group) +
                            LatentShared<Config>::Chunk(row, load * 2 + lane_ / 16),
                        raw);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t a[4];
          ConvertKeys<Config::kCode>(raw[h * 2], a[0], a[2]);
          ConvertKeys<Config::kCode>(raw[h * 2 + 1], a[1], a[3]);
          Multiply(a, group * kGroupTiles + load * 2 + h, part);
        }
      }
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[j][i] = fmaf(part[j][i], scales[g][i / 2], s[j][i]);
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
    constexpr float kSlack = 8;
    float peak[kRowTiles][2];
    bool grown = false;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = fmaxf(s[j][i], s[j][i + 2]);
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
        peak[j][i] = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
        grown = grown || peak[j][i] > base_[j][i] + kSlack;
      }
    }
    if (__any_sync(~0u, grown)) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) Rebase(j, i, fmaxf(peak[j][i], base_[j][i]));
      }
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float base = base_[j][i] == -INFINITY ? 0.f : base_[j][i];
        s[j][i] = ptx::Exp2(s[j][i] - base);
        s[j][i + 2] = ptx::Exp2(s[j][i + 2] - base);
        sum_[j][i] += s[j][i] + s[j][i + 2];
      }
    }
  }

  // Makes a row's sums relative to another base. Returns the factor.
  __device__ __forceinline__ float Rebase(int j, int i, float base) {
    const float factor = ptx::Exp2(base_[j][i] - (base == -INFINITY ? 0.f : base));
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

  __device__ __forceinline__ void Values(const float (&scales)[kOwnGroups][2],
                                         const float (&s)[kRowTiles][4]) {
    const int row = keys_ * kOwnKeys + lane_ % 8 + lane_ / 8 % 2 * 8;
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      uint32_t p[kRowTiles][2];
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[j][i] = ptx::TransposeMatrix(
              ptx::PackBf16(s[j][2 * i] * scales[g][i], s[j][2 * i + 1] * scales[g][i]));
        }
      }
      const uint32_t block = shared_.Block(position_.slot, half_ * kOwnGroups + g);
#pragma unroll
      for (int load = 0; load < 4; ++load) {
        uint32_t raw[4];
        ptx::LoadMatrixTransposed(block + LatentShared<Config>::Chunk(row, load * 2 + lane_ / 16),
                                  raw);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t a[4];
          ConvertValues<Config::kCode>(raw[h * 2], a[0], a[1]);
          ConvertValues<Config::kCode>(raw[h * 2 + 1], a[2], a[3]);
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            ptx::Mma(out_[g][load * 2 + h][j], a, p[j][0], p[j][1]);
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
        const float factor = ptx::Exp2(other - (base_[j][i] == -INFINITY ? 0.f : base_[j][i]));
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

  __device__ __forceinline__ void Write(const DecodeItem& item) const {
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
            *reinterpret_cast<uint32_t*>(out + n * 16) =
                ptx::PackBf16(o[i] * scale, o[i + 2] * scale);
          }
        } else {
          const int64_t at =
              (int64_t{item.slot} * params_.row_tiles + row_tile_) * Config::kRows + row;
          if (first) {
            reinterpret_cast<float2*>(params_.partial_ml)[at] =
                make_float2(base_[j][i], sum_[j][i]);
          }
          float* out = params_.partial_out + at * Config::kDimV + column;
#pragma unroll
          for (int n = 0; n < kOwnGroups * kGroupTiles; ++n) {
            const float(&o)[4] = out_[n / kGroupTiles][n % kGroupTiles][j];
            *reinterpret_cast<float2*>(out + n * 16) = make_float2(o[i], o[i + 2]);
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
  float base_[kRowTiles][2];  // log2
  float sum_[kRowTiles][2];   // of this lane's keys
  float out_[kOwnGroups][kGroupTiles][kRowTiles][4];
};

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
  ptx::LaunchDependents();  // the merge kernel gets ready meanwhile
  if (warp == 0) {
    shared.Initialise(lane);
    if (lane == 0) {
      ptx::TmaPrefetchMap(&maps.codes);
      ptx::TmaPrefetchMap(&maps.rope);
      ptx::TmaPrefetchMap(&maps.scales);
    }
  }
  // Behind the fence in Initialise, which would wait for them.
  const DecodePart part = params.parts[part_index];
  const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
  __syncthreads();

  if (warp == Config::kWarps) {
    RingPosition<Config::kSlots> position;
    const uint64_t policy = params.keep_in_l2 ? ptx::kL2EvictNormal : ptx::kL2EvictFirst;
    TileWalk walk(params, lane);
    walk.Run(part, ids, [&](const int32_t(&pages)[4], int token, int) {
      if (lane == 0) {
        const uint32_t full = shared.Full(position.slot);
        ptx::MbarrierWait(shared.Empty(position.slot), position.phase ^ 1);
        ptx::MbarrierExpectBytes(full, Config::kSlotBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i >= walk.boxes()) continue;
          const int row = i * walk.box_tokens();
#pragma unroll
          for (int block = 0; block < Config::kGroups; ++block) {
            ptx::TmaLoad4(shared.Block(position.slot, block) + row * 128, &maps.codes, full,
                          block * 128, token, 0, pages[i], policy);
          }
          ptx::TmaLoad4(shared.Block(position.slot, Config::kGroups) + row * 128, &maps.rope, full,
                        0, token, 0, pages[i], policy);
          ptx::TmaLoad4(shared.Scales(position.slot) + row * Config::kGroups * 4, &maps.scales,
                        full, 0, token, 0, pages[i], policy);
        }
      }
      position.Next();
      __syncwarp();
    });
    WriteEmpty<Config>(params, part_index, 0, row_tile);
  } else {
    LatentConsumer<Config>(params, shared, row_tile).Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
