#pragma once
// A consumer warpgroup of a prefill block: 64 query rows.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/shuffle.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/prefill/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
class PrefillConsumer {
 public:
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kSteps = kKeys / 16;
  static constexpr int kFirstBarrier = 1;    // of the turns between warpgroups, one each
  static constexpr int kOwnBarrier = 1 + 3;  // within a warpgroup, one each

  __device__ __forceinline__ PrefillConsumer(const PrefillParams& params,
                                             const PrefillShared<Config>& shared)
      : params_(params),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run() {
    if (Config::kGroups == 2 && group_ == 1) ptx::BarrierArrive(kFirstBarrier, 256);
    int work = Take();
    while (Live(work)) {
      if (Count(work) == 0) {
        sum_[0] = sum_[1] = 0;
        Store(work, sum_, base_);
        Done(work);
        work = Take();
        continue;
      }
      Begin(work);
      Start(work);
      while (true) {
        Turns(work);
        const int next = Take();
        const bool goes_on = Live(next) && Count(next) > 0;
        if (goes_on) {
          Cross(work, next);
        } else {
          LastValues();
          Store(work, sum_, base_);
        }
        Done(work);
        work = next;
        if (!goes_on) break;
      }
    }
  }

 private:
  // Work stays in its slot in shared memory until its tile is stored: registers are short.
  __device__ __forceinline__ const PrefillWork& Work(int slot) const { return shared_.work[slot]; }
  __device__ __forceinline__ bool Live(int slot) const { return Uniform(Work(slot).sequence) >= 0; }
  __device__ __forceinline__ int Count(int slot) const { return Uniform(Work(slot).tiles.count); }
  __device__ __forceinline__ int TileAt(int slot, int visit) const {
    return Uniform(Work(slot).TileAt(visit));
  }
  __device__ __forceinline__ int LastTile(int slot) const { return TileAt(slot, Count(slot) - 1); }

  __device__ __forceinline__ static int Uniform(int value) { return __shfl_sync(~0u, value, 0); }

  __device__ __forceinline__ void Release(uint32_t barrier) const {
    if (lane_ == 0) ptx::MbarrierArrive(barrier);
  }

  // The slot of the next work.
  __device__ __forceinline__ int Take() {
    const int slot = taken_.Stage();
    ptx::MbarrierWait(shared_.WorkFull(slot), taken_.Phase());
    taken_.Next();
    return slot;
  }
  __device__ __forceinline__ void Done(int slot) const {
    __syncwarp();
    Release(shared_.WorkEmpty(slot));
  }

  // Which tiles the rows of this warpgroup see in full.
  __device__ __forceinline__ void Begin(int slot) {
    const PrefillWork& work = Work(slot);
    const int first = work.kv_tokens - work.queries + work.row + group_ * 64;  // positions
    const int last = first + 63;
    const int all_see = params_.causal ? min(first + 1, work.kv_tokens) : work.kv_tokens;
    full_tiles_ = Uniform(all_see < 0 ? 0 : all_see / kKeys);
    const bool window = params_.window < work.kv_tokens;
    window_tile_ = Uniform(window ? max(0, last - params_.window + kKeys - 1) / kKeys : 0);
    fresh_ = true;
  }

  __device__ __forceinline__ bool NeedsMask(int tile) const {
    return tile >= full_tiles_ || (tile < window_tile_ && (tile + 1) * kKeys > params_.anchors);
  }

  // Behind the wait for the first scores.
  __device__ __forceinline__ void FirstSoftmax(int slot) {
    ptx::WgmmaFenceRegisters(s_);
    Release(shared_.KEmpty(k_.Stage()));
    k_.Next();
    Mask(slot, LastTile(slot));
    Softmax<true, false>();
  }

  // Rows past the sequence's end may hold anything, and 0 x NaN is NaN. Every warpgroup clears them
  // all, so that none waits for another.
  __device__ __forceinline__ void ZeroDeadValues(int slot) const {
    const int live = Uniform(Work(slot).kv_tokens) - LastTile(slot) * kKeys;
    if (live >= kKeys) return;
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    const uint32_t v = shared_.v + v_.Stage() * Config::kVBytes;
    for (int block = 0; block < Config::kVBlocks; ++block) {
      for (int i = live * 8 + static_cast<int>(threadIdx.x % 128); i < kKeys * 8; i += 128) {
        ptx::StoreShared(v + block * (kKeys * 128) + i * 16, make_uint4(0, 0, 0, 0));
      }
    }
    ptx::FenceProxyAsync();
    ptx::BarrierSync(kOwnBarrier + group_, 128);
  }

