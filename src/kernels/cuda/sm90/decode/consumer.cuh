#pragma once
// The consumer warpgroups of a decode block: scores, online softmax, weighted sum of values.
//
// With two warpgroups (latent caches) each multiplies its half of a tile's blocks: both hold
// partial scores of all rows, swap halves through shared memory, and do the softmax of half the
// rows; then each forms its half of the output columns from its own blocks. No block is read by
// both.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode/merge_inside.cuh"
#include "kernels/cuda/sm90/decode/shared.cuh"
#include "kernels/cuda/swizzle.h"

namespace fathom::kernels::cuda::sm90 {

template <class Config, bool kMergeInside>
class DecodeConsumer {
 public:
  static constexpr int kRows = Config::kRows;
  static constexpr int kOwnRows = Config::kOwnRows;
  static constexpr int kPairs = kRows / 4;        // rows of a thread
  static constexpr int kOwnPairs = kOwnRows / 4;  // of them those whose softmax it does
  using Position = RingPosition<Config::kSlots>;
  using Type = ElementType<Config::kFloat16>;
  using Range = ProbabilityRange<Config::kFloat16>;
  // Partial outputs are float16.
  static constexpr PartialFormat kFormat = kPartialFormat<Config::kDimV, kRows, 90>;
  static constexpr bool kShort = kFormat != PartialFormat::kFloat32;
  static_assert(!kShort || kFormat == PartialFormat::kPairedFloat16);
  static_assert(!kShort || (Config::kConsumerThreads / 32 + 1) * kRows * 4 <= Config::kSwapBytes);

  __device__ __forceinline__ DecodeConsumer(const DecodeParams& params,
                                            const DecodeShared<Config>& shared, int kv_head,
                                            int row_tile)
      : params_(params),
        shared_(shared),
        kv_head_(kv_head),
        row_tile_(row_tile),
        group_(Config::kGroups == 1 ? 0 : Uniform(static_cast<int>(threadIdx.x / 128))),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index, const DecodePart& part) {
    // Latent caches first rehearse what follows the scores, on whatever the queries' memory holds,
    // while the schedule and the first keys are on their way: the code comes from memory, too. For
    // that the step may have one place only. (The first turn of others has no step.)
    static_assert(!Config::kLatent || Config::kQBytes >= Config::kBlockBytes);
    rehearsal_ = 1;
    kv_tokens_ = INT32_MAX;  // nothing to mask
    int tile = 0;
    int end = Config::kLatent ? 1 : 0;
    int left = 0;
    int slot = 0;
    bool load_queries = true;
    StartItem();
    while (true) {
      if constexpr (Config::kLatent) ptx::KeepUnknown(rehearsal_);
      for (int t = tile; t < end; ++t) Step(t);
      if (rehearsal_ != 0) {
        rehearsal_ = 0;
        sequence_ = Uniform(part.sequence);
        kv_tokens_ = Uniform(part.kv_tokens);
        query_begin_ = Uniform(part.query_begin);
        query_tokens_ = Uniform(part.query_tokens);
        tile = Uniform(part.tile);
        left = Uniform(part.num_tiles);
        slot = Uniform(part.slot);
      } else {
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
      if (left == 0) break;
      if (load_queries) LoadQueries();
      if constexpr (kMergeInside) Merge().Prefetch(sequence_);
      StartItem();
      end = DecodeItemEnd(params_.split, kv_tokens_, tile, left);
    }
    if constexpr (kMergeInside) Merge().Run(shared_.ring);
  }

 private:
  // All consumers, and those of one warpgroup.
  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(1, Config::kConsumerThreads); }
  __device__ __forceinline__ void SyncGroup() const {
    if constexpr (Config::kGroups == 1) {
      Sync();
    } else {
      ptx::BarrierSync(2 + group_, 128);
    }
  }

  using Inside =
      MergeInside<Config::kDimV, kRows, 2, Config::kConsumerThreads / 32, /*kBarrier=*/1>;
  __device__ __forceinline__ Inside Merge() const {
    return Inside(params_, shared_.pending, row_tile_);
  }

