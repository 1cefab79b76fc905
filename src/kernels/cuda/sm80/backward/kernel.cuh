#pragma once
// Backward pass of dense attention, mma.sync. Two kernels instead of one with atomic sums: bits do
// not change from run to run. A warp's own 16 rows are the rows of all its products, so that
// probabilities and their gradients go from accumulators to operands in registers.
//
//   keys:    a block owns 64 keys of a kv head and walks over the queries of its group:
//            S' = K Q', dP' = V dO', dV += P' dO, dK += dS' Q
//   queries: a block owns 64 queries of a head and walks over keys:
//            S = Q K', dP = dO V', dQ += dS K
#include <cuda_runtime.h>

#include "kernels/cuda/backward_params.h"
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/ptx/shuffle.h"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/tile.cuh"

namespace fathom::kernels::cuda::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;

// row_stats: one warp a (token, head). A row that saw nothing has lse -inf: its probabilities are
// 0.
template <class Config>
__global__ __launch_bounds__(256) void BackwardRowsKernel(
    const __grid_constant__ BackwardParams params) {
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int64_t token = row / params.num_heads;
  const int64_t head = row % params.num_heads;
  if (token >= int64_t{params.batch} * params.length) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto at = [&](const TokenTensor& t) {
    return reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(t.data) +
                                             token * t.token_stride + head * t.head_stride);
  };
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Config::kDim / 64; ++i) {
    const uint32_t a = at(params.out)[i * 32 + lane];
    const uint32_t b = at(params.d_out)[i * 32 + lane];
    if constexpr (Config::kFloat16) {
      const float2 x = ptx::UnpackF16(a);
      const float2 y = ptx::UnpackF16(b);
      sum += x.x * y.x + x.y * y.y;
    } else {
      sum += ptx::LowBf16(a) * ptx::LowBf16(b) + ptx::HighBf16(a) * ptx::HighBf16(b);
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) {
    const float lse = params.lse[row];
    const int64_t rows = int64_t{params.batch} * params.length * params.num_heads;
    // The lift of probabilities, and of all that is made of them, is here.
    const float minus_lse = Config::kFloat16 ? fmaf(-lse, kLog2E, Config::kLift) : -lse * kLog2E;
    params.row_stats[row] = lse == -INFINITY ? -INFINITY : minus_lse;
    params.row_stats[rows + row] = -sum;
  }
}

// What both kernels do. The block's own tiles are a and b; those walked over, c and d, are copied
// one ahead.
template <class Config>
class Backward {
 protected:
  static constexpr int kRows = Config::kRows;
  static constexpr int kDim = Config::kDim;
  static constexpr int kColumns = kRows / 8;  // n-tiles of a score tile
  using Type = ElementType<Config::kFloat16>;
  using Scores = float[kColumns][4];
  using Sums = float[kDim / 8][4];

  __device__ __forceinline__ Backward(const BackwardParams& params, const uint8_t* memory)
      : params_(params),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_row_(static_cast<int>(threadIdx.x / 32) * 16) {
    a_.base = (ptx::SharedAddress(memory) + 1023) & ~1023u;
    b_.base = a_.base + Config::kTileBytes;
    walked_ = b_.base + Config::kTileBytes;
    vectors_ = walked_ + 2 * Config::kStages * Config::kTileBytes;
  }

  __device__ __forceinline__ Tile<kRows> C(int stage) const {
    return {walked_ + stage * 2 * Config::kTileBytes};
  }
  __device__ __forceinline__ Tile<kRows> D(int stage) const {
    return {walked_ + (stage * 2 + 1) * Config::kTileBytes};
  }

