#pragma once
// MLA decode from a bf16 or float16 latent cache for sm_80 and later, with operands swapped: keys
// are the 16 rows of mma.sync, query rows its columns.
//
// Eight warps take 32 keys at a time. For scores, a warp has 16 of them and every fourth 16 of
// their elements; the parts meet in shared memory, where each warp sums and exponentiates a few
// rows. For the output a warp has 64 columns and all keys. So every byte of the cache is read twice
// from shared memory, whatever the rows, one base of exponentials a row serves the block, and
// nothing is left to merge when an item ends.
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/sm80/decode_latent/shared.cuh"
#include "kernels/cuda/sm90/decode/items.cuh"
#include "kernels/cuda/sm90/decode/merge.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"

namespace fathom::kernels::cuda::sm80 {

template <class Config>
class LatentDecode {
 public:
  static constexpr int kRows = Config::kRows;
  static constexpr int kRowTiles = kRows / 8;  // columns of mma.sync, by eight
  static constexpr int kColumnTiles = Config::kOwnColumns / 16;
  static constexpr int kSums = kRows == 16 ? 2 : 1;  // products that wait for each other are few
  static constexpr int kSoftmaxRounds = kRows / 16;  // a warp does two rows at a time
  using Type = ElementType<Config::kFloat16>;
  using Range = ProbabilityRange<Config::kFloat16, /*kSlack=*/8>;

  __device__ __forceinline__ LatentDecode(const DecodeParams& params,
                                          const LatentShared<Config>& shared,
                                          LatentSource<Config>& source, int row_tile)
      : params_(params),
        shared_(shared),
        source_(source),
        row_tile_(row_tile),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        half_(warp_ / Config::kQuarters),
        quarter_(warp_ % Config::kQuarters),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run(int part_index, const DecodePart& part) {
    sm90::DecodeItems items(params_, part_index, part);
    while (items.Next()) {
      const sm90::DecodeItem& item = items.item();
      if (item.new_queries) LoadQueries(item);
      StartItem();
      const int end = min(item.end * Config::kTile, item.kv_tokens);
      for (int key = item.begin * Config::kTile; key < end; key += Config::kStepKeys) {
        Step(item, key);
      }
      EndItem(item);
    }
  }

 private:
  __device__ __forceinline__ int LiveRows(const sm90::DecodeItem& item) const {
    return item.query_tokens * params_.group - row_tile_ * kRows;
  }
  __device__ __forceinline__ int RowToken(int row) const {
    return ((row_tile_ * kRows + row) * params_.group_inverse) >> kGroupInverseShift;
  }
  __device__ __forceinline__ int RowHead(int row, int token) const {
    return row_tile_ * kRows + row - token * params_.group;
  }
  // The row that this lane exponentiates in a round.
  __device__ __forceinline__ int SoftmaxRow(int round) const {
    return (warp_ * kSoftmaxRounds + round) * 2 + lane_ / 16;
  }

  // B operands of this warp's elements: 16 of every 64.
  __device__ __forceinline__ void LoadQueries(const sm90::DecodeItem& item) {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = j * 8 + lane_ / 4;
      const int token = RowToken(row);
      const int head = RowHead(row, token);
      const bool live = row < LiveRows(item);
      const int first = quarter_ * 16 + lane_ % 4 * 2;
      const auto* q = static_cast<const uint16_t*>(params_.q) +
                      (item.query_begin + token) * params_.q_token_stride +
                      head * params_.q_head_stride + first;
      const auto* q_pe = static_cast<const uint16_t*>(params_.q_pe) +
                         (item.query_begin + token) * params_.q_pe_token_stride +
                         head * params_.q_pe_head_stride + first;
#pragma unroll
      for (int s = 0; s < Config::kQkSteps; ++s) {
        const auto* from = s < Config::kLatentSteps ? q + s * 64 : q_pe;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          q_[s][j][i] = live ? __ldg(reinterpret_cast<const uint32_t*>(from + i * 8)) : 0;
        }
      }
    }
  }

  __device__ __forceinline__ void StartItem() {
#pragma unroll
    for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[m][j][i] = 0;
      }
    }