  // Rows of the block; may exceed kRows when further row tiles follow.
  __device__ __forceinline__ int LiveRows() const {
    return query_tokens_ * params_.group - row_tile_ * kRows;
  }
  // Row i of this thread among all, and among those whose softmax its warpgroup does.
  __device__ __forceinline__ int Row(int i) const { return i / 2 * 8 + lane_ % 4 * 2 + i % 2; }
  __device__ __forceinline__ int OwnRow(int i) const { return group_ * kOwnRows + Row(i); }
  // Query token of a row of this row tile, and its head.
  __device__ __forceinline__ int RowToken(int row) const {
    return ((row_tile_ * kRows + row) * params_.group_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(int row, int token) const {
    return kv_head_ * params_.group + row_tile_ * kRows + row - token * params_.group;
  }

  // Rows are (query token, head of the group), token-major; the rest of the tile is zeros.
  __device__ __forceinline__ void LoadQueries() {
    constexpr int kRowChunks = Config::kQkBlocks * 8;  // of 16 bytes
    constexpr int kSpread = Config::kConsumerThreads / kRows;
    constexpr int kThreadsPerRow = kSpread < kRowChunks ? kSpread : kRowChunks;
    constexpr int kChunks = (kRowChunks + kThreadsPerRow - 1) / kThreadsPerRow;  // of a thread
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / kThreadsPerRow;
    const int token = RowToken(row);
    const int head = RowHead(row, token);
    const auto* q = static_cast<const uint16_t*>(params_.q) +
                    (query_begin_ + token) * params_.q_token_stride + head * params_.q_head_stride;
    const auto* q_pe = static_cast<const uint16_t*>(params_.q_pe) +
                       (query_begin_ + token) * params_.q_pe_token_stride +
                       head * params_.q_pe_head_stride - Config::kDimV;
    uint4 value[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * kThreadsPerRow + thread % kThreadsPerRow;
      const uint16_t* source = Config::kLatent && chunk >= Config::kVBlocks * 8 ? q_pe : q;
      value[i] = row < LiveRows() && chunk < kRowChunks
                     ? __ldg(reinterpret_cast<const uint4*>(source) + chunk)
                     : make_uint4(0, 0, 0, 0);
    }
    Sync();  // the last item's products have read the old queries
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * kThreadsPerRow + thread % kThreadsPerRow;
      if (row >= kRows || chunk >= kRowChunks) break;
      const uint32_t address =
          shared_.q + chunk / 8 * (kRows * 128) + SwizzledOffset(row, chunk % 8);
      ptx::StoreShared(address, value[i]);
    }
    ptx::FenceProxyAsync();
    Sync();
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int b = 0; b < Config::kGroupVBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) out_[b][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      peak_[i] = -INFINITY;
      sum_[i] = 0;
    }
  }

  __device__ __forceinline__ bool Rehearsing() const { return Config::kLatent && rehearsal_ != 0; }
  __device__ __forceinline__ void WaitFor(const Position& at) const {
    if (!Rehearsing()) ptx::MbarrierWait(shared_.Full(at.slot), at.phase);
  }
  __device__ __forceinline__ uint64_t BlockAt(const Position& at) const {
    return ptx::Descriptor(Rehearsing() ? shared_.q : shared_.Slot(at.slot));
  }
  __device__ __forceinline__ void Release(int slot) const {
    if (lane_ == 0 && !Rehearsing()) ptx::MbarrierArrive(shared_.Empty(slot));
  }

  // One tile: 64 keys.
  __device__ __forceinline__ void Step(int tile) {
    // Blocks of this warpgroup. Latent: the first has the latent blocks whose columns it sums, the
    // second the others and the rotated keys.
    const int first = group_ * Config::kGroupVBlocks;
    int blocks = Config::kQkBlocks;
    if constexpr (Config::kGroups > 1) {
      blocks = group_ == 0 ? Config::kGroupVBlocks : Config::kQkBlocks - Config::kGroupVBlocks;
    }
    if (Rehearsing()) blocks = 0;  // their code arrives before the keys do
    float s[kRows / 2] = {};
    Position at = position_;
    at.Skip(first);
    Position values = at;
#pragma unroll 1  // code is fetched cold: a short loop starts sooner
    for (int block = 0; block < blocks; ++block) {
      WaitFor(at);
      ptx::WgmmaFence();
      const uint64_t k = BlockAt(at);
      const uint64_t q = ptx::Descriptor(shared_.q + (first + block) * (kRows * 128));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kRows, ptx::Major::kK, ptx::Major::kK, Config::kFloat16>(
            s, ptx::Advance(k, step * 32), ptx::Advance(q, step * 32), block + step > 0);
      }
      ptx::WgmmaCommit();
      at.Next();
    }
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(s);

