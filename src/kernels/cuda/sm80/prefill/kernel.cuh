#pragma once
// Prefill attention for sm_80 and later: four warps of 32 query rows, tiles of 64 keys copied by
// cp.async, products by mma.sync. V of a tile is copied under Q K', K of the next under P V. Blocks
// take the (query tile, head) pairs with the most keys first.
#include <cuda_runtime.h>

#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/prefill_columns.cuh"
#include "kernels/cuda/prefill_schedule.h"
#include "kernels/cuda/ptx/shuffle.h"
#include "kernels/cuda/sm80/prefill/config.h"
#include "kernels/cuda/sm80/tile.cuh"

namespace fathom::kernels::cuda::sm80 {

template <class Config>
class Prefill {
 public:
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kRowTiles = Config::kRowTiles;
  static constexpr int kKeyTiles = kKeys / 8;
  using Type = ElementType<Config::kFloat16>;
  using Range = ProbabilityRange<Config::kFloat16, /*kSlack=*/8>;

  __device__ __forceinline__ Prefill(const PrefillParams& params, const uint8_t* memory)
      : params_(params),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_row_(static_cast<int>(threadIdx.x / 32) * (kRowTiles * 16)),
        scale_log2_(params.scale * 1.4426950408889634f) {
    q_.base = (ptx::SharedAddress(memory) + 1023) & ~1023u;
    k_.base = q_.base + Config::kQBytes;
    v_.base = k_.base + Config::kKBytes;
  }

  __device__ __forceinline__ void Run(int index) {
    const int num_tiles = *params_.num_tiles;
    if (index >= num_tiles * params_.num_heads) return;
    const PrefillTile tile = params_.tiles[index / params_.num_heads];
    sequence_ = tile.sequence;
    row_ = tile.row;
    head_ = index % params_.num_heads;
    kv_head_ = head_ / (params_.num_heads / params_.num_kv_heads);
    query_begin_ = params_.query_starts[sequence_];
    queries_ = params_.query_starts[sequence_ + 1] - query_begin_;
    kv_tokens_ = params_.kv_lengths[sequence_];
    position_ = PrefillFirstPosition(params_, sequence_, queries_);
    tiles_ = PrefillTilesOf(params_, kv_tokens_, position_, queries_, row_, Config::kRows, kKeys);
    Begin();
    if (tiles_.count > 0) {
      LoadQueries();
      LoadKeys(TileAt(tiles_.count - 1));
      ptx::CopyCommit();
#pragma unroll 1
      for (int visit = tiles_.count - 1; visit >= 0; --visit) Turn(visit);
    }
    Store();
  }

