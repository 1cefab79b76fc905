#pragma once
// The two consumer warpgroups of a wide decode block.
//
// 64 rows x 512 columns of output fill half of an SM's registers, so each warpgroup keeps 256
// columns, left and right. Tiles are taken in pairs: the first warpgroup makes the scores and
// probabilities of the first tile, the second those of the second; each tells the other its P
// through shared memory. With V = [left | right], for a pair of tiles 0 and 1:
//
//   first warpgroup                       second warpgroup
//   S0 = Q K0', its base, P0              S1 = Q K1'
//   O_left += P0 V0_left                  O_right += P0 V0_right, meanwhile P1
//   O_left += P1 V1_left                  O_right += P1 V1_right
//
// A warpgroup's own P comes from registers. While one does its softmax the other multiplies.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/ptx/shuffle.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/decode/merge_inside.cuh"
#include "kernels/cuda/sm90/decode/shared.cuh"
#include "kernels/cuda/sm90/decode_wide/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <bool kFloat16>
class WideConsumer {
 public:
  using Config = WideConfig;
  using Type = ElementType<kFloat16>;
  using Range = ProbabilityRange<kFloat16, /*kSlack=*/8>;
  static constexpr int kRows = Config::kRows;
  static constexpr int kSteps = Config::kTile / 16;
  static constexpr int kHalfBlocks = Config::kFirstBlocks / 2;  // value columns of a warpgroup

  __device__ __forceinline__ WideConsumer(const DecodeParams& params, const WideShared& shared,
                                          int row_tile)
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
      if (params_.merge_inside) Merge().Prefetch(sequence_);
      StartItem();
      if (group_ == 0) {
        FirstOfPairs(tile, end);
      } else {
        SecondOfPairs(tile, end);
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
    if (params_.merge_inside) Merge().Run(shared_.tiles);
  }

 private:
  // Named barriers.
  static constexpr int kAll = 1;
  static constexpr int kFirstIssued = 2;   // S0 is queued
  static constexpr int kFirstReady = 3;    // P0 and its base are in shared memory
  static constexpr int kSecondReady = 4;   // P1 and its base are, and P0 has been read
  static constexpr int kGroupBarrier = 5;  // within a warpgroup, one each

  using Inside =
      MergeInside<Config::kDimV, kRows, 8, Config::kConsumerThreads / 32, /*kBarrier=*/kAll>;
  __device__ __forceinline__ Inside Merge() const {
    return Inside(params_, shared_.pending, row_tile_);
  }

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
    base_[0] = base_[1] = kNoBase;
    sum_[0] = sum_[1] = 0;
    fresh_ = group_ == 0;
  }

  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(kAll, Config::kConsumerThreads); }

  __device__ __forceinline__ void Release(uint32_t barrier) const {
    if (lane_ == 0) ptx::MbarrierArrive(barrier);
  }

  // Where the tile is that is `ahead` of the next one.
  __device__ __forceinline__ int Stage(int ahead) const { return (tiles_ + ahead) % 2; }
  __device__ __forceinline__ uint32_t Phase(int ahead) const {
    return static_cast<uint32_t>(tiles_ + ahead) / 2 % 2;
  }

  // The rotated keys come first: their block is free first, too. Calls rotated_issued() when their
  // products are queued.
  template <class RotatedIssued>
  __device__ __forceinline__ void IssueScores(int stage, uint32_t phase,
                                              RotatedIssued rotated_issued) {
    ptx::MbarrierWait(shared_.Full(stage, 0), phase);
    ptx::WgmmaFence();
    const uint64_t rotated = ptx::Descriptor(shared_.Rotated(stage));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::WgmmaRS<64, ptx::Major::kK, kFloat16>(s_, q_pe_[step], ptx::Advance(rotated, step * 32),
                                                 step > 0);
    }
    ptx::WgmmaCommit();
    rotated_issued();