    if constexpr (Config::kLatent) {
      if (group_ == 1) {  // the rotated keys
        Position last = position_;
        last.Skip(Config::kVBlocks);
        for (int block = Config::kVBlocks; block < Config::kQkBlocks; ++block) {
          Release(last.slot);
          last.Next();
        }
      }
    } else {
      for (int block = 0; block < Config::kQkBlocks; ++block) {
        Release(values.slot);
        values.Next();
      }
    }

    float own[kOwnRows / 2];
    Exchange(s, own);
    const int first_key = tile * Config::kTile;
    const int live_keys = kv_tokens_ - first_key;
    if (live_keys < Config::kTile + query_tokens_ - 1) Mask(first_key, own);
    Softmax(own);
    if (live_keys < Config::kTile) ZeroDeadValues(values, live_keys);
    ptx::FenceProxyAsync();
    Sync();
    if constexpr (Config::kGroups > 1) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) Rescale(i, shared_.state[Row(i)].x);
    }

    const uint64_t p = ptx::Descriptor(shared_.p);
    at = values;
#pragma unroll
    for (int block = 0; block < Config::kGroupVBlocks; ++block) {
      if constexpr (!Config::kLatent) WaitFor(at);
      ptx::WgmmaFence();
      const uint64_t v = BlockAt(at);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kRows, ptx::Major::kMn, ptx::Major::kK, Config::kFloat16>(
            out_[block], ptx::Advance(v, step * 2048), ptx::Advance(p, step * 32), true);
      }
      ptx::WgmmaCommit();
      at.Next();
    }
    ptx::WgmmaWait<0>();