  // The first scores of a tile that follows none.
  __device__ __forceinline__ void Start(int slot) {
    ptx::MbarrierWait(shared_.QFull(q_.Stage()), q_.Phase());
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    ptx::WgmmaFence();
    IssueScores();
    ptx::WgmmaWait<0>();
    FirstSoftmax(slot);
    Pack();
    ZeroDeadValues(slot);
  }

  // All visits of a tile but the first.
  __device__ __forceinline__ void Turns(int slot) {
    for (int visit = Count(slot) - 2; visit >= 0; --visit) {
      const int tile = TileAt(slot, visit);
      if (NeedsMask(tile)) {
        Turn<true>(slot, tile);
      } else {
        Turn<false>(slot, tile);
      }
    }
    Release(shared_.QEmpty(q_.Stage()));
    q_.Next();
  }

  template <bool kMask>
  __device__ __forceinline__ void Turn(int slot, int tile) {
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    if constexpr (Config::kGroups == 2) ptx::BarrierSync(kFirstBarrier + group_, 256);
    ptx::WgmmaFence();
    IssueScores();
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    ptx::WgmmaFence();
    IssueValues();
    if constexpr (Config::kGroups == 2) ptx::BarrierArrive(kFirstBarrier + 1 - group_, 256);
    ptx::WgmmaWait<1>();
    ptx::WgmmaFenceRegisters(s_);
    Release(shared_.KEmpty(k_.Stage()));
    k_.Next();
    if constexpr (kMask) Mask(slot, tile);
    Softmax<false, !kMask>();
    WaitForValues();
    if (moved_) Rescale();
    Pack();
  }

  // The assembler would move the wait in front of the softmax; it keeps it behind this store, which
  // needs the softmax's sums.
  __device__ __forceinline__ void WaitForValues() {
    ptx::StoreShared(shared_.unread + threadIdx.x * 4, sum_[0] + sum_[1]);
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(out_);
    Release(shared_.VEmpty(v_.Stage()));
    v_.Next();
    fresh_ = false;
  }

  // The last product of a tile that nothing follows.
  __device__ __forceinline__ void LastValues() {
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    ptx::WgmmaFence();
    IssueValues();
    WaitForValues();
  }

  // The last product of a tile with the first scores of the next one.
  __device__ __forceinline__ void Cross(int slot, int next) {
    const bool fresh = fresh_;
    Begin(next);
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    ptx::MbarrierWait(shared_.QFull(q_.Stage()), q_.Phase());
    if constexpr (Config::kGroups == 2) ptx::BarrierSync(kFirstBarrier + group_, 256);
    ptx::WgmmaFence();
    IssueScores();
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    ptx::WgmmaFence();
    fresh_ = fresh;
    IssueValues();
    if constexpr (Config::kGroups == 2) ptx::BarrierArrive(kFirstBarrier + 1 - group_, 256);
    ptx::WgmmaWait<1>();
    const float sum[2] = {sum_[0], sum_[1]};
    const float base[2] = {base_[0], base_[1]};
    FirstSoftmax(next);
    WaitForValues();
    Store(slot, sum, base);
    fresh_ = true;
    Pack();
    ZeroDeadValues(next);
  }

  __device__ __forceinline__ void IssueScores() {
    const uint64_t q =
        ptx::Descriptor(shared_.q + q_.Stage() * Config::kQBytes + group_ * (64 * 128));
    const uint64_t k = ptx::Descriptor(shared_.k + k_.Stage() * Config::kKBytes);
#pragma unroll
    for (int block = 0; block < Config::kQkBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kKeys, ptx::Major::kK, ptx::Major::kK>(
            s_, ptx::Advance(q, block * (Config::kRows * 128) + step * 32),
            ptx::Advance(k, block * (kKeys * 128) + step * 32), block + step > 0);
      }
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void IssueValues() {
    const uint64_t v = ptx::Descriptor(shared_.v + v_.Stage() * Config::kVBytes, kKeys * 128);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaRS<Config::kDimV, ptx::Major::kMn>(out_, p_[step], ptx::Advance(v, step * 2048),
                                                   !fresh_ || step > 0);
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void Mask(int slot, int tile) {
    const PrefillWork& work = Work(slot);
    const int row =
        work.row + group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4;
    const int position = work.kv_tokens - work.queries + row;  // of the first row; the second: + 8
    // Relative to this lane's first key, so that what is compared with is constant.
    const int key = tile * kKeys + lane_ % 4 * 2;
    const int all = work.kv_tokens - key;
    const int end[2] = {params_.causal ? min(position + 1 - key, all) : all,
                        params_.causal ? min(position + 9 - key, all) : all};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (i / 4 * 8 + i % 2 >= end[i / 2 % 2]) s_[i] = -INFINITY;
    }
    if (tile >= window_tile_) return;
    const int begin = position - params_.window - key;  // of the second row: + 8
    const int anchors = params_.anchors - key;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int at = i / 4 * 8 + i % 2;
      if (at - i / 2 % 2 * 8 < begin && at >= anchors) s_[i] = -INFINITY;
    }
  }

