#pragma once
// Decode attention for sm_90a: a few query rows against a long paged cache.
//
// The operands of both products are swapped, so that keys fill the 64 rows of a wgmma and the few
// query rows are its N: S' [64 keys, rows] = K Q', O' [dim_v, rows] = V' P'. Nothing is padded to
// 64 queries, and the accumulators are small enough for one warpgroup.
//
// A block is four consumer warps (one warpgroup) and one producer warp. The producer streams
// 64-token x 64-element boxes through a ring in shared memory, one mbarrier pair a slot, and never
// waits for anything but a free slot, across tiles, items and sequences. MLA's values are its keys:
// each block of a latent tile is read twice and released after the second product has used it.
#include <cuda_runtime.h>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/decode/config.h"
#include "kernels/cuda/sm90/decode/merge.cuh"

namespace fathom::kernels::cuda::sm90 {

struct DecodeMaps {
  CUtensorMap plane[2];
};

// Position in the ring; a slot's phase flips each time round.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// The same value in every lane, and known to be: what derives from it lives in uniform registers,
// where wgmma takes its descriptors from.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(~0u, value, 0); }

template <class Config>
struct DecodeShared {
  uint32_t ring;      // [kSlots][kTile][kColumns] bf16, swizzled
  uint32_t q;         // [kQkBlocks][kRows][kColumns] bf16, swizzled
  uint32_t p;         // [kRows][kTile] bf16, swizzled
  float* peaks;       // [kConsumerWarps][kRows]
  int* last;          // whether this block arrived last
  uint32_t barriers;  // [2][kSlots]: full, empty

  __device__ __forceinline__ explicit DecodeShared(uint8_t* memory) {
    const uint32_t base = ptx::SharedAddress(memory);
    const uint32_t aligned = (base + 1023) & ~1023u;
    ring = aligned;
    q = ring + Config::kSlots * Config::kBlockBytes;
    p = q + Config::kQBytes;
    const uint32_t small = p + Config::kPBytes;
    peaks = reinterpret_cast<float*>(memory + (small - base));
    last = reinterpret_cast<int*>(memory + (small - base) + 1024);
    barriers = small + 1024 + 16;
  }
  __device__ __forceinline__ uint32_t Slot(int slot) const {
    return ring + slot * Config::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t Full(int slot) const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t Empty(int slot) const {
    return barriers + (Config::kSlots + slot) * 8;
  }
};

template <class Config>
class DecodeProducer {
 public:
  __device__ __forceinline__ DecodeProducer(const DecodeParams& params, const DecodeMaps& maps,
                                            const DecodeShared<Config>& shared, int kv_head)
      : params_(params),
        maps_(maps),
        shared_(shared),
        kv_head_(kv_head),
        lane_(static_cast<int>(threadIdx.x % 32)),
        policy_(params.keep_in_l2 ? ptx::kL2EvictNormal : ptx::kL2EvictFirst) {
    // log2 of tokens: page sizes are 16, 32, 64, 128.
    page_shift_ = 31 - __clz(params.page_tokens);
    const int box_shift = page_shift_ < 6 ? page_shift_ : 6;
    box_tokens_ = 1 << box_shift;
    boxes_ = kDecodeTileTokens >> box_shift;
  }

  __device__ __forceinline__ void Run(int part_index) {
    const DecodePart part = params_.parts[part_index];
    int32_t ids = params_.part_pages[part_index * kDecodePartPages + lane_];
    int sequence = part.sequence;
    int tile = Uniform(part.tile);
    int kv_tokens = Uniform(part.kv_tokens);
    int left = Uniform(part.num_tiles);
    while (left > 0) {
      const int tiles = DecodeTiles(kv_tokens);
      const int end = tiles - tile < left ? tiles : tile + left;
      left -= end - tile;
      int first_entry = FirstEntry(tile);
      int32_t next_ids = LoadIds(sequence, kv_tokens, first_entry + 32);
      for (; tile < end; ++tile) {
        const int entry = FirstEntry(tile);
        if (entry - first_entry >= 32) {
          first_entry += 32;
          ids = next_ids;
          next_ids = LoadIds(sequence, kv_tokens, first_entry + 32);
        }
        LoadTile(ids, entry - first_entry, tile);
      }
      if (left == 0) break;
      do {
        kv_tokens = Uniform(params_.kv_lengths[++sequence]);
      } while (kv_tokens == 0);
      tile = 0;
      ids = LoadIds(sequence, kv_tokens, 0);
    }
  }