#pragma unroll
    for (int block = 0; block < Config::kGroupVBlocks; ++block) {
      ptx::WgmmaFenceRegisters(out_[block]);
      Release(values.slot);
      values.Next();
    }
    if (!Rehearsing()) position_.Skip(Config::kTileBlocks);
  }

  // Adds up the partial scores of the rows whose softmax this warpgroup does.
  __device__ __forceinline__ void Exchange(const float (&s)[kRows / 2],
                                           float (&own)[kOwnRows / 2]) const {
    if constexpr (Config::kGroups == 1) {
#pragma unroll
      for (int i = 0; i < kOwnRows / 2; ++i) own[i] = s[i];
    } else {
      constexpr int kHalf = kOwnRows / 2;
      float* give = shared_.swap + (1 - group_) * kHalf * 128 + thread_;
      const float* take = shared_.swap + group_ * kHalf * 128 + thread_;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) give[i * 128] = group_ == 0 ? s[kHalf + i] : s[i];
      Sync();
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        own[i] = (group_ == 0 ? s[i] : s[kHalf + i]) + take[i * 128];
      }
    }
  }

  // A query token sees the keys up to its own.
  __device__ __forceinline__ void Mask(int first_key, float (&s)[kOwnRows / 2]) const {
    const int key = first_key + warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      const int limit = kv_tokens_ - (query_tokens_ - 1 - RowToken(OwnRow(i)));
      const int at = i / 2 * 4 + i % 2;
      if (key >= limit) s[at] = -INFINITY;
      if (key + 8 >= limit) s[at + 2] = -INFINITY;
    }
  }

  __device__ __forceinline__ void Rescale(int i, float factor) {
    const int at = i / 2 * 4 + i % 2;
#pragma unroll
    for (int b = 0; b < Config::kGroupVBlocks; ++b) {
      out_[b][at] *= factor;
      out_[b][at + 2] *= factor;
    }
  }

  // Online softmax over the tile: P goes to shared memory, the factors for out_ are applied or,
  // with two warpgroups, shared.
  __device__ __forceinline__ void Softmax(float (&s)[kOwnRows / 2]) {
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      const int at = i / 2 * 4 + i % 2;
      float peak = fmaxf(s[at], s[at + 2]);
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 4));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 8));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 16));
      if (lane_ < 4) shared_.peaks[warp_ * kRows + OwnRow(i)] = peak;
    }
    SyncGroup();
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      const float* column = shared_.peaks + OwnRow(i);
      const float tile_peak =
          fmaxf(fmaxf(column[0], column[kRows]), fmaxf(column[2 * kRows], column[3 * kRows]));
      const float peak = fmaxf(peak_[i], tile_peak);
      const float top = peak == -INFINITY ? 0.f : peak * scale_log2_;
      const float base = top - Range::kLift;
      const float rescale = ptx::Exp2(fmaf(peak_[i], scale_log2_, -top));
      const int at = i / 2 * 4 + i % 2;
      s[at] = ptx::Exp2(fmaf(s[at], scale_log2_, -base));
      s[at + 2] = ptx::Exp2(fmaf(s[at + 2], scale_log2_, -base));
      sum_[i] = fmaf(sum_[i], rescale, s[at] + s[at + 2]);
      peak_[i] = peak;
      if constexpr (Config::kGroups == 1) {
        Rescale(i, rescale);
      } else if (warp_ == 0 && lane_ < 4) {
        shared_.state[OwnRow(i)].x = rescale;
      }
    }
    // 8 x 8 pieces [8 keys, 8 rows], stored as 8 rows of 16 bytes.
    const int piece = lane_ / 8;
    const uint32_t chunk = warp_ * 2 + piece % 2;
    const uint32_t p = shared_.p + group_ * (kOwnRows * 128);
    if constexpr (kOwnRows == 8) {
      const int row = lane_ % 8;
      ptx::StoreMatrixTransposed(p + SwizzledOffset(row, chunk), Type::Pack(s[0], s[1]),
                                 Type::Pack(s[2], s[3]));
    } else {
#pragma unroll
      for (int j = 0; j < kOwnRows / 8; j += 2) {
        const int row = j * 8 + piece / 2 * 8 + lane_ % 8;
        ptx::StoreMatrixTransposed(
            p + SwizzledOffset(row, chunk), Type::Pack(s[j * 4], s[j * 4 + 1]),
            Type::Pack(s[j * 4 + 2], s[j * 4 + 3]), Type::Pack(s[j * 4 + 4], s[j * 4 + 5]),
            Type::Pack(s[j * 4 + 6], s[j * 4 + 7]));
      }
    }
  }

  // Rows of the last page that hold no token may hold anything, and 0 x NaN is NaN.
  __device__ __forceinline__ void ZeroDeadValues(Position at, int live_keys) const {
#pragma unroll 1
    for (int block = 0; block < Config::kGroupVBlocks; ++block) {
      ptx::MbarrierWait(shared_.Full(at.slot), at.phase);
      for (int i = live_keys * 8 + thread_; i < Config::kTile * 8; i += 128) {
        ptx::StoreShared(shared_.Slot(at.slot) + i * 16, make_uint4(0, 0, 0, 0));
      }
      at.Next();
    }
  }

  __device__ __forceinline__ void EndItem(bool whole, int slot) {
    // Sums over the lanes and warps that share a row.
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        sum_[i] += __shfl_xor_sync(~0u, sum_[i], offset);
      }
      if (lane_ < 4) shared_.peaks[warp_ * kRows + OwnRow(i)] = sum_[i];
    }
    if (kShort && !whole) LargestOfWarp();
    // Every warp has applied the last step's factors: state may be written. Sums are there.
    Sync();
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      const float* column = shared_.peaks + OwnRow(i);
      if (warp_ == 0 && lane_ < 4) {
        shared_.state[OwnRow(i)] =
            make_float2(peak_[i] * scale_log2_ - Range::kLift,
                        (column[0] + column[kRows]) + (column[2 * kRows] + column[3 * kRows]));
      }
    }
    PartialScale scale(0);  // of row threadIdx.x
    if (kShort && !whole && threadIdx.x < kRows) {
      scale = PartialScale(LargestOfRow());
      Factors()[threadIdx.x] = scale.factor;
    }
    Sync();
    if (whole) {
      WriteResult();
    } else {
      WritePartial(slot, scale);
      if constexpr (kMergeInside) {
        Merge().Publish(sequence_, slot, query_begin_, query_tokens_);
      }
    }
    Sync();  // peaks and state may be written again
  }

  __device__ __forceinline__ void WriteResult() const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int row = Row(i);
      if (row >= LiveRows()) continue;
      const float2 ml = shared_.state[row];
      const RowState state{ml.y == 0.f ? 0.f : ml.x, ml.y};
      const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
      const int token = RowToken(row);
      const int64_t at_token = query_begin_ + token;
      const int head = RowHead(row, token);
      if (params_.lse != nullptr && threadIdx.x < 4) {
        params_.lse[at_token * params_.num_kv_heads * params_.group + head] = LogSumExp(state);
      }
      const int at = i / 2 * 4 + i % 2;
      auto* target = static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                     head * params_.out_head_stride + group_ * (Config::kGroupVBlocks * 64) +
                     warp_ * 16 + lane_ / 4;