  // Turns scores into probabilities relative to 2^base_. The base follows the running maximum only
  // when that has grown by a factor of 2^kSlack for some row of the warp: until then probabilities
  // are at most 2^kSlack and nothing has to be rescaled. Leaves in rescale_ what out_ has to be
  // multiplied with, and in moved_ whether it has to be.
  template <bool kFirst, bool kUnmasked>
  __device__ __forceinline__ void Softmax() {
    constexpr float kSlack = 8;
    float peak[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      peak[r] = fmaxf(s_[2 * r], s_[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < kKeys / 2; i += 4) {
        peak[r] = fmaxf(peak[r], fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 1));
      peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 2)) * scale_log2_;
    }
    if constexpr (kFirst) {
      base_[0] = peak[0];
      base_[1] = peak[1];
      sum_[0] = sum_[1] = 0;
    } else {
      moved_ = __any_sync(~0u, peak[0] > base_[0] + kSlack || peak[1] > base_[1] + kSlack);
      if (moved_) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float base = fmaxf(peak[r], base_[r]);
          rescale_[r] = ptx::Exp2(base_[r] - (base == -INFINITY ? 0.f : base));
          sum_[r] *= rescale_[r];
          base_[r] = base;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = base_[r] == -INFINITY ? 0.f : base_[r];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = i + 2 * r + j;
          const float x = fmaf(s_[at], scale_log2_, -base);
          // Masked scores must come out as zero, which the polynomial does not give.
          const bool polynomial =
              kUnmasked && Config::kPolynomialEvery != 0 &&
              i / 4 % (Config::kPolynomialEvery + 1) == Config::kPolynomialEvery;
          s_[at] = polynomial ? ptx::Exp2Polynomial(x) : ptx::Exp2(x);
          sum += s_[at];
        }
      }
      sum_[r] += sum;
    }
  }

  __device__ __forceinline__ void Rescale() {
#pragma unroll
    for (int i = 0; i < Config::kDimV / 2; ++i) out_[i] *= rescale_[i / 2 % 2];
  }

  // Accumulators of S are, pair by pair, the A operand of the next product.
  __device__ __forceinline__ void Pack() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p_[step][i] = ptx::PackBf16(s_[step * 8 + i * 2], s_[step * 8 + i * 2 + 1]);
      }
    }
  }

  // Straight from registers, so that the next tile's loads go on; zeros where no key was seen.
  __device__ __forceinline__ void Store(int slot, const float (&sums)[2], const float (&base)[2]) {
    const PrefillWork& work = Work(slot);
    const int first_token = work.query_begin + work.row;
    const int rows = work.queries - work.row;
    const int head = work.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool empty = sum == 0.f;
      const float scale = empty ? 0.f : 1.f / sum;
      const int row =
          group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4 + r * 8;
      const bool inside = row < rows;
      const int64_t token = first_token + row;
      if (params_.lse != nullptr && inside && lane_ % 4 == 0) {
        constexpr float kLn2 = 0.6931471805599453f;
        params_.lse[token * params_.num_heads + head] =
            empty ? -INFINITY : (base[r] + log2f(sum)) * kLn2;
      }
      auto* out = static_cast<uint16_t*>(params_.out) + token * params_.out_token_stride +
                  head * params_.out_head_stride;
      // A thread holds two of each eight columns; four threads trade, so that each writes 16 bytes.
#pragma unroll
      for (int j = 0; j < Config::kDimV / 32; ++j) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (j * 4 + i) * 4 + 2 * r;
          x[i] = empty ? 0u : ptx::PackBf16(out_[at] * scale, out_[at + 1] * scale);
        }
        ptx::TransposeQuad(x, lane_);
        if (inside) {
          *reinterpret_cast<uint4*>(out + j * 32 + lane_ % 4 * 8) =
              make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }

  const PrefillParams& params_;
  const PrefillShared<Config>& shared_;
  int group_;
  int lane_;
  float scale_log2_;
  PipelinePosition<Config::kStages> k_;
  PipelinePosition<Config::kStages> v_;
  PipelinePosition<Config::kQStages> q_;
  PipelinePosition<2> taken_;
  int full_tiles_;     // key tiles before this one are seen in full by all rows,
  int window_tile_;    // unless they lie before this one
  bool fresh_ = true;  // out_ holds nothing yet
  bool moved_ = false;
  float base_[2];  // log2
  float sum_[2];   // of this thread's columns
  float rescale_[2];
  float s_[kKeys / 2];
  uint32_t p_[kSteps][4];
  float out_[Config::kDimV / 2];
};

}  // namespace fathom::kernels::cuda::sm90