 private:
  // Page-table entry of a tile's first token.
  __device__ __forceinline__ int FirstEntry(int tile) const {
    return page_shift_ <= 6 ? tile << (6 - page_shift_) : tile >> (page_shift_ - 6);
  }

  // Entries [first, first + 32), one a lane; those past the sequence's end name a page out of
  // bounds, which the copy engine fills with zeros.
  __device__ __forceinline__ int32_t LoadIds(int sequence, int kv_tokens, int first) const {
    const int entry = first + lane_;
    const int pages = (kv_tokens + params_.page_tokens - 1) >> page_shift_;
    return entry < pages ? params_.page_table[sequence * params_.page_table_stride + entry]
                         : static_cast<int32_t>(params_.num_pages);
  }

  __device__ __forceinline__ void LoadTile(int32_t ids, int entry, int tile) {
    int32_t pages[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pages[i] = __shfl_sync(~0u, ids, (entry + i) % 32);
    const int token = page_shift_ > 6 ? tile % (params_.page_tokens / 64) * 64 : 0;
#pragma unroll
    for (int block = 0; block < Config::kTileBlocks; ++block) {
      const bool first = block < Config::kFirstBlocks;
      const int column = (first ? block : block - Config::kFirstBlocks) * Config::kColumns;
      if (lane_ == 0) {
        ptx::MbarrierWait(shared_.Empty(position_.slot), position_.phase ^ 1);
        ptx::MbarrierExpectBytes(shared_.Full(position_.slot), Config::kBlockBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < boxes_) {
            ptx::TmaLoad4(shared_.Slot(position_.slot) + i * box_tokens_ * 128,
                          &maps_.plane[first ? 0 : 1], shared_.Full(position_.slot), column, token,
                          kv_head_, pages[i], policy_);
          }
        }
      }
      position_.Next();
    }
    __syncwarp();
  }

  const DecodeParams& params_;
  const DecodeMaps& maps_;
  const DecodeShared<Config>& shared_;
  int kv_head_;
  int lane_;
  uint64_t policy_;
  int page_shift_;
  int box_tokens_;
  int boxes_;
  RingPosition<Config::kSlots> position_;
};

template <class Config>
class DecodeConsumer {
 public:
  static constexpr int kRows = Config::kRows;
  static constexpr int kRowBlocks = kRows / 8;
  static constexpr int kThreads = Config::kConsumerWarps * 32;
  static constexpr int kBarrier = 1;

  __device__ __forceinline__ DecodeConsumer(const DecodeParams& params,
                                            const DecodeShared<Config>& shared, int kv_head,
                                            int row_tile)
      : params_(params),
        shared_(shared),
        kv_head_(kv_head),
        row_tile_(row_tile),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index) {
    const DecodePart part = params_.parts[part_index];
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
      for (int t = tile; t < end; ++t) Step(t);
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
  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(kBarrier, kThreads); }
  __device__ __forceinline__ int LiveRows() const {
    return query_tokens_ * params_.group - row_tile_ * kRows;  // of this row tile; may exceed kRows
  }

