#pragma once
// The two consumer warpgroups of a wide decode block.
//
// 64 rows x 512 columns of output fill half of an SM's registers, so each warpgroup keeps 256
// columns, left and right. Tiles are taken in pairs: the first warpgroup makes the scores and
// probabilities of the first tile, the second those of the second; each tells the other its P
// through shared memory. With V = [left | right], for a pair of tiles 0 and 1:
//
//   first warpgroup                       second warpgroup
//   S0 = Q K0', m0 = max(m, S0), P0       S1 = Q K1'
//   O_left += P0 V0_left                  O_right += P0 V0_right, meanwhile m1 = max(m0, S1), P1
//   O_left += P1 V1_left                  O_right += P1 V1_right
//
// A warpgroup's own P comes from registers. While one does its softmax the other multiplies.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/shuffle.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode/shared.cuh"
#include "kernels/cuda/sm90/decode_wide/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
class WideConsumer {
 public:
  static constexpr int kRows = Config::kRows;
  static constexpr int kSteps = Config::kTile / 16;
  static constexpr int kHalfBlocks = Config::kFirstBlocks / 2;  // value columns of a warpgroup

  __device__ __forceinline__ WideConsumer(const DecodeParams& params,
                                          const WideShared<Config>& shared, int row_tile)
      : params_(params),
        shared_(shared),
        row_tile_(row_tile),
        group_(Uniform(static_cast<int>(threadIdx.x / 128))),
        lane_(static_cast<int>(threadIdx.x % 32)),
        row_(static_cast<int>(threadIdx.x % 128 / 32 * 16) + lane_ / 4),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index, const DecodePart& part) {
    sequence_ = Uniform(part.sequence);
    kv_tokens_ = Uniform(part.kv_tokens);
    query_begin_ = Uniform(part.query_begin);
    query_tokens_ = Uniform(part.query_tokens);
    int tile = Uniform(part.tile);
    int left = Uniform(part.num_tiles);
    int slot = Uniform(part.slot);
    bool load_queries = true;
    while (left > 0) {
      const int end = DecodeItemEnd(params_.split, kv_tokens_, tile, left);
      if (load_queries) LoadQueries();
      StartItem();
      for (int t = tile; t < end; t += 2) {
        if (group_ == 0) {
          FirstOfPair(t, t + 1 < end);
        } else {
          SecondOfPair(t, t + 1 < end);
        }
        tiles_ += t + 1 < end ? 2 : 1;
      }
      EndItem(tile == 0 && end == DecodeTiles(kv_tokens_), slot);
      left -= end - tile;
      load_queries = end == DecodeTiles(kv_tokens_);
      tile = load_queries ? 0 : end;
      ++slot;
      if (load_queries && left > 0) {
        do {
          kv_tokens_ = Uniform(params_.kv_lengths[++sequence_]);
        } while (kv_tokens_ == 0);
        query_begin_ = Uniform(params_.query_starts[sequence_]);
        query_tokens_ = Uniform(params_.query_starts[sequence_ + 1]) - query_begin_;
        if (params_.split.max_segments == 0) slot = part_index + sequence_;
      }
    }
  }

 private:
  // Named barriers.
  static constexpr int kAll = 1;
  static constexpr int kScoresIssued = 2;  // the first warpgroup's products are queued
  static constexpr int kFirstReady = 3;    // P0 and m0 are in shared memory
  static constexpr int kSecondReady = 4;   // P1 and m1 are, and P0 has been read
  static constexpr int kGroupBarrier = 5;  // within a warpgroup, one each

  __device__ __forceinline__ int LiveRows() const {
    return query_tokens_ * params_.group - row_tile_ * kRows;
  }
  __device__ __forceinline__ int RowToken(int row) const {
    return ((row_tile_ * kRows + row) * params_.group_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(int row, int token) const {
    return row_tile_ * kRows + row - token * params_.group;
  }

  // Rows are (query token, head), token-major; the rest of the tile is zeros. The rotated part goes
  // on into registers.
  __device__ __forceinline__ void LoadQueries() {
    constexpr int kThreadsPerRow = Config::kConsumerThreads / kRows;
    constexpr int kChunks = Config::kTileBlocks * 8 / kThreadsPerRow;  // of 16 bytes, of a thread
    const int row = static_cast<int>(threadIdx.x) / kThreadsPerRow;
    const int first = static_cast<int>(threadIdx.x) % kThreadsPerRow;
    const int token = RowToken(row);
    const int head = RowHead(row, token);
    const auto* q = static_cast<const uint16_t*>(params_.q) +
                    (query_begin_ + token) * params_.q_token_stride + head * params_.q_head_stride;
    const auto* q_pe = static_cast<const uint16_t*>(params_.q_pe) +
                       (query_begin_ + token) * params_.q_pe_token_stride +
                       head * params_.q_pe_head_stride - Config::kDimV;
    const bool live = row < LiveRows();
    uint4 value[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * kThreadsPerRow + first;
      const uint16_t* source = chunk >= Config::kFirstBlocks * 8 ? q_pe : q;
      value[i] =
          live ? __ldg(reinterpret_cast<const uint4*>(source) + chunk) : make_uint4(0, 0, 0, 0);
    }
    Sync();  // the last item's products have read the old queries
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * kThreadsPerRow + first;
      ptx::StoreShared(
          shared_.q + chunk / 8 * (kRows * 128) + row * 128 + (((chunk % 8) ^ (row & 7)) << 4),
          value[i]);
    }
    ptx::FenceProxyAsync();
    Sync();
    const int own_row = row_ - lane_ / 4 + lane_ % 16;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = step * 2 + lane_ / 16;
      ptx::LoadMatrix(shared_.P(1) + own_row * 128 + ((chunk ^ (own_row & 7)) << 4), q_pe_[step]);
    }
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int i = 0; i < kHalfBlocks * 32; ++i) out_[i] = 0;
    peak_[0] = peak_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(kAll, Config::kConsumerThreads); }

  __device__ __forceinline__ void Release(int slot) const {
    if constexpr (Config::kCluster == 1) {
      if (lane_ == 0) ptx::MbarrierArrive(shared_.Empty(slot));
    } else {
      if (lane_ < Config::kCluster) ptx::MbarrierArriveCluster(shared_.Empty(slot), lane_);
    }
  }
  __device__ __forceinline__ void ReleaseHalf(int first_slot) const {
#pragma unroll
    for (int block = 0; block < kHalfBlocks; ++block) Release(first_slot + block);
  }

  // Slot of the first block of the tile that is `ahead` of the next one, and its phase.
  __device__ __forceinline__ int SlotOf(int ahead) const {
    return (tiles_ + ahead) % 2 * Config::kTileBlocks;
  }
  __device__ __forceinline__ uint32_t PhaseOf(int ahead) const {
    return static_cast<uint32_t>(tiles_ + ahead) / 2 % 2;
  }

  __device__ __forceinline__ void IssueScores(int slot, uint32_t phase) {
    const uint64_t q = ptx::Descriptor(shared_.q);
    ptx::WgmmaFence();
#pragma unroll
    for (int block = 0; block < Config::kTileBlocks; ++block) {
      ptx::MbarrierWait(shared_.Full(slot + block), phase);
      const uint64_t k = ptx::Descriptor(shared_.Slot(slot + block));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (block < Config::kFirstBlocks) {
          ptx::WgmmaSS<64, ptx::Major::kK, ptx::Major::kK>(
              s_, ptx::Advance(q, block * (kRows * 128) + step * 32), ptx::Advance(k, step * 32),
              block + step > 0);
        } else {
          ptx::WgmmaRS<64, ptx::Major::kK>(s_, q_pe_[step], ptx::Advance(k, step * 32), true);
        }
      }
    }
    ptx::WgmmaCommit();
  }

  // O += P V of this warpgroup's columns; its own P from registers, the other's from shared memory.
  __device__ __forceinline__ uint64_t Values(int slot) const {
    return ptx::Descriptor(shared_.Slot(slot + group_ * kHalfBlocks), Config::kBlockBytes);
  }
  __device__ __forceinline__ void IssueOwnValues(int slot) {
    const uint64_t v = Values(slot);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaRS<256, ptx::Major::kMn>(out_, p_[step], ptx::Advance(v, step * 2048), true);
    }
    ptx::WgmmaCommit();
  }
  __device__ __forceinline__ void IssueOtherValues(int slot) {
    const uint64_t v = Values(slot);
    const uint64_t p = ptx::Descriptor(shared_.P(1 - group_));
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaSS<256, ptx::Major::kK, ptx::Major::kMn>(out_, ptx::Advance(p, step * 32),
                                                         ptx::Advance(v, step * 2048), true);
    }
    ptx::WgmmaCommit();
  }
  __device__ __forceinline__ void WaitValues() {
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(out_);
  }

  __device__ __forceinline__ void FirstOfPair(int tile, bool pair) {
    const int slot = SlotOf(0);
    IssueScores(slot, PhaseOf(0));
    if (pair) ptx::BarrierArrive(kScoresIssued, Config::kConsumerThreads);
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(s_);
    Release(slot + Config::kFirstBlocks);
    Mask(tile);
    float rescale[2];
    Softmax(peak_, rescale);
    StoreP();
    ZeroDeadValues(tile, slot);
    ptx::FenceProxyAsync();
    ptx::BarrierArrive(kFirstReady, Config::kConsumerThreads);
    Rescale(rescale);
    IssueOwnValues(slot);
    WaitValues();
    ReleaseHalf(slot);

    ptx::BarrierSync(kSecondReady, Config::kConsumerThreads);
    if (!pair) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float peak = ptx::LoadSharedFloat(shared_.Peak(1, row_ + r * 8));
      rescale[r] = Factor(peak_[r], peak);
      sum_[r] *= rescale[r];
      peak_[r] = peak;
    }
    Rescale(rescale);
    const int second = SlotOf(1);
    IssueOtherValues(second);
    WaitValues();
    ReleaseHalf(second);
  }

  __device__ __forceinline__ void SecondOfPair(int tile, bool pair) {
    const int slot = SlotOf(0);
    const int second = SlotOf(1);
    if (pair) {
      ptx::BarrierSync(kScoresIssued, Config::kConsumerThreads);
      IssueScores(second, PhaseOf(1));
      ptx::WgmmaWait<0>();
      ptx::WgmmaFenceRegisters(s_);
      Release(second + Config::kFirstBlocks);
      Mask(tile + 1);
    }
    ptx::BarrierSync(kFirstReady, Config::kConsumerThreads);
    float first_peak[2];
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      first_peak[r] = ptx::LoadSharedFloat(shared_.Peak(0, row_ + r * 8));
      rescale[r] = Factor(peak_[r], first_peak[r]);
      sum_[r] *= rescale[r];
      peak_[r] = first_peak[r];
    }
    Rescale(rescale);
    IssueOtherValues(slot);
    if (pair) {
      Softmax(peak_, rescale);
      StoreP();  // also keeps the wait below behind the softmax
      ZeroDeadValues(tile + 1, second);
      ptx::FenceProxyAsync();
    }
    WaitValues();
    ReleaseHalf(slot + kHalfBlocks);
    ptx::BarrierArrive(kSecondReady, Config::kConsumerThreads);
    if (!pair) return;
    Rescale(rescale);
    IssueOwnValues(second);
    WaitValues();
    ReleaseHalf(second + kHalfBlocks);
  }

  __device__ __forceinline__ float Factor(float old_peak, float peak) const {
    const float base = peak == -INFINITY ? 0.f : peak * scale_log2_;
    return ptx::Exp2(fmaf(old_peak, scale_log2_, -base));
  }

  // A query token sees the keys up to its own.
  __device__ __forceinline__ void Mask(int tile) {
    const int first_key = tile * Config::kTile;
    if (kv_tokens_ - first_key >= Config::kTile + query_tokens_ - 1) return;
    const int key = first_key + lane_ % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int limit = kv_tokens_ - (query_tokens_ - 1 - RowToken(row_ + r * 8));
#pragma unroll
      for (int i = 0; i < Config::kTile / 8; ++i) {
        if (key + i * 8 >= limit) s_[i * 4 + r * 2] = -INFINITY;
        if (key + i * 8 + 1 >= limit) s_[i * 4 + r * 2 + 1] = -INFINITY;
      }
    }
  }

  // Scores become probabilities under the new maximum, which goes to shared memory; `rescale` is
  // what this warpgroup's output has to be multiplied with.
  __device__ __forceinline__ void Softmax(float (&running)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = fmaxf(s_[2 * r], s_[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < 32; i += 4) {
        peak = fmaxf(peak, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      peak = fmaxf(peak, running[r]);
      if (lane_ % 4 == 0) ptx::StoreShared(shared_.Peak(group_, row_ + r * 8), peak);
      const float base = peak == -INFINITY ? 0.f : peak * scale_log2_;
      rescale[r] = ptx::Exp2(fmaf(running[r], scale_log2_, -base));
      running[r] = peak;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const int at = i + 2 * r;
        s_[at] = ptx::Exp2(fmaf(s_[at], scale_log2_, -base));
        s_[at + 1] = ptx::Exp2(fmaf(s_[at + 1], scale_log2_, -base));
        sum += s_[at] + s_[at + 1];
      }
      sum_[r] = fmaf(sum_[r], rescale[r], sum);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p_[step][i] = ptx::PackBf16(s_[step * 8 + i * 2], s_[step * 8 + i * 2 + 1]);
      }
    }
  }

  __device__ __forceinline__ void StoreP() const {
    const int row = row_ - lane_ / 4 + lane_ % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 2 + lane_ / 16;
      ptx::StoreMatrix(shared_.P(group_) + row * 128 + ((chunk ^ (row & 7)) << 4), p_[step][0],
                       p_[step][1], p_[step][2], p_[step][3]);
    }
  }

  __device__ __forceinline__ void Rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kHalfBlocks * 32; ++i) out_[i] *= factor[i / 2 % 2];
  }

  // Rows of the last page that hold no token may hold anything, and 0 x NaN is NaN. The warpgroup
  // that made the tile's scores clears them, for both.
  __device__ __forceinline__ void ZeroDeadValues(int tile, int slot) const {
    const int live = kv_tokens_ - tile * Config::kTile;
    if (live >= Config::kTile) return;
    ptx::BarrierSync(kGroupBarrier + group_, 128);  // every warp's scores are done
    for (int block = 0; block < Config::kFirstBlocks; ++block) {
      for (int i = live * 8 + static_cast<int>(threadIdx.x % 128); i < Config::kTile * 8;
           i += 128) {
        ptx::StoreShared(shared_.Slot(slot + block) + i * 16, make_uint4(0, 0, 0, 0));
      }
    }
    ptx::FenceProxyAsync();
    ptx::BarrierSync(kGroupBarrier + group_, 128);
  }

  __device__ __forceinline__ void EndItem(bool whole, int slot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 1);
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 2);
      if (lane_ % 4 == 0) {
        ptx::StoreShared(shared_.Sum(group_, row_ + r * 8), sum_[r]);
      }
    }
    Sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + r * 8;
      const float sum =
          ptx::LoadSharedFloat(shared_.Sum(0, row)) + ptx::LoadSharedFloat(shared_.Sum(1, row));
      const RowState state{sum == 0.f ? 0.f : peak_[r] * scale_log2_, sum};
      const bool live = row < LiveRows();
      if (whole) {
        WriteResult(r, row, live, state);
      } else if (live) {
        WritePartial(r, row, slot, RowState{peak_[r] * scale_log2_, sum});
      }
    }
    Sync();  // the sums may be written again
  }

  // The whole warp, which trades columns among four lanes so that each writes 16 bytes.
  __device__ __forceinline__ void WriteResult(int r, int row, bool live, const RowState& state) {
    const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
    const int token = RowToken(row);
    const int64_t at_token = query_begin_ + token;
    const int head = RowHead(row, token);
    if (params_.lse != nullptr && live && group_ == 0 && lane_ % 4 == 0) {
      params_.lse[at_token * params_.group + head] = LogSumExp(state);
    }
    auto* target = static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                   head * params_.out_head_stride + group_ * (kHalfBlocks * 64) + lane_ % 4 * 8;
#pragma unroll
    for (int j = 0; j < kHalfBlocks * 2; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (j * 4 + i) * 4 + 2 * r;
        x[i] = ptx::PackBf16(out_[at] * scale, out_[at + 1] * scale);
      }
      ptx::TransposeQuad(x, lane_);
      if (live) {
        *reinterpret_cast<uint4*>(target + j * 32) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  __device__ __forceinline__ void WritePartial(int r, int row, int slot,
                                               const RowState& state) const {
    const int64_t base = (int64_t{slot} * params_.row_tiles + row_tile_) * kRows + row;
    if (group_ == 0 && lane_ % 4 == 0) {
      reinterpret_cast<float2*>(params_.partial_ml)[base] = make_float2(state.max_log2, state.sum);
    }
    float* target =
        params_.partial_out + base * Config::kDimV + group_ * (kHalfBlocks * 64) + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kHalfBlocks * 8; ++j) {
      *reinterpret_cast<float2*>(target + j * 8) =
          make_float2(out_[j * 4 + 2 * r], out_[j * 4 + 2 * r + 1]);
    }
  }

  const DecodeParams& params_;
  const WideShared<Config>& shared_;
  int row_tile_;
  int group_;
  int lane_;
  int row_;  // of this thread; and 8 more
  float scale_log2_;
  int sequence_ = 0;
  int kv_tokens_ = 0;
  int query_begin_ = 0;
  int query_tokens_ = 0;
  int tiles_ = 0;  // taken so far
  float peak_[2];
  float sum_[2];  // of this thread's columns of its warpgroup's tiles
  uint32_t q_pe_[4][4];
  uint32_t p_[kSteps][4];
  float s_[32];
  float out_[kHalfBlocks * 32];
};

}  // namespace fathom::kernels::cuda::sm90