 private:
  __device__ __forceinline__ int TileAt(int visit) const {
    return visit < tiles_.anchors ? visit : visit + tiles_.skipped;
  }
  // Row of this thread in the block: r % 2 = 1 is eight further.
  __device__ __forceinline__ int RowOf(int r) const {
    return warp_row_ + r / 2 * 16 + lane_ / 4 + r % 2 * 8;
  }

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int r = 0; r < kRowTiles * 2; ++r) {
      base_[r] = kNoBase;
      sum_[r] = 0;
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < Config::kDimV / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[m][n][i] = 0;
      }
    }
  }

  // Eight threads a row of 128 bytes.
  __device__ __forceinline__ void LoadQueries() const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Config::kRows / 16; ++i) {
      const int row = i * 16 + thread / 8;
      const bool live = row_ + row < queries_;
      const auto* source =
          static_cast<const uint16_t*>(params_.q) +
          (live ? query_begin_ + row_ + row : query_begin_) * params_.q_token_stride +
          head_ * params_.q_head_stride + thread % 8 * 8;
#pragma unroll
      for (int block = 0; block < Config::kDimQk / 64; ++block) {
        ptx::CopyAsync(q_.Chunk(row, block * 8 + thread % 8), source + block * 64, live);
      }
    }
  }

  // Where this thread's 16 bytes of a key's row are.
  __device__ __forceinline__ const char* RowOf(const PagedPlane& plane, int head, int key) const {
    int64_t page = 0;
    int64_t token = key;
    if (params_.page_table != nullptr) {
      const int page_tokens = static_cast<int>(params_.page_tokens);
      page = params_.page_table[sequence_ * params_.page_table_stride + key / page_tokens];
      token = key % page_tokens;
    } else {
      token += params_.kv_starts[sequence_];
    }
    return static_cast<const char*>(plane.base) + page * plane.page_stride_bytes +
           token * plane.token_stride_bytes + head * plane.head_stride_bytes + threadIdx.x % 8 * 16;
  }

  // The keys or values of a tile. 16 rows are always in one page, all of them where pages are not
  // smaller: then one address serves the tile.
  template <int kFirstBlock, int kBlocks>
  __device__ __forceinline__ void LoadRows(const PagedPlane& plane, int head,
                                           const Tile<kKeys>& target, int tile) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int key = tile * kKeys + thread / 8;
    const bool small_pages = params_.page_table != nullptr && params_.page_tokens < kKeys;
    const char* source = RowOf(plane, head, min(key, kv_tokens_ - 1));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const bool live = key + i * 16 < kv_tokens_;
      if (i > 0) {
        source += 16 * plane.token_stride_bytes;
        if (small_pages && live) source = RowOf(plane, head, key + i * 16);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::CopyAsync(target.Chunk(i * 16 + thread / 8, (kFirstBlock + block) * 8 + thread % 8),
                       source + block * 128, live);
      }
    }
  }

  __device__ __forceinline__ void LoadKeys(int tile) const {
    constexpr int kBlocks = Config::kDimQk / 64;
    if constexpr (Config::kDimQk > Config::kDimV) {
      if (params_.k_pe.base != nullptr) {  // keys in two planes
        constexpr int kPeBlocks = (Config::kDimQk - Config::kDimV) / 64;
        LoadRows<0, kBlocks - kPeBlocks>(params_.k, kv_head_, k_, tile);
        LoadRows<kBlocks - kPeBlocks, kPeBlocks>(params_.k_pe, 0, k_, tile);
        return;
      }
    }
    LoadRows<0, kBlocks>(params_.k, kv_head_, k_, tile);
  }

  __device__ __forceinline__ void Turn(int visit) {
    const int tile = TileAt(visit);
    ptx::CopyWait<0>();
    __syncthreads();  // the keys are there, and the last values have been read
    LoadRows<0, Config::kDimV / 64>(params_.v, kv_head_, v_, tile);
    ptx::CopyCommit();
    // A warp whose last row comes before the tile's first key sees nothing of it.
    const bool sees = !params_.causal || tile * kKeys <= LastPosition();
    uint32_t p[kRowTiles][kKeys / 16][4];
    if (sees) {
      float s[kRowTiles][kKeyTiles][4];
      Scores(s);
      Mask(tile, s);
      Softmax(s, p);
    }
    ptx::CopyWait<0>();
    __syncthreads();  // the values are there, and the keys have been read
    if (visit > 0) LoadKeys(TileAt(visit - 1));
    ptx::CopyCommit();
    if (sees) Values(p);
  }

  // Of the warp's first row, and of its last one.
  __device__ __forceinline__ int FirstPosition() const { return position_ + row_ + warp_row_; }
  __device__ __forceinline__ int LastPosition() const {
    return FirstPosition() + kRowTiles * 16 - 1;
  }

  __device__ __forceinline__ void Scores(float (&s)[kRowTiles][kKeyTiles][4]) const {
#pragma unroll
    for (int step = 0; step < Config::kDimQk / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) q_.LoadA(warp_row_ + m * 16, step, a[m]);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        k_.LoadB(n * 8, step, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          if (step == 0) {
            Type::MultiplyFromZero(s[m][n], a[m], b[0], b[1]);
            Type::MultiplyFromZero(s[m][n + 1], a[m], b[2], b[3]);
          } else {
            Type::Multiply(s[m][n], a[m], b[0], b[1]);
            Type::Multiply(s[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void Mask(int tile, float (&s)[kRowTiles][kKeyTiles][4]) const {
    const int begin = tile * kKeys;
    const int end = begin + kKeys;
    const bool all_seen = end <= kv_tokens_ && (!params_.causal || end <= FirstPosition() + 1) &&
                          (LastPosition() - begin <= params_.window || end <= params_.anchors);
    if (all_seen) return;
    const int key = begin + lane_ % 4 * 2;  // this thread's first
    const bool window = LastPosition() - begin > params_.window;
#pragma unroll
    for (int r = 0; r < kRowTiles * 2; ++r) {
      const int own = position_ + row_ + RowOf(r) - key;
      const int all = kv_tokens_ - key;
      uint32_t seen = ColumnsBelow(params_.causal ? min(own + 1, all) : all);
      if (window) seen &= ~ColumnsBelow(own - params_.window) | ColumnsBelow(params_.anchors - key);
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        if ((seen >> i & 1) == 0) s[r / 2][i / 2][r % 2 * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // Scores become probabilities, relative to 2^base_. The base moves only when a score is far above
  // it, which the sums tell: no maximum is taken until then, and nothing has to be rescaled.
  __device__ __forceinline__ void Softmax(const float (&s)[kRowTiles][kKeyTiles][4],
                                          uint32_t (&p)[kRowTiles][kKeys / 16][4]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (fresh_) MoveToPeaks(s[m], m);
      float sum[2];
      Exponentials(s[m], m, p[m], sum);
      if (__any_sync(~0u, sum[0] >= Range::kMostSum || sum[1] >= Range::kMostSum)) {
        MoveToPeaks(s[m], m);
        Exponentials(s[m], m, p[m], sum);
      }
      sum_[m * 2] += sum[0];
      sum_[m * 2 + 1] += sum[1];
    }
    fresh_ = false;
  }
  __device__ __forceinline__ void MoveToPeaks(const float (&s)[kKeyTiles][4], int m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float peak = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        peak = fmaxf(peak, fmaxf(s[n][i * 2], s[n][i * 2 + 1]));
      }
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2)) * scale_log2_;
      float& base = base_[m * 2 + i];
      const float next = fmaxf(peak - Range::kLift, base);
      const float rescale = ptx::Exp2(base - next);
      base = next;
      sum_[m * 2 + i] *= rescale;
#pragma unroll
      for (int n = 0; n < Config::kDimV / 8; ++n) {
        out_[m][n][i * 2] *= rescale;
        out_[m][n][i * 2 + 1] *= rescale;
      }
    }
  }
  __device__ __forceinline__ void Exponentials(const float (&s)[kKeyTiles][4], int m,
                                               uint32_t (&p)[kKeys / 16][4],
                                               float (&sum)[2]) const {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = s[step * 2 + i / 2];
        const float base = base_[m * 2 + i % 2];
        const float low = ptx::Exp2(fmaf(x[i % 2 * 2], scale_log2_, -base));
        const float high = ptx::Exp2(fmaf(x[i % 2 * 2 + 1], scale_log2_, -base));
        sum[i % 2] += low + high;
        p[step][i] = Type::Pack(low, high);
      }
    }
  }

  __device__ __forceinline__ void Values(const uint32_t (&p)[kRowTiles][kKeys / 16][4]) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int n = 0; n < Config::kDimV / 16; ++n) {
        uint32_t b[4];
        v_.LoadTransposedB(step * 16, n, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Type::Multiply(out_[m][n * 2], p[m][step], b[0], b[1]);
          Type::Multiply(out_[m][n * 2 + 1], p[m][step], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void Store() {
#pragma unroll
    for (int r = 0; r < kRowTiles * 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float scale = sum == 0.f ? 0.f : ptx::Reciprocal(sum);
      const int row = row_ + RowOf(r);
      const bool inside = row < queries_;
      const int64_t token = query_begin_ + row;
      if (params_.lse != nullptr && inside && lane_ % 4 == 0) {
        constexpr float kLn2 = 0.6931471805599453f;
        params_.lse[token * params_.num_heads + head_] =
            sum == 0.f ? -INFINITY : (base_[r] + ptx::Log2(sum)) * kLn2;
      }
      auto* out = static_cast<uint16_t*>(params_.out) + token * params_.out_token_stride +
                  head_ * params_.out_head_stride;
#pragma unroll
      for (int j = 0; j < Config::kDimV / 32; ++j) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&o)[4] = out_[r / 2][j * 4 + i];
          x[i] = Type::Pack(o[r % 2 * 2] * scale, o[r % 2 * 2 + 1] * scale);
        }
        ptx::TransposeQuad(x, lane_);
        if (inside) {
          ptx::StoreGlobal(out + j * 32 + lane_ % 4 * 8, make_uint4(x[0], x[1], x[2], x[3]));
        }
      }
    }
  }

  const PrefillParams& params_;
  int lane_;
  int warp_row_;
  float scale_log2_;
  Tile<Config::kRows> q_;
  Tile<kKeys> k_;
  Tile<kKeys> v_;
  int sequence_ = 0;
  int row_ = 0;
  int head_ = 0;
  int kv_head_ = 0;
  int query_begin_ = 0;
  int queries_ = 0;
  int kv_tokens_ = 0;
  int position_ = 0;  // of the sequence's first query
  PrefillTiles tiles_;
  bool fresh_ = true;          // no scores of the warp yet
  float base_[kRowTiles * 2];  // log2
  float sum_[kRowTiles * 2];   // of this thread's columns
  float out_[kRowTiles][Config::kDimV / 8][4];
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads) void PrefillKernel(
    const __grid_constant__ PrefillParams params) {
  Prefill<Config>(params, ptx::DynamicShared()).Run(static_cast<int>(blockIdx.x));
}

}  // namespace fathom::kernels::cuda::sm80