  // Query token of a row of this row tile.
  __device__ __forceinline__ int RowToken(int row) const {
    return ((row_tile_ * kRows + row) * params_.group_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(int row, int token) const {
    return kv_head_ * params_.group + row_tile_ * kRows + row - token * params_.group;
  }

  // Rows are (query token, head of the group), token-major; the rest of the tile is zeros.
  __device__ __forceinline__ void LoadQueries() {
    constexpr int kThreadsPerRow =
        kThreads / kRows < Config::kQkBlocks * 8 ? kThreads / kRows : Config::kQkBlocks * 8;
    constexpr int kRowChunks = Config::kQkBlocks * 8;                            // of 16 bytes
    constexpr int kChunks = (kRowChunks + kThreadsPerRow - 1) / kThreadsPerRow;  // of a thread
    const int row = thread_ / kThreadsPerRow;
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
      const int chunk = i * kThreadsPerRow + thread_ % kThreadsPerRow;
      const uint16_t* source = Config::kLatent && chunk >= Config::kVBlocks * 8 ? q_pe : q;
      value[i] = row < LiveRows() && chunk < kRowChunks
                     ? __ldg(reinterpret_cast<const uint4*>(source) + chunk)
                     : make_uint4(0, 0, 0, 0);
    }
    Sync();  // the last item's products have read the old queries
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * kThreadsPerRow + thread_ % kThreadsPerRow;
      if (row >= kRows || chunk >= kRowChunks) break;
      const uint32_t address =
          shared_.q + chunk / 8 * (kRows * 128) + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[i].x),
                   "r"(value[i].y), "r"(value[i].z), "r"(value[i].w)
                   : "memory");
    }
    ptx::FenceProxyAsync();
    Sync();
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int b = 0; b < Config::kVBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) out_[b][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      peak_[i] = -INFINITY;
      sum_[i] = 0;
    }
  }

  __device__ __forceinline__ void Release(int slot) const {
    if (lane_ == 0) ptx::MbarrierArrive(shared_.Empty(slot));
  }

  __device__ __forceinline__ void Step(int tile) {
    float s[kRows / 2];
    RingPosition<Config::kSlots> keys = position_;
#pragma unroll 1  // code is fetched cold: a short loop starts sooner
    for (int block = 0; block < Config::kQkBlocks; ++block) {
      ptx::MbarrierWait(shared_.Full(position_.slot), position_.phase);
      ptx::WgmmaFence();
      const uint64_t k = ptx::Descriptor(shared_.Slot(position_.slot));
      const uint64_t q = ptx::Descriptor(shared_.q + block * (kRows * 128));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kRows, ptx::Major::kK, ptx::Major::kK>(
            s, ptx::Advance(k, step * 32), ptx::Advance(q, step * 32), block + step > 0);
      }
      ptx::WgmmaCommit();
      position_.Next();
    }
    ptx::WgmmaWait<0>();

    RingPosition<Config::kSlots> values = Config::kLatent ? keys : position_;
    for (int block = 0; block < Config::kQkBlocks; ++block) {
      if (!Config::kLatent || block >= Config::kVBlocks) Release(keys.slot);
      keys.Next();
    }

    const int first_key = tile * Config::kTile;
    const int live_keys = kv_tokens_ - first_key;
    if (live_keys < Config::kTile + query_tokens_ - 1) Mask(first_key, s);
    Softmax(s);
    if (live_keys < Config::kTile) ZeroDeadValues(values, live_keys);
    ptx::FenceProxyAsync();
    Sync();

    const uint64_t p = ptx::Descriptor(shared_.p);
    RingPosition<Config::kSlots> at = values;
#pragma unroll
    for (int block = 0; block < Config::kVBlocks; ++block) {
      if constexpr (!Config::kLatent) ptx::MbarrierWait(shared_.Full(at.slot), at.phase);
      ptx::WgmmaFence();
      const uint64_t v = ptx::Descriptor(shared_.Slot(at.slot));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kRows, ptx::Major::kMn, ptx::Major::kK>(
            out_[block], ptx::Advance(v, step * 2048), ptx::Advance(p, step * 32), true);
      }
      ptx::WgmmaCommit();
      at.Next();
    }
    ptx::WgmmaWait<0>();
#pragma unroll
    for (int block = 0; block < Config::kVBlocks; ++block) {
      Release(values.slot);
      values.Next();
    }
    if constexpr (!Config::kLatent) position_ = values;
  }

  // A query token sees the keys up to its own.
  __device__ __forceinline__ void Mask(int first_key, float (&s)[kRows / 2]) const {
    const int key = first_key + warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const int row = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      const int limit = kv_tokens_ - (query_tokens_ - 1 - RowToken(row));
      const int at = i / 2 * 4 + i % 2;
      if (key >= limit) s[at] = -INFINITY;
      if (key + 8 >= limit) s[at + 2] = -INFINITY;
    }
  }

  // Online softmax over the tile: rescales out_ and sum_, leaves P in shared memory.
  __device__ __forceinline__ void Softmax(float (&s)[kRows / 2]) {
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const int at = i / 2 * 4 + i % 2;
      float peak = fmaxf(s[at], s[at + 2]);
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 4));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 8));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 16));
      if (lane_ < 4) shared_.peaks[warp_ * kRows + i / 2 * 8 + lane_ * 2 + i % 2] = peak;
    }
    Sync();
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const float* column = shared_.peaks + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      const float tile_peak =
          fmaxf(fmaxf(column[0], column[kRows]), fmaxf(column[2 * kRows], column[3 * kRows]));
      const float peak = fmaxf(peak_[i], tile_peak);
      const float base = peak == -INFINITY ? 0.f : peak * scale_log2_;
      const float rescale = ptx::Exp2(fmaf(peak_[i], scale_log2_, -base));
      const int at = i / 2 * 4 + i % 2;
      s[at] = ptx::Exp2(fmaf(s[at], scale_log2_, -base));
      s[at + 2] = ptx::Exp2(fmaf(s[at + 2], scale_log2_, -base));
      sum_[i] = fmaf(sum_[i], rescale, s[at] + s[at + 2]);
      peak_[i] = peak;