#pragma unroll 1  // code is fetched cold: a short loop starts sooner
    for (int block = 0; block < Config::kFirstBlocks; block += 2) {
      ptx::MbarrierWait(shared_.Full(stage, 1 + block / 2), phase);
      ptx::WgmmaFence();
      const uint64_t q = ptx::Descriptor(shared_.q + block * (kRows * 128));
      const uint64_t k = ptx::Descriptor(shared_.Latents(stage, block));
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int chunk = step % 4 * 32;
        ptx::WgmmaSS<64, ptx::Major::kK, ptx::Major::kK, kFloat16>(
            s_, ptx::Advance(q, step / 4 * (kRows * 128) + chunk),
            ptx::Advance(k, step / 4 * Config::kBlockBytes + chunk), true);
      }
      ptx::WgmmaCommit();
    }
  }

  // O += P V of this warpgroup's columns; its own P from registers, the other's from shared memory.
  __device__ __forceinline__ uint64_t Values(int stage) const {
    return ptx::Descriptor(shared_.Latents(stage, group_ * kHalfBlocks), Config::kBlockBytes);
  }
  __device__ __forceinline__ void IssueOwnValues(int stage) {
    const uint64_t v = Values(stage);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaRS<256, ptx::Major::kMn, kFloat16>(out_, p_[step], ptx::Advance(v, step * 2048),
                                                   true);
    }
    ptx::WgmmaCommit();
  }
  __device__ __forceinline__ void IssueOtherValues(int stage) {
    const uint64_t v = Values(stage);
    const uint64_t p = ptx::Descriptor(shared_.P(1 - group_));
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaSS<256, ptx::Major::kK, ptx::Major::kMn, kFloat16>(
          out_, ptx::Advance(p, step * 32), ptx::Advance(v, step * 2048), true);
    }
    ptx::WgmmaCommit();
  }
  __device__ __forceinline__ void WaitValues() {
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(out_);
  }

  __device__ __forceinline__ void WaitScores(int tile, int stage) {
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(s_);
    Release(shared_.Empty(stage, 0));
    Mask(tile);
  }

  // The first warpgroup: scores, probabilities and left columns of a tile.
  __device__ __forceinline__ void FirstTile(int tile, bool pair) {
    if (pair) ptx::BarrierArrive(kFirstIssued, Config::kConsumerThreads);
    const int stage = Stage(0);
    WaitScores(tile, stage);
    Softmax();
    StoreP();
    ZeroDeadValues(tile, stage);
    ptx::FenceProxyAsync();
    ptx::BarrierArrive(kFirstReady, Config::kConsumerThreads);
    if (moved_) Rescale();
    IssueOwnValues(stage);
    WaitValues();
    Release(shared_.Empty(stage, 1 + group_));
    ptx::BarrierSync(kSecondReady, Config::kConsumerThreads);
  }

  __device__ __forceinline__ void FirstOfPairs(int tile, int end) {
    IssueScores(Stage(0), Phase(0), [] {});
    for (; tile + 2 < end; tile += 2) {
      FirstTile(tile, true);
      TakeBase();
      if (moved_) Rescale();
      const int second = Stage(1);
      IssueOtherValues(second);
      tiles_ += 2;
      IssueScores(Stage(0), Phase(0), [&] {
        ptx::WgmmaWait<1>();
        ptx::WgmmaFenceRegisters(out_);
        Release(shared_.Empty(second, 1 + group_));
      });
    }
    const bool pair = tile + 1 < end;
    FirstTile(tile, pair);
    if (pair) {
      TakeBase();
      if (moved_) Rescale();
      const int second = Stage(1);
      IssueOtherValues(second);
      WaitValues();
      Release(shared_.Empty(second, 1 + group_));
    }
    tiles_ += pair ? 2 : 1;
  }

  __device__ __forceinline__ void SecondOfPairs(int tile, int end) {
    for (; tile + 1 < end; tile += 2) {
      const int stage = Stage(0);
      const int second = Stage(1);
      ptx::BarrierSync(kFirstIssued, Config::kConsumerThreads);
      IssueScores(second, Phase(1), [] {});
      WaitScores(tile + 1, second);
      ptx::BarrierSync(kFirstReady, Config::kConsumerThreads);
      TakeBase();
      if (moved_) Rescale();
      IssueOtherValues(stage);
      Softmax();
      StoreP();  // also keeps the wait below behind the softmax
      ZeroDeadValues(tile + 1, second);
      ptx::FenceProxyAsync();
      WaitValues();
      Release(shared_.Empty(stage, 1 + group_));
      ptx::BarrierArrive(kSecondReady, Config::kConsumerThreads);
      if (moved_) Rescale();
      IssueOwnValues(second);
      WaitValues();
      Release(shared_.Empty(second, 1 + group_));
      tiles_ += 2;
    }
    if (tile < end) {
      const int stage = Stage(0);
      ptx::BarrierSync(kFirstReady, Config::kConsumerThreads);
      TakeBase();
      if (moved_) Rescale();
      IssueOtherValues(stage);
      WaitValues();
      Release(shared_.Empty(stage, 1 + group_));
      ptx::BarrierArrive(kSecondReady, Config::kConsumerThreads);
      ++tiles_;
    }
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

  // Moves to another base, at least as large. Leaves in rescale_ what the output has to be
  // multiplied with, and in moved_ whether it has to be, for any row of the warp.
  __device__ __forceinline__ void MoveTo(const float (&base)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rescale_[r] = ptx::Exp2(base_[r] - base[r]);
      sum_[r] *= rescale_[r];
      base_[r] = base[r];
    }
  }
  // ... to where the other warpgroup has moved.
  __device__ __forceinline__ void TakeBase() {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      base[r] = ptx::LoadSharedFloat(shared_.Base(1 - group_, row_ + r * 8));
    moved_ = __any_sync(~0u, base[0] != base_[0] || base[1] != base_[1]);
    if (moved_) MoveTo(base);
  }

  // Scores become probabilities relative to 2^base, which goes to shared memory. The base moves
  // only when a score is far above it, which the sums tell: no maximum is taken until then, and
  // nothing has to be rescaled.
  __device__ __forceinline__ void Softmax() {
    moved_ = false;
    if (fresh_) MoveToPeaks();
    fresh_ = false;
    float sum[2];
    Exponentials(sum);
    if (__any_sync(~0u, sum[0] >= Range::kMostSum || sum[1] >= Range::kMostSum)) {
      MoveToPeaks();
      Exponentials(sum);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane_ % 4 == 0) ptx::StoreShared(shared_.Base(group_, row_ + r * 8), base_[r]);
      sum_[r] += sum[r];
    }
  }
  __device__ __forceinline__ void MoveToPeaks() {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = fmaxf(s_[2 * r], s_[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < 32; i += 4) {
        peak = fmaxf(peak, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      peak = OverQuad(peak, [](float x, float y) { return fmaxf(x, y); }) * scale_log2_;
      base[r] = fmaxf(peak - Range::kLift, base_[r]);
    }
    MoveTo(base);
    moved_ = true;
  }
  __device__ __forceinline__ void Exponentials(float (&sum)[2]) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        const float low = ptx::Exp2(fmaf(s_[step * 8 + i * 2], scale_log2_, -base_[r]));
        const float high = ptx::Exp2(fmaf(s_[step * 8 + i * 2 + 1], scale_log2_, -base_[r]));
        sum[r] += low + high;
        p_[step][i] = Type::Pack(low, high);
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

  __device__ __forceinline__ void Rescale() {
#pragma unroll
    for (int i = 0; i < kHalfBlocks * 32; ++i) out_[i] *= rescale_[i / 2 % 2];
  }

  // Rows of the last page that hold no token may hold anything, and 0 x NaN is NaN. The warpgroup
  // that made the tile's scores clears them, for both.
  __device__ __forceinline__ void ZeroDeadValues(int tile, int stage) const {
    const int live = kv_tokens_ - tile * Config::kTile;
    if (live >= Config::kTile) return;
    ptx::BarrierSync(kGroupBarrier + group_, 128);  // every warp's scores are done
    for (int block = 0; block < Config::kFirstBlocks; ++block) {
      for (int i = live * 8 + static_cast<int>(threadIdx.x % 128); i < Config::kTile * 8;
           i += 128) {
        ptx::StoreShared(shared_.Latents(stage, block) + i * 16, make_uint4(0, 0, 0, 0));
      }
    }
    ptx::FenceProxyAsync();
    ptx::BarrierSync(kGroupBarrier + group_, 128);
  }

  __device__ __forceinline__ void EndItem(bool whole, int slot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = OverQuad(sum_[r], [](float x, float y) { return x + y; });
      float largest = 0;
      if (!whole) {
#pragma unroll
        for (int i = 0; i < kHalfBlocks * 8; ++i) {
          largest =
              fmaxf(largest, fmaxf(fabsf(out_[i * 4 + r * 2]), fabsf(out_[i * 4 + r * 2 + 1])));
        }
        largest = OverQuad(largest, [](float x, float y) { return fmaxf(x, y); });
      }
      if (lane_ % 4 == 0) {
        ptx::StoreShared(shared_.Sum(group_, row_ + r * 8), sum);
        ptx::StoreShared(shared_.Largest(group_, row_ + r * 8), largest);
      }
    }
    Sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + r * 8;
      const float sum =
          ptx::LoadSharedFloat(shared_.Sum(0, row)) + ptx::LoadSharedFloat(shared_.Sum(1, row));
      const bool live = row < LiveRows();
      if (whole) {
        WriteResult(r, row, live, RowState{sum == 0.f ? 0.f : base_[r], sum});
      } else {
        const float largest = fmaxf(ptx::LoadSharedFloat(shared_.Largest(0, row)),
                                    ptx::LoadSharedFloat(shared_.Largest(1, row)));
        WritePartial(r, row, slot, live, RowState{sum == 0.f ? -INFINITY : base_[r], sum}, largest);
      }
    }
    if (!whole && params_.merge_inside) {
      Merge().Publish(sequence_, slot, query_begin_, query_tokens_);
    }
    Sync();  // the sums may be written again
  }

  template <class Join>
  __device__ __forceinline__ float OverQuad(float x, const Join& join) const {
    x = join(x, __shfl_xor_sync(~0u, x, 1));
    return join(x, __shfl_xor_sync(~0u, x, 2));
  }

  __device__ __forceinline__ void WriteResult(int r, int row, bool live, const RowState& state) {
    const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
    const int token = RowToken(row);
    const int64_t at_token = query_begin_ + token;
    const int head = RowHead(row, token);
    if (params_.lse != nullptr && live && group_ == 0 && lane_ % 4 == 0) {
      params_.lse[at_token * params_.group + head] = LogSumExp(state);
    }
    WriteRow(r, live,
             static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                 head * params_.out_head_stride,
             [scale](float x, float y) { return Type::Pack(x * scale, y * scale); });
  }

  // See PartialFormat. largest: of the row's elements.
  __device__ __forceinline__ void WritePartial(int r, int row, int slot, bool live,
                                               const RowState& state, float largest) const {
    static_assert(kPartialFormat<Config::kDimV, kRows, 90> == PartialFormat::kFloat16);
    const PartialScale scale(largest);
    const int64_t base = (int64_t{slot} * params_.row_tiles + row_tile_) * kRows + row;
    if (live && group_ == 0 && lane_ % 4 == 0) {
      reinterpret_cast<float2*>(params_.partial_ml)[base] = scale.State(state.max_log2, state.sum);
    }
    WriteRow(
        r, live, static_cast<uint16_t*>(params_.partial_out) + base * Config::kDimV,
        [scale](float x, float y) { return ptx::PackF16(x * scale.factor, y * scale.factor); });
  }

  // The whole warp, which trades columns among four lanes so that each writes 16 bytes.
  template <class Pack>
  __device__ __forceinline__ void WriteRow(int r, bool live, uint16_t* target,
                                           const Pack& pack) const {
    target += group_ * (kHalfBlocks * 64) + lane_ % 4 * 8;
#pragma unroll
    for (int j = 0; j < kHalfBlocks * 2; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (j * 4 + i) * 4 + 2 * r;
        x[i] = pack(out_[at], out_[at + 1]);
      }
      ptx::TransposeQuad(x, lane_);
      if (live) ptx::StoreGlobal(target + j * 32, make_uint4(x[0], x[1], x[2], x[3]));
    }
  }

  const DecodeParams& params_;
  const WideShared& shared_;
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
  float base_[2];  // of the exponentials, log2
  float rescale_[2];
  bool moved_ = false;
  bool fresh_ = false;  // the item's first scores are yet to come
  float sum_[2];        // of this thread's columns of its warpgroup's tiles
  uint32_t q_pe_[4][4];
  uint32_t p_[kSteps][4];
  float s_[32];
  float out_[kHalfBlocks * 32];
};

}  // namespace fathom::kernels::cuda::sm90