  // Rows [first, first + 64) of a sequence; zeros past its end. Eight threads a row of 128 bytes.
  __device__ __forceinline__ void Load(const TokenTensor& tensor, int batch, int head, int first,
                                       const Tile<kRows>& target) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1  // addresses are not worth registers
    for (int i = 0; i < kRows / 16; ++i) {
      const int row = i * 16 + thread / 8;
      const bool live = first + row < params_.length;
      const int64_t token = int64_t{batch} * params_.length + (live ? first + row : 0);
      const auto* source = static_cast<const uint16_t*>(tensor.data) + token * tensor.token_stride +
                           head * tensor.head_stride + thread % 8 * 8;
#pragma unroll
      for (int block = 0; block < kDim / 64; ++block) {
        ptx::CopyAsync(target.Chunk(row, block * 8 + thread % 8), source + block * 64, live);
      }
    }
  }

  // s += left [16 own rows] x right' [64 rows]; kFromZero: s = ....
  template <bool kFromZero>
  __device__ __forceinline__ void Multiply(const Tile<kRows>& left, const Tile<kRows>& right,
                                           Scores& s) const {
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4];
      left.LoadA(warp_row_, step, a);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t b[4];
        right.LoadB(n * 8, step, b);
        if (kFromZero && step == 0) {
          Type::MultiplyFromZero(s[n], a, b[0], b[1]);
          Type::MultiplyFromZero(s[n + 1], a, b[2], b[3]);
        } else {
          Type::Multiply(s[n], a, b[0], b[1]);
          Type::Multiply(s[n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // sums [16 own rows, kDim] += s [16, 64] right [64, kDim].
  __device__ __forceinline__ void Accumulate(const Scores& s, const Tile<kRows>& right,
                                             Sums& sums) const {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const float(&x)[4] = s[step * 2];
      const float(&y)[4] = s[step * 2 + 1];
      const uint32_t a[4] = {Type::Pack(x[0], x[1]), Type::Pack(x[2], x[3]), Type::Pack(y[0], y[1]),
                             Type::Pack(y[2], y[3])};
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t b[4];
        right.LoadTransposedB(step * 16, n, b);
        Type::Multiply(sums[n * 2], a, b[0], b[1]);
        Type::Multiply(sums[n * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ static void Clear(Sums& sums) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    }
  }

  // A score, its row's -lse log2(e) -> its probability (float16: 2^kLift times that).
  __device__ __forceinline__ float Probability(float score, float minus_lse) const {
    return ptx::Exp2(fmaf(score, params_.scale * kLog2E, minus_lse));
  }

  // The block's own rows [first, first + 64).
  __device__ __forceinline__ void Store(const Sums& sums, float scale, const TokenTensor& tensor,
                                        int batch, int head, int first) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + warp_row_ + lane_ / 4 + r * 8;
      auto* out = static_cast<uint16_t*>(tensor.data) +
                  (int64_t{batch} * params_.length + row) * tensor.token_stride +
                  head * tensor.head_stride;
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&s)[4] = sums[j * 4 + i];
          x[i] = Type::Pack(s[2 * r] * scale, s[2 * r + 1] * scale);
        }
        ptx::TransposeQuad(x, lane_);
        if (row < params_.length) {
          ptx::StoreGlobal(out + j * 32 + lane_ % 4 * 8, make_uint4(x[0], x[1], x[2], x[3]));
        }
      }
    }
  }

  const BackwardParams& params_;
  int lane_;
  int warp_row_;  // first of the warp's rows, in its block
  Tile<kRows> a_;
  Tile<kRows> b_;
  uint32_t walked_;
  uint32_t vectors_;  // [kStages][2][kRows] f32: row_stats
};

template <class Config>
class BackwardKeys : Backward<Config> {
  using Base = Backward<Config>;
  using Base::kRows;
  using typename Base::Scores;
  using typename Base::Sums;

 public:
  __device__ __forceinline__ BackwardKeys(const BackwardParams& params, const uint8_t* memory)
      : Base(params, memory) {}