#pragma unroll
      for (int b = 0; b < Config::kVBlocks; ++b) {
        out_[b][at] *= rescale;
        out_[b][at + 2] *= rescale;
      }
    }
    // 8 x 8 pieces [8 keys, 8 rows], stored as 8 rows of 16 bytes.
    const int piece = lane_ / 8;
    if constexpr (kRowBlocks == 1) {
      const int row = lane_ % 8;
      const uint32_t chunk = warp_ * 2 + piece % 2;
      ptx::StoreMatrixTransposed(shared_.p + row * 128 + ((chunk ^ row) << 4),
                                 ptx::PackBf16(s[0], s[1]), ptx::PackBf16(s[2], s[3]));
    } else {
#pragma unroll
      for (int j = 0; j < kRowBlocks; j += 2) {
        const int row = j * 8 + piece / 2 * 8 + lane_ % 8;
        const uint32_t chunk = warp_ * 2 + piece % 2;
        ptx::StoreMatrixTransposed(
            shared_.p + row * 128 + ((chunk ^ (row & 7)) << 4),
            ptx::PackBf16(s[j * 4], s[j * 4 + 1]), ptx::PackBf16(s[j * 4 + 2], s[j * 4 + 3]),
            ptx::PackBf16(s[j * 4 + 4], s[j * 4 + 5]), ptx::PackBf16(s[j * 4 + 6], s[j * 4 + 7]));
      }
    }
  }

  // Rows of the last page that hold no token may hold anything, and 0 x NaN is NaN.
  __device__ __forceinline__ void ZeroDeadValues(RingPosition<Config::kSlots> at,
                                                 int live_keys) const {
    for (int block = 0; block < Config::kVBlocks; ++block) {
      ptx::MbarrierWait(shared_.Full(at.slot), at.phase);
      for (int i = live_keys * 8 + thread_; i < Config::kTile * 8; i += kThreads) {
        asm volatile(
            "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(shared_.Slot(at.slot) + i * 16), "r"(0)
            : "memory");
      }
      at.Next();
    }
  }

  __device__ __forceinline__ void EndItem(bool whole, int slot) {
    // Sums over the lanes and warps that share a row.
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        sum_[i] += __shfl_xor_sync(~0u, sum_[i], offset);
      }
      if (lane_ < 4) shared_.peaks[warp_ * kRows + i / 2 * 8 + lane_ * 2 + i % 2] = sum_[i];
    }
    Sync();
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const float* column = shared_.peaks + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      sum_[i] = (column[0] + column[kRows]) + (column[2 * kRows] + column[3 * kRows]);
    }
    if (whole) {
      WriteResult();
    } else {
      WritePartial(slot);
      if (params_.merge_in_kernel) MergeIfLast();
    }
    Sync();  // peaks may be written again
  }

  __device__ __forceinline__ int Groups() const { return params_.num_kv_heads * params_.row_tiles; }
  __device__ __forceinline__ int Group() const { return kv_head_ * params_.row_tiles + row_tile_; }
  __device__ __forceinline__ int64_t OutOffset(int row) const {
    const int token = RowToken(row);
    return (query_begin_ + token) * params_.out_token_stride +
           RowHead(row, token) * params_.out_head_stride;
  }
  __device__ __forceinline__ int64_t LseOffset(int row) const {
    const int token = RowToken(row);
    return int64_t{query_begin_ + token} * params_.num_kv_heads * params_.group +
           RowHead(row, token);
  }

  __device__ __forceinline__ void WriteResult() const {
    auto* out = static_cast<__nv_bfloat16*>(params_.out);
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const int row = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      if (row >= LiveRows()) continue;
      const RowState state{peak_[i] == -INFINITY ? 0.f : peak_[i] * scale_log2_, sum_[i]};
      const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
      if (params_.lse != nullptr && warp_ == 0 && lane_ < 4) {
        params_.lse[LseOffset(row)] = LogSumExp(state);
      }
      const int at = i / 2 * 4 + i % 2;
      __nv_bfloat16* target = out + OutOffset(row) + warp_ * 16 + lane_ / 4;
#pragma unroll
      for (int b = 0; b < Config::kVBlocks; ++b) {
        target[b * 64] = __float2bfloat16_rn(out_[b][at] * scale);
        target[b * 64 + 8] = __float2bfloat16_rn(out_[b][at + 2] * scale);
      }
    }
  }

  __device__ __forceinline__ void WritePartial(int slot) const {
    const int64_t base = (int64_t{slot} * Groups() + Group()) * kRows;
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      const int row = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      if (row >= LiveRows()) continue;
      if (warp_ == 0 && lane_ < 4) {
        reinterpret_cast<float2*>(params_.partial_ml)[base + row] =
            make_float2(peak_[i] * scale_log2_, sum_[i]);
      }
      const int at = i / 2 * 4 + i % 2;
      float* target = params_.partial_out + (base + row) * Config::kDimV + warp_ * 16 + lane_ / 4;
#pragma unroll
      for (int b = 0; b < Config::kVBlocks; ++b) {
        target[b * 64] = out_[b][at];
        target[b * 64 + 8] = out_[b][at + 2];
      }
    }
  }

  __device__ __forceinline__ void MergeIfLast() const {
    const DecodeMerge merge = params_.merges[sequence_];
    __threadfence();
    Sync();
    if (thread_ == 0) {
      int* arrivals = params_.arrivals + int64_t{sequence_} * Groups() + Group();
      const bool last = ptx::AtomicAddAcqRel(arrivals, 1) == merge.count - 1;
      if (last) *arrivals = 0;
      *shared_.last = last;
    }
    Sync();
    if (*shared_.last == 0) return;
    __threadfence();
    constexpr int kColumns = Config::kDimV == 64 ? 2 : 4;
    constexpr int kSlices = Config::kDimV / (32 * kColumns);
    const int rows = LiveRows() < kRows ? LiveRows() : kRows;
    for (int i = warp_; i < rows * kSlices; i += Config::kConsumerWarps) {
      const int row = i / kSlices;
      const int column = i % kSlices * 32 * kColumns + lane_ * kColumns;
      const int64_t base = (int64_t{merge.slot} * Groups() + Group()) * kRows + row;
      const RowPartials partials{params_.partial_out + base * Config::kDimV + column,
                                 reinterpret_cast<const float2*>(params_.partial_ml) + base,
                                 int64_t{Groups()} * kRows * Config::kDimV,
                                 int64_t{Groups()} * kRows, merge.count};
      const RowState state = MergeWeights(partials, lane_);
      float sum[kColumns] = {};
      MergeColumns(partials, state.max_log2, 0, merge.count, lane_, sum);
      auto* out = static_cast<__nv_bfloat16*>(params_.out) + OutOffset(row) + column;
      StoreRow(reinterpret_cast<uint32_t*>(out), sum, state);
      if (params_.lse != nullptr && column == 0) params_.lse[LseOffset(row)] = LogSumExp(state);
    }
  }

  const DecodeParams& params_;
  const DecodeShared<Config>& shared_;
  int kv_head_;
  int row_tile_;
  int thread_;
  int lane_;
  int warp_;
  float scale_log2_;
  int sequence_ = 0;
  int kv_tokens_ = 0;
  int query_begin_ = 0;
  int query_tokens_ = 0;
  RingPosition<Config::kSlots> position_;
  // Of this thread's rows: 8j + 2(lane % 4) + {0, 1} at 2j + {0, 1}.
  float peak_[kRowBlocks * 2];
  float sum_[kRowBlocks * 2];
  float out_[Config::kVBlocks][kRows / 2];
};