#pragma unroll
      for (int b = 0; b < Config::kGroupVBlocks; ++b) {
        Type::Store(target + b * 64, out_[b][at] * scale);
        Type::Store(target + b * 64 + 8, out_[b][at + 2] * scale);
      }
    }
  }

  // Largest elements of rows, of each warp's columns; then what rows are multiplied by. Nobody
  // needs the other warpgroup's scores any more.
  __device__ __forceinline__ float* Largest() const { return shared_.swap; }
  __device__ __forceinline__ float* Factors() const {
    return shared_.swap + Config::kConsumerThreads / 32 * kRows;
  }
  __device__ __forceinline__ void LargestOfWarp() const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = i / 2 * 4 + i % 2;
      float largest = 0;
#pragma unroll
      for (int b = 0; b < Config::kGroupVBlocks; ++b) {
        largest = fmaxf(largest, fmaxf(fabsf(out_[b][at]), fabsf(out_[b][at + 2])));
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
      }
      if (lane_ < 4) Largest()[(group_ * 4 + warp_) * kRows + Row(i)] = largest;
    }
  }
  __device__ __forceinline__ float LargestOfRow() const {
    float largest = 0;
#pragma unroll
    for (int w = 0; w < Config::kConsumerThreads / 32; ++w) {
      largest = fmaxf(largest, Largest()[w * kRows + threadIdx.x]);
    }
    return largest;
  }

  // scale: of row threadIdx.x, in the first kRows threads.
  __device__ __forceinline__ void WritePartial(int slot, const PartialScale& scale) const {
    const int groups = params_.num_kv_heads * params_.row_tiles;
    const int64_t base =
        (int64_t{slot} * groups + kv_head_ * params_.row_tiles + row_tile_) * kRows;
    const int row = static_cast<int>(threadIdx.x);
    if (row < kRows && row < LiveRows()) {
      const float2 state = shared_.state[row];
      reinterpret_cast<float2*>(params_.partial_ml)[base + row] = scale.State(state.x, state.y);
    }
    if constexpr (kShort) {
      WriteFloat16(base);
    } else {
      WriteFloat32(base);
    }
  }

  __device__ __forceinline__ void WriteFloat16(int64_t base) const {
    auto* target = static_cast<uint16_t*>(params_.partial_out) + base * Config::kDimV +
                   group_ * (Config::kGroupVBlocks * 64) + warp_ * 16 + lane_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float factor[2] = {Factors()[Row(2 * j)], Factors()[Row(2 * j + 1)]};
      const int row = j * 8 + lane_ / 4;
#pragma unroll
      for (int b = 0; b < Config::kGroupVBlocks; ++b) {
        const float* o = out_[b] + j * 4;
        uint2 pairs;
        pairs.x = ptx::TransposeMatrix(ptx::PackF16(o[0] * factor[0], o[1] * factor[1]));
        pairs.y = ptx::TransposeMatrix(ptx::PackF16(o[2] * factor[0], o[3] * factor[1]));
        if (row >= LiveRows()) continue;
        *reinterpret_cast<uint2*>(target + row * Config::kDimV + b * 64) = pairs;
      }
    }
  }

  __device__ __forceinline__ void WriteFloat32(int64_t base) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int row = Row(i);
      if (row >= LiveRows()) continue;
      const int at = i / 2 * 4 + i % 2;
      float* target = static_cast<float*>(params_.partial_out) + (base + row) * Config::kDimV +
                      group_ * (Config::kGroupVBlocks * 64) + warp_ * 16 + lane_ / 4;
#pragma unroll
      for (int b = 0; b < Config::kGroupVBlocks; ++b) {
        target[b * 64] = out_[b][at];
        target[b * 64 + 8] = out_[b][at + 2];
      }
    }
  }

  const DecodeParams& params_;
  const DecodeShared<Config>& shared_;
  int kv_head_;
  int row_tile_;
  int group_;
  int thread_;  // in its warpgroup
  int lane_;
  int warp_;
  float scale_log2_;
  int rehearsal_ = 0;
  int sequence_ = 0;
  int kv_tokens_ = 0;
  int query_begin_ = 0;
  int query_tokens_ = 0;
  Position position_;
  float peak_[kOwnPairs];
  float sum_[kOwnPairs];  // of this thread's keys
  float out_[Config::kGroupVBlocks][kRows / 2];
};

}  // namespace fathom::kernels::cuda::sm90