  __device__ __forceinline__ void Run(int block) {
    const BackwardParams& p = this->params_;
    const int units = p.batch * p.num_kv_heads;
    const int first_key = block / units * kRows;  // those with the most queries first
    const int batch = block % units / p.num_kv_heads;
    const int kv_head = block % units % p.num_kv_heads;
    const int group = p.num_heads / p.num_kv_heads;
    const int first_tile = p.causal ? first_key / kRows : 0;
    const int tiles = (p.length + kRows - 1) / kRows - first_tile;  // of queries, a head's
    const int visits = tiles * group;
    this->Load(p.k, batch, kv_head, first_key, this->a_);
    this->Load(p.v, batch, kv_head, first_key, this->b_);
    const auto load = [&](int visit) {
      if (visit < visits) {
        LoadQueries(batch, kv_head * group + visit / tiles, (first_tile + visit % tiles) * kRows,
                    visit % Config::kStages);
      }
      ptx::CopyCommit();
    };
    load(0);
    Base::Clear(d_k_);
    Base::Clear(d_v_);
    for (int visit = 0; visit < visits; ++visit) {
      load(visit + 1);
      ptx::CopyWait<1>();
      __syncthreads();
      const int first_query = (first_tile + visit % tiles) * kRows;
      if (p.causal && first_query == first_key) {
        Step<true>(first_query, first_key, visit % Config::kStages);
      } else {
        Step<false>(first_query, first_key, visit % Config::kStages);
      }
      __syncthreads();  // the stage may be loaded again
    }
    this->Store(d_k_, p.scale * Config::kUnlift, p.d_k, batch, kv_head, first_key);
    this->Store(d_v_, Config::kUnlift, p.d_v, batch, kv_head, first_key);
  }

 private:
  __device__ __forceinline__ uint32_t Vector(int stage, int which) const {
    return this->vectors_ + (stage * 2 + which) * kRows * 4;
  }

  __device__ __forceinline__ void LoadQueries(int batch, int head, int first, int stage) const {
    const BackwardParams& p = this->params_;
    this->Load(p.q, batch, head, first, this->C(stage));
    this->Load(p.d_out, batch, head, first, this->D(stage));
    const int row = static_cast<int>(threadIdx.x) % kRows;
    const int which = static_cast<int>(threadIdx.x) / kRows;
    const bool live = first + row < p.length;
    const int64_t at = (int64_t{which} * p.batch * p.length + int64_t{batch} * p.length +
                        (live ? first + row : 0)) *
                           p.num_heads +
                       head;
    ptx::CopyAsync4(Vector(stage, which) + row * 4, p.row_stats + at, live);
  }

  // Queries past the end are zero rows with zero statistics: they add nothing. Own keys past the
  // end are not stored. So only the diagonal needs a mask.
  template <bool kMasked>
  __device__ __forceinline__ void Step(int first_query, int first_key, int stage) {
    Scores s, d_p;
    this->template Multiply<true>(this->a_, this->C(stage), s);
#pragma unroll
    for (int n = 0; n < Base::kColumns; ++n) {
      const int column = n * 8 + this->lane_ % 4 * 2;
      const float2 minus_lse = ptx::LoadSharedFloat2(Vector(stage, 0) + column * 4);
      const float2 minus_delta = ptx::LoadSharedFloat2(Vector(stage, 1) + column * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = this->Probability(s[n][i], i % 2 == 0 ? minus_lse.x : minus_lse.y);
        if (kMasked) {
          const int key = first_key + this->warp_row_ + this->lane_ / 4 + i / 2 * 8;
          if (key > first_query + column + i % 2) s[n][i] = 0;
        }
        d_p[n][i] = i % 2 == 0 ? minus_delta.x : minus_delta.y;
      }
    }
    this->Accumulate(s, this->D(stage), d_v_);
    this->template Multiply<false>(this->b_, this->D(stage), d_p);
#pragma unroll
    for (int n = 0; n < Base::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d_p[n][i] *= s[n][i];
    }
    this->Accumulate(d_p, this->C(stage), d_k_);
  }

  Sums d_k_;
  Sums d_v_;
};