// Sequences without keys have no item: their rows become zeros (log-sum-exp -inf).
template <class Config>
__device__ __forceinline__ void WriteEmpty(const DecodeParams& params, int part, int kv_head,
                                           int row_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int sequence = part; sequence < params.num_sequences; sequence += params.num_parts) {
    if (params.kv_lengths[sequence] != 0) continue;
    const int begin = params.query_starts[sequence];
    const int rows = (params.query_starts[sequence + 1] - begin) * params.group;
    const int first = row_tile * Config::kRows;
    for (int r = first; r < rows && r < first + Config::kRows; ++r) {
      const int64_t token = begin + r / params.group;
      const int64_t head = kv_head * params.group + r % params.group;
      auto* out = static_cast<uint16_t*>(params.out) + token * params.out_token_stride +
                  head * params.out_head_stride;
      for (int i = lane; i < Config::kDimV; i += 32) out[i] = 0;
      if (params.lse != nullptr && lane == 0) {
        params.lse[token * params.num_kv_heads * params.group + head] = -INFINITY;
      }
    }
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeKernel(
    const __grid_constant__ DecodeParams params, const __grid_constant__ DecodeMaps maps) {
  extern __shared__ uint8_t memory[];
  const DecodeShared<Config> shared(memory);
  const int groups = params.num_kv_heads * params.row_tiles;
  const int part = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int kv_head = group / params.row_tiles;
  const int row_tile = group % params.row_tiles;

  if (threadIdx.x == 0) {
    ptx::TmaPrefetchMap(&maps.plane[0]);
    ptx::TmaPrefetchMap(&maps.plane[1]);
    for (int i = 0; i < Config::kSlots; ++i) {
      ptx::MbarrierInit(shared.Full(i), 1);
      ptx::MbarrierInit(shared.Empty(i), Config::kConsumerWarps);
    }
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  ptx::WaitForPreviousKernel();
  ptx::LaunchDependents();  // the merge kernel gets ready meanwhile

  if (threadIdx.x / 32 == Config::kConsumerWarps) {
    DecodeProducer<Config>(params, maps, shared, kv_head).Run(part);
    WriteEmpty<Config>(params, part, kv_head, row_tile);
  } else {
    DecodeConsumer<Config>(params, shared, kv_head, row_tile).Run(part);
  }
}

inline constexpr int kMergeThreads = 256;

// Merges what DecodeKernel left in slots. A unit is a (query token, head, 128 columns): one warp's
// work, or with many slots a block's, whose warps sum a stretch of them each.
template <class Config, bool kBlockPerUnit>
__global__ __launch_bounds__(kMergeThreads, 4) void DecodeMergeKernel(
    const __grid_constant__ DecodeParams params) {
  constexpr int kColumns = Config::kDimV == 64 ? 2 : 4;
  constexpr int kSlices = Config::kDimV / (32 * kColumns);
  constexpr int kWarps = kMergeThreads / 32;
  __shared__ float sums[kWarps][32 * kColumns];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int unit =
      kBlockPerUnit ? static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) * kWarps + warp;
  const int heads = params.num_kv_heads * params.group;
  const int column = unit % kSlices * 32 * kColumns + lane * kColumns;
  const int head = unit / kSlices % heads;
  const int row = unit / kSlices / heads;
  const int sequence = row / params.max_query_tokens;
  const int token = row % params.max_query_tokens;
  if (sequence >= params.num_sequences) return;
  const DecodeMerge merge = params.merges[sequence];
  const int begin = params.query_starts[sequence];
  if (merge.count < 2 || token >= params.query_starts[sequence + 1] - begin) return;

  const int groups = params.num_kv_heads * params.row_tiles;
  const int r = token * params.group + head % params.group;
  const int group = head / params.group * params.row_tiles + r / Config::kRows;
  const int64_t base = (int64_t{merge.slot} * groups + group) * Config::kRows + r % Config::kRows;
  const RowPartials partials{params.partial_out + base * Config::kDimV + column,
                             reinterpret_cast<const float2*>(params.partial_ml) + base,
                             int64_t{groups} * Config::kRows * Config::kDimV,
                             int64_t{groups} * Config::kRows, merge.count};
  ptx::WaitForPreviousKernel();
  const RowState state = MergeWeights(partials, lane);
  float sum[kColumns] = {};
  if constexpr (kBlockPerUnit) {
    MergeColumns(partials, state.max_log2, warp * merge.count / kWarps,
                 (warp + 1) * merge.count / kWarps, lane, sum);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[warp][lane * kColumns + i] = sum[i];
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sum[i] += sums[w][lane * kColumns + i];
    }
  } else {
    MergeColumns(partials, state.max_log2, 0, merge.count, lane, sum);
  }
  const int64_t at = begin + token;
  auto* out = static_cast<__nv_bfloat16*>(params.out) + at * params.out_token_stride +
              head * params.out_head_stride + column;
  StoreRow(reinterpret_cast<uint32_t*>(out), sum, state);
  if (params.lse != nullptr && column == 0) params.lse[at * heads + head] = LogSumExp(state);
}

}  // namespace fathom::kernels::cuda::sm90