#pragma unroll
    for (int round = 0; round < kSoftmaxRounds; ++round) {
      base_[round] = kNoBase;
      sum_[round] = 0;
    }
  }

  __device__ __forceinline__ void Step(const sm90::DecodeItem& item, int first_key) {
    source_.Take();
    Scores();
    __syncthreads();
    bool moved = false;
#pragma unroll
    for (int round = 0; round < kSoftmaxRounds; ++round) {
      moved = Softmax(item, first_key, round) || moved;
    }
    if (!__syncthreads_and(!moved)) Rescale();
    Values();
    source_.Release();
  }

  // Of this warp's 16 keys and quarter of the elements.
  __device__ __forceinline__ void Scores() const {
    float part[kSums][kRowTiles][4] = {};
    const uint32_t keys =
        source_.Slot(half_) + LatentShared<Config>::Chunk(lane_ % 16, quarter_ * 2 + lane_ / 16);
#pragma unroll
    for (int s = 0; s < Config::kQkSteps; ++s) {
      uint32_t a[4];
      ptx::LoadMatrix(keys + s * 128, a);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        Type::Multiply(part[s % kSums][j], a, q_[s][j][0], q_[s][j][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = part[0][j][i];
        if constexpr (kSums == 2) score += part[1][j][i];
        ptx::StoreShared(shared_.Score(quarter_, j * 8 + lane_ % 4 * 2 + i % 2,
                                       half_ * 16 + lane_ / 4 + i / 2 * 8),
                         score);
      }
    }
  }

  // Of one row and two keys a lane. Probabilities are relative to 2^base_, which follows the
  // running maximum only when that has grown by 2^8: until then nothing has to be rescaled,
  // and no maximum to be taken over lanes. True: the row's base has moved.
  __device__ __forceinline__ bool Softmax(const sm90::DecodeItem& item, int first_key, int round) {
    const int row = SoftmaxRow(round);
    const int key = lane_ % 16 * 2;
    float s[2] = {0, 0};
#pragma unroll
    for (int quarter = 0; quarter < Config::kQuarters; ++quarter) {
      const float2 part = ptx::LoadSharedFloat2(shared_.Score(quarter, row, key));
      s[0] += part.x;
      s[1] += part.y;
    }
    const int seen = item.kv_tokens - (item.query_tokens - 1 - RowToken(row)) - first_key - key;
    s[0] = seen > 0 ? s[0] * scale_log2_ : -INFINITY;
    s[1] = seen > 1 ? s[1] * scale_log2_ : -INFINITY;
    float& base = base_[round];
    float peak = fmaxf(s[0], s[1]);
    float factor = 1;
    const bool moved = __any_sync(~0u, peak > base + Range::kReach);
    if (moved) {
#pragma unroll
      for (int offset = 1; offset < 16; offset *= 2) {
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
      }
      const float next = fmaxf(peak - Range::kLift, base);
      factor = ptx::Exp2(base - next);
      sum_[round] *= factor;
      base = next;
    }
    s[0] = ptx::Exp2(s[0] - base);
    s[1] = ptx::Exp2(s[1] - base);
    sum_[round] += s[0] + s[1];
    if (lane_ % 16 == 0) ptx::StoreShared(shared_.factors + row * 4, factor);
    __syncwarp();  // both rows' scores have been read
    ptx::StoreShared(shared_.Probabilities(row, key / 8) + key % 8 * 2, Type::Pack(s[0], s[1]));
    return moved;
  }

  __device__ __forceinline__ void Rescale() {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const float2 factor = ptx::LoadSharedFloat2(shared_.factors + (j * 8 + lane_ % 4 * 2) * 4);
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[m][j][i] *= i % 2 == 0 ? factor.x : factor.y;
      }
    }
  }

  // This warp's columns of all of the step's keys.
  __device__ __forceinline__ void Values() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t p[kRowTiles][2];