template <class Config>
class BackwardQueries : Backward<Config> {
  using Base = Backward<Config>;
  using Base::kRows;
  using typename Base::Scores;
  using typename Base::Sums;

 public:
  __device__ __forceinline__ BackwardQueries(const BackwardParams& params, const uint8_t* memory)
      : Base(params, memory) {}

  __device__ __forceinline__ void Run(int block) {
    const BackwardParams& p = this->params_;
    const int units = p.batch * p.num_heads;
    const int all_tiles = (p.length + kRows - 1) / kRows;
    const int tile = all_tiles - 1 - block / units;  // those with the most keys first
    const int first_query = tile * kRows;
    const int batch = block % units / p.num_heads;
    const int head = block % units % p.num_heads;
    const int kv_head = head / (p.num_heads / p.num_kv_heads);
    const int tiles = p.causal ? tile + 1 : all_tiles;
    this->Load(p.q, batch, head, first_query, this->a_);
    this->Load(p.d_out, batch, head, first_query, this->b_);
    const auto load = [&](int visit) {
      if (visit < tiles) {
        this->Load(p.k, batch, kv_head, visit * kRows, this->C(visit % Config::kStages));
        this->Load(p.v, batch, kv_head, visit * kRows, this->D(visit % Config::kStages));
      }
      ptx::CopyCommit();
    };
    load(0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_query + this->warp_row_ + this->lane_ / 4 + r * 8;
      const int64_t at = (int64_t{batch} * p.length + row) * p.num_heads + head;
      const int64_t rows = int64_t{p.batch} * p.length * p.num_heads;
      minus_lse_[r] = row < p.length ? p.row_stats[at] : -INFINITY;
      minus_delta_[r] = row < p.length ? p.row_stats[rows + at] : 0.f;
    }
    Base::Clear(d_q_);
    for (int visit = 0; visit < tiles; ++visit) {
      load(visit + 1);
      ptx::CopyWait<1>();
      __syncthreads();
      const int first_key = visit * kRows;
      if ((p.causal && first_key == first_query) || first_key + kRows > p.length) {
        Step<true>(first_query, first_key, visit % Config::kStages);
      } else {
        Step<false>(first_query, first_key, visit % Config::kStages);
      }
      __syncthreads();  // the stage may be loaded again
    }
    this->Store(d_q_, p.scale * Config::kUnlift, p.d_q, batch, head, first_query);
  }

 private:
  template <bool kMasked>
  __device__ __forceinline__ void Step(int first_query, int first_key, int stage) {
    Scores s, d_p;
    this->template Multiply<true>(this->a_, this->C(stage), s);
#pragma unroll
    for (int n = 0; n < Base::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = this->Probability(s[n][i], minus_lse_[i / 2]);
        if (kMasked) {
          const int query = first_query + this->warp_row_ + this->lane_ / 4 + i / 2 * 8;
          const int key = first_key + n * 8 + this->lane_ % 4 * 2 + i % 2;
          if (key >= this->params_.length || (this->params_.causal && key > query)) s[n][i] = 0;
        }
        d_p[n][i] = minus_delta_[i / 2];
      }
    }
    this->template Multiply<false>(this->b_, this->D(stage), d_p);
#pragma unroll
    for (int n = 0; n < Base::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d_p[n][i] *= s[n][i];
    }
    this->Accumulate(d_p, this->C(stage), d_q_);
  }

  float minus_lse_[2];
  float minus_delta_[2];
  Sums d_q_;
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads) void BackwardKeysKernel(
    const __grid_constant__ BackwardParams params) {
  BackwardKeys<Config>(params, ptx::DynamicShared()).Run(static_cast<int>(blockIdx.x));
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads) void BackwardQueriesKernel(
    const __grid_constant__ BackwardParams params) {
  BackwardQueries<Config>(params, ptx::DynamicShared()).Run(static_cast<int>(blockIdx.x));
}

}  // namespace fathom::kernels::cuda::sm80