#pragma unroll
      for (int j = 0; j < kRowTiles; j += 2) {
        uint32_t b[4];
        ptx::LoadMatrix(
            shared_.Probabilities(j * 8 + lane_ / 16 * 8 + lane_ % 8, half * 2 + lane_ / 8 % 2), b);
        p[j][0] = b[0];
        p[j][1] = b[1];
        p[j + 1][0] = b[2];
        p[j + 1][1] = b[3];
      }
      const uint32_t values =
          source_.Slot(half) +
          LatentShared<Config>::Chunk(lane_ / 16 * 8 + lane_ % 8, warp_ * 8 + lane_ / 8 % 2);
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
        uint32_t a[4];
        ptx::LoadMatrixTransposed(values ^ (m * 32), a);
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) Type::Multiply(out_[m][j], a, p[j][0], p[j][1]);
      }
    }
  }

  __device__ __forceinline__ void EndItem(const sm90::DecodeItem& item) const {
#pragma unroll
    for (int round = 0; round < kSoftmaxRounds; ++round) {
      float sum = sum_[round];
#pragma unroll
      for (int offset = 1; offset < 16; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      if (lane_ % 16 == 0) {
        ptx::StoreShared(shared_.states + SoftmaxRow(round) * 8,
                         make_uint2(__float_as_uint(base_[round]), __float_as_uint(sum)));
      }
    }
    __syncthreads();
    // Lanes of neighbouring columns trade, so that each has two columns of one row.
    const bool odd = lane_ / 4 % 2 != 0;
    const int column = warp_ * Config::kOwnColumns + lane_ / 8 * 2;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = j * 8 + lane_ % 4 * 2 + (odd ? 1 : 0);
      const float2 state = ptx::LoadSharedFloat2(shared_.states + row * 8);
      float2 pairs[kColumnTiles][2];
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&o)[4] = out_[m][j];
          const float got = __shfl_xor_sync(~0u, odd ? o[i * 2] : o[i * 2 + 1], 4);
          pairs[m][i] = odd ? make_float2(got, o[i * 2 + 1]) : make_float2(o[i * 2], got);
        }
      }
      if (row < LiveRows(item)) Write(item, row, column, {state.x, state.y}, pairs);
    }
  }

  // Columns column + {0, 1} of every eight.
  __device__ __forceinline__ void Write(const sm90::DecodeItem& item, int row, int column,
                                        sm90::RowState state,
                                        const float2 (&pairs)[kColumnTiles][2]) const {
    const bool first = column == 0;
    if (!item.whole) {
      const int64_t at = (int64_t{item.slot} * params_.row_tiles + row_tile_) * kRows + row;
      if (first) {
        reinterpret_cast<float2*>(params_.partial_ml)[at] =
            make_float2(state.max_log2 == kNoBase ? -INFINITY : state.max_log2, state.sum);
      }
      static_assert(sm90::kPartialFormat<Config::kDimV, Config::kRows, 80> ==
                    sm90::PartialFormat::kFloat32);
      float* out = static_cast<float*>(params_.partial_out) + at * Config::kDimV + column;
#pragma unroll
      for (int n = 0; n < kColumnTiles * 2; ++n) {
        *reinterpret_cast<float2*>(out + n * 8) = pairs[n / 2][n % 2];
      }
      return;
    }
    const int token = RowToken(row);
    const int64_t at_token = item.query_begin + token;
    const int head = RowHead(row, token);
    const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
    if (first && params_.lse != nullptr) {
      params_.lse[at_token * params_.group + head] = sm90::LogSumExp(state);
    }
    auto* out = static_cast<uint16_t*>(params_.out) + at_token * params_.out_token_stride +
                head * params_.out_head_stride + column;
#pragma unroll
    for (int n = 0; n < kColumnTiles * 2; ++n) {
      const float2 pair = pairs[n / 2][n % 2];
      *reinterpret_cast<uint32_t*>(out + n * 8) = Type::Pack(pair.x * scale, pair.y * scale);
    }
  }

  const DecodeParams& params_;
  const LatentShared<Config>& shared_;
  LatentSource<Config>& source_;
  int row_tile_;
  int warp_;
  int lane_;
  int half_;     // of a step's keys
  int quarter_;  // of their elements
  float scale_log2_;
  float base_[kSoftmaxRounds];  // log2
  float sum_[kSoftmaxRounds];   // of this lane's keys
  uint32_t q_[Config::kQkSteps][kRowTiles][2];
  float out_[kColumnTiles][kRowTiles][4];
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeLatentKernel(
    const __grid_constant__ DecodeParams params) {
  const LatentShared<Config> shared(ptx::DynamicShared());
  const int part_index = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int row_tile = static_cast<int>(blockIdx.x) % params.row_tiles;
  const DecodePart part = params.parts[part_index];
  LatentSource<Config> source(params, shared, part);
  LatentDecode<Config>(params, shared, source, row_tile).Run(part_index, part);
  if (threadIdx.x < 32) sm90::WriteEmpty<Config>(params, part_index, 0, row_tile);
}

}  // namespace fathom::kernels::cuda::sm80
