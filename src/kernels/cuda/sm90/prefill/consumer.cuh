#pragma once
// A consumer warpgroup of a prefill block: 64 query rows.
#include <cuda_runtime.h>

#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/prefill_columns.cuh"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/prefill/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
class PrefillConsumer {
 public:
  // With two warpgroups, one's softmax runs under the other's products, and there are registers for
  // the probabilities of two tiles.
  static constexpr bool kTwoGroups = Config::kGroups == 2;
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kSteps = kKeys / 16;
  using Type = ElementType<Config::kFloat16>;
  // Probabilities are relative to 2^base_, which moves only when a score is far above it for some
  // row of the warp: with three warpgroups when the maximum is 2^64 (float16: 2^8) above where it
  // was, with two when a sum says so. Until then nothing has to be rescaled. Precision does not
  // suffer: bf16 has the exponents of float32, and what is lost below is 2^-126 of the base.
  using Range = ProbabilityRange<Config::kFloat16, Config::kFloat16 ? 8 : 64>;
  static constexpr int kFirstBarrier = 1;    // of the turns between warpgroups, one each
  static constexpr int kOwnBarrier = 1 + 3;  // within a warpgroup, one each

  __device__ __forceinline__ PrefillConsumer(const PrefillParams& params, const PrefillMaps& maps,
                                             const PrefillShared<Config>& shared)
      : params_(params),
        maps_(maps),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        scale_log2_(params.scale * 1.4426950408889634f),
        q_first_(ptx::Descriptor(shared.q + group_ * (64 * 128))),
        k_first_(ptx::Descriptor(shared.k)),
        v_first_(ptx::Descriptor(shared.v, kKeys * 128)),
        zero_(static_cast<uint32_t>(params.num_sequences) >> 31) {}

  __device__ __forceinline__ void Run() {
    if (kTwoGroups && group_ == 1) ptx::BarrierArrive(kFirstBarrier, 256);
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
          Done(work);
        }
        work = next;
        if (!goes_on) break;
      }
    }
    if (lane_ == 0) ptx::TmaStoreWaitRead();
  }

 private:
  // Work stays in its slot in shared memory until its tile is stored: registers are short.
  __device__ __forceinline__ const PrefillWork<Config::kLists>& Work(int slot) const {
    return shared_.work[slot];
  }
  __device__ __forceinline__ bool Live(int slot) const { return Uniform(Work(slot).sequence) >= 0; }
  __device__ __forceinline__ int Count(int slot) const { return Uniform(Work(slot).tiles.count); }
  __device__ __forceinline__ int TileAt(int slot, int visit) const {
    return Uniform(Work(slot).TileAt(visit));
  }

  // Descriptor of what lies `bytes` further on. Addresses have the low half to themselves; without
  // a carry, fewer instructions stand between two products.
  __device__ __forceinline__ static uint64_t Advance(uint64_t descriptor, uint32_t bytes) {
    return (descriptor & 0xffffffff00000000ull) |
           (static_cast<uint32_t>(descriptor) + (bytes >> 4));
  }
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

  // Which tiles the rows of this warpgroup see in full. (Of listed ones the list says it.)
  __device__ __forceinline__ void Begin(int slot) {
    if constexpr (Config::kLists) return;
    const auto& work = Work(slot);
    const int first = work.position + work.row + group_ * 64;  // positions
    const int last = first + 63;
    const int all_see = params_.causal ? min(first + 1, work.kv_tokens) : work.kv_tokens;
    full_tiles_ = Uniform(all_see < 0 ? 0 : all_see / kKeys);
    const bool window = params_.window < work.position + work.queries;
    window_tile_ = Uniform(window ? max(0, last - params_.window + kKeys - 1) / kKeys : 0);
  }
  __device__ __forceinline__ int LastTile(int slot) const {
    if constexpr (Config::kLists) {
      return Uniform(Work(slot).tiles.last_tile);
    } else {
      return TileAt(slot, Count(slot) - 1);
    }
  }
  // The listed tile whose keys come next. Read by the lane that gives its place back.
  __device__ __forceinline__ ListedTile NextListed() const {
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    uint2 listed = {};
    if (lane_ == 0) listed = ptx::LoadSharedPair(shared_.Listed(k_.Stage()));
    return {Uniform(static_cast<int>(listed.x)), Uniform(static_cast<int>(listed.y))};
  }

  __device__ __forceinline__ bool NeedsMask(int tile) const {
    return tile >= full_tiles_ || (tile < window_tile_ && (tile + 1) * kKeys > params_.anchors);
  }

  // Visits [result, visit] need no mask, given that `visit` needs none.
  __device__ __forceinline__ int UnmaskedDownTo(int slot, int visit) const {
    if (window_tile_ == 0) return 0;
    const PrefillTiles& tiles = Work(slot).tiles;
    const int edge = Uniform(window_tile_ - tiles.skipped);  // the first visit inside the window
    return visit >= edge ? edge : visit;
  }

  // Behind the wait for the first scores. What it leaves is for TakeProbabilities.
  __device__ __forceinline__ void FirstSoftmax(int slot, uint32_t (&next)[kSteps][4]) {
    ptx::WgmmaFenceRegisters(s_);
    ListedTile listed;
    if constexpr (Config::kLists) listed = NextListed();
    Release(shared_.KEmpty(k_.Stage()));
    k_.Next();
    if constexpr (Config::kLists) {
      if (listed.mask != kNoMask) MaskListed(slot, listed);
    } else {
      const int tile = LastTile(slot);
      if (NeedsMask(tile)) Mask(slot, tile);
    }
    NewBase(slot);
    if constexpr (kTwoGroups) {
      SpeculativeSoftmax(next);
    } else {
      Softmax<true>();
    }
  }
  // As operand of a product, once that of the one before is no longer needed.
  __device__ __forceinline__ void TakeProbabilities(const uint32_t (&next)[kSteps][4]) {
    if constexpr (kTwoGroups) {
      // Where the operand of the coming product was made under the running one, the assembler
      // would make each wgmma wait. It may not know that nothing changes here.
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p_[step][i] = next[step][i] ^ zero_;
      }
    } else {
      Pack();
    }
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
    uint32_t next[kSteps][4];
    FirstSoftmax(slot, next);
    TakeProbabilities(next);
    ZeroDeadValues(slot);
    add_ = false;
  }

  // All visits of a tile but the first.
  __device__ __forceinline__ void Turns(int slot) {
    // So that the assembler keeps descriptors in uniform registers.
    q_.count = Uniform(q_.count);
    k_.count = Uniform(k_.count);
    v_.count = Uniform(v_.count);
    if constexpr (Config::kLists) {
      ListedTurns(slot);
    } else {
      DenseTurns(slot);
    }
    Release(shared_.QEmpty(q_.Stage()));
    q_.Next();
  }
  __device__ __forceinline__ void ListedTurns(int slot) {
    int left = Count(slot) - 1;
    while (left > 0) {
      const ListedTile listed = NextListed();
      if (listed.mask != kNoMask) {
        Turn<true>(slot, 0, listed);
        --left;
        continue;
      }
      do Turn<false>(slot, 0, listed);
      while (--left > 0 && NextListed().mask == kNoMask);
    }
  }
  __device__ __forceinline__ void DenseTurns(int slot) {
    int visit = Count(slot) - 2;
    while (visit >= 0) {
      const int tile = TileAt(slot, visit);
      if (NeedsMask(tile)) {
        Turn<true>(slot, tile);
        --visit;
        continue;
      }
      const int last = UnmaskedDownTo(slot, visit);
      do Turn<false>(slot, 0);
      while (--visit >= last);
    }
  }

  // tile, or where there are lists `listed`: to be masked.
  template <bool kMask>
  __device__ __forceinline__ void Turn(int slot, int tile, const ListedTile& listed = {}) {
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    IssueBoth();
    ptx::WgmmaWait<1>();
    ptx::WgmmaFenceRegisters(s_);
    Release(shared_.KEmpty(k_.Stage()));
    k_.Next();
    if constexpr (kMask && Config::kLists) MaskListed(slot, listed);
    if constexpr (kMask && !Config::kLists) Mask(slot, tile);
    uint32_t next[kSteps][4];
    if constexpr (kTwoGroups) {
      SpeculativeSoftmax(next);
    } else {
      Softmax<false>();
    }
    WaitForValues();
    if (moved_) Rescale();
    TakeProbabilities(next);
  }

  // The assembler would move the wait in front of the softmax; it keeps it behind this store, which
  // needs the softmax's sums.
  __device__ __forceinline__ void WaitForValues() {
    ptx::StoreShared(shared_.unread + threadIdx.x * 4, sum_[0] + sum_[1]);
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(out_);
    Release(shared_.VEmpty(v_.Stage()));
    v_.Next();
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
    Begin(next);
    ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
    ptx::MbarrierWait(shared_.QFull(q_.Stage()), q_.Phase());
    IssueBoth();
    ptx::WgmmaWait<1>();
    const float sum[2] = {sum_[0], sum_[1]};
    const float base[2] = {base_[0], base_[1]};
    uint32_t probabilities[kSteps][4];
    FirstSoftmax(next, probabilities);
    WaitForValues();
    Store(slot, sum, base);
    Done(slot);
    TakeProbabilities(probabilities);
    ZeroDeadValues(next);
    add_ = false;
  }

  // The scores of a tile and the output of the one before it.
  __device__ __forceinline__ void IssueBoth() {
    if constexpr (kTwoGroups) ptx::BarrierSync(kFirstBarrier + group_, 256);
    ptx::WgmmaFence();
    IssueScores();
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    ptx::WgmmaFence();
    IssueValues<kTwoGroups>();
  }

  __device__ __forceinline__ void IssueScores() {
    const uint64_t q = Advance(q_first_, q_.Stage() * Config::kQBytes);
    const uint64_t k = Advance(k_first_, k_.Stage() * Config::kKBytes);
#pragma unroll
    for (int block = 0; block < Config::kQkBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<kKeys, ptx::Major::kK, ptx::Major::kK, Config::kFloat16>(
            s_, Advance(q, block * (Config::kRows * 128) + step * 32),
            Advance(k, block * (kKeys * 128) + step * 32), block + step > 0);
      }
    }
    ptx::WgmmaCommit();
  }

  // Half way through it lets the other warpgroup go on, whose products are then there in time.
  template <bool kPassTurn = false>
  __device__ __forceinline__ void IssueValues() {
    const uint64_t v = Advance(v_first_, v_.Stage() * Config::kVBytes);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaRS<Config::kDimV, ptx::Major::kMn, Config::kFloat16>(
          out_, p_[step], Advance(v, step * 2048), add_ || step > 0);
      if (kPassTurn && step == kSteps / 2 - 1) {
        ptx::BarrierArrive(kFirstBarrier + 1 - group_, 256);
      }
    }
    ptx::WgmmaCommit();
    add_ = true;
  }

  __device__ __forceinline__ void Mask(int slot, int tile) {
    const auto& work = Work(slot);
    const int row =
        work.row + group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4;
    const int position = work.position + row;      // of the first row; the second: + 8
    const int key = tile * kKeys + lane_ % 4 * 2;  // this thread's first
    const int all = work.kv_tokens - key;
    const bool window = tile < window_tile_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = position + 8 * r - key;
      uint32_t seen = ColumnsBelow(params_.causal ? min(own + 1, all) : all);
      if (window) seen &= ~ColumnsBelow(own - params_.window) | ColumnsBelow(params_.anchors - key);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        if ((seen >> i & 1) == 0) s_[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
      }
    }
  }

  // Ones in the bits below n.
  __device__ __forceinline__ static uint32_t BitsBelow(int n) {
    return n <= 0 ? 0u : ~0u >> (32 - min(n, 32));
  }

  // A row sees what causal masking and the length leave, of that what is near, the first anchors
  // and what the mask has bits for. 32 keys at a time, then a bit a score.
  __device__ __forceinline__ void MaskListed(int slot, const ListedTile& listed) {
    const auto& work = Work(slot);
    const int row_in_tile = group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4;
    const int key = listed.tile * kKeys;  // below, all is relative to it
    const int all = work.kv_tokens - key;
    const int anchors = work.tiles.anchors - key;
    const int window = work.tiles.window;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = work.position + work.row + row_in_tile + 8 * r - key;
      const int end = params_.causal ? min(position + 1, all) : all;
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (listed.mask >= 0) {
        const bool of_rows = (listed.mask & kMaskOfRows) != 0;
        const int at = (listed.mask & (kMaskOfRows - 1)) + (of_rows ? row_in_tile + 8 * r : 0);
        bits = __ldg(reinterpret_cast<const uint4*>(params_.masks) + at);
      }
      const uint32_t masks[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int word = 0; word < kKeys / 32; ++word) {
        const int first = word * 32;
        const uint32_t near =
            BitsBelow(position + window + 1 - first) & ~BitsBelow(position - window - first);
        const uint32_t seen =
            (near | BitsBelow(anchors - first) | masks[word]) & BitsBelow(end - first);
        const uint32_t own = seen >> (lane_ % 4 * 2);  // from this lane's first key on
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((own >> (i / 2 * 8 + i % 2) & 1) == 0) {
            s_[word * 16 + i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
          }
        }
      }
    }
  }

  // Per row, of this thread's columns among the first kCount of the tile, log2.
  template <int kCount = kKeys>
  __device__ __forceinline__ void Peaks(float (&peak)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      peak[r] = fmaxf(s_[2 * r], s_[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < kCount / 2; i += 4) {
        peak[r] = fmaxf(peak[r], fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      peak[r] *= scale_log2_;
    }
  }
  __device__ __forceinline__ static float RowMax(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }
  __device__ __forceinline__ bool HasToMove(const float (&peak)[2]) const {
    return __any_sync(~0u,
                      peak[0] > base_[0] + Range::kReach || peak[1] > base_[1] + Range::kReach);
  }
  // Leaves in rescale_ what out_ has to be multiplied with.
  __device__ __forceinline__ void MoveBase(const float (&peak)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = fmaxf(RowMax(peak[r]) - Range::kLift, base_[r]);
      rescale_[r] = ptx::Exp2(base_[r] - base);
      sum_[r] *= rescale_[r];
      base_[r] = base;
    }
  }

  // Of a row's first tile. With two warpgroups a few keys are enough; the first ones, for with a
  // causal mask a row that sees any of a tile sees those. Rows behind the sequence's end are the
  // next one's: they may not move the base of the warp's others, whatever they hold.
  __device__ __forceinline__ void NewBase(int slot) {
    const auto& work = Work(slot);
    const int row =
        work.row + group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4;
    float peak[2];
    Peaks<kTwoGroups ? 32 : kKeys>(peak);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = fmaxf(RowMax(peak[r]) - Range::kLift, kNoBase);
      base_[r] = row + r * 8 < work.queries ? base : INFINITY;
      sum_[r] = 0;
    }
  }

  // Turns scores into probabilities.
  template <bool kFirst>
  __device__ __forceinline__ void Softmax() {
    if constexpr (!kFirst) {
      float peak[2];
      Peaks(peak);
      moved_ = HasToMove(peak);
      if (moved_) MoveBase(peak);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = i + 2 * r + j;
          s_[at] = ptx::Exp2(fmaf(s_[at], scale_log2_, -base_[r]));
          sum_[r] += s_[at];
        }
      }
    }
  }

  // The same without a maximum: probabilities, packed, are made with the base as it is. Their sums
  // say whether a score was far above it, and in that rare case they are made again. Scores stay.
  __device__ __forceinline__ void SpeculativeSoftmax(uint32_t (&p)[kSteps][4]) {
    float sum[2];
    Exponentials(p, sum);
    moved_ = __any_sync(~0u, sum[0] >= Range::kMostSum || sum[1] >= Range::kMostSum);
    if (moved_) {
      float peak[2];
      Peaks(peak);
      MoveBase(peak);
      Exponentials(p, sum);
    }
    sum_[0] += sum[0];
    sum_[1] += sum[1];
  }
  __device__ __forceinline__ void Exponentials(uint32_t (&p)[kSteps][4], float (&sum)[2]) const {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        const float low = ptx::Exp2(fmaf(s_[step * 8 + i * 2], scale_log2_, -base_[r]));
        const float high = ptx::Exp2(fmaf(s_[step * 8 + i * 2 + 1], scale_log2_, -base_[r]));
        sum[r] += low;
        sum[r] += high;
        p[step][i] = Type::Pack(low, high);
      }
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
        p_[step][i] = Type::Pack(s_[step * 8 + i * 2], s_[step * 8 + i * 2 + 1]);
      }
    }
  }

  // Through shared memory of the warp's own, so that rows are written in whole lines. Zeros where
  // no key was seen.
  __device__ __forceinline__ void Store(int slot, const float (&sums)[2], const float (&base)[2]) {
    const auto& work = Work(slot);
    const int warp_row = group_ * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const int64_t token = work.query_begin + work.row + warp_row;  // of the warp's first row
    const int rows = work.queries - work.row - warp_row;           // of the warp that exist
    const int head = work.head;
    float scale[2];
    float lse[2];
    bool empty[2];  // no key was seen
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      constexpr float kLn2 = 0.6931471805599453f;
      empty[r] = sum == 0.f;
      scale[r] = ptx::Reciprocal(sum);
      lse[r] = empty[r] ? -INFINITY : (base[r] + ptx::Log2(sum)) * kLn2;
    }
    const int lse_row = lane_ / 4 + lane_ % 4 * 8;  // of the first two of four lanes
    if (params_.lse != nullptr && lane_ % 4 < 2 && lse_row < rows) {
      params_.lse[(token + lse_row) * params_.num_heads + head] = lane_ % 4 == 0 ? lse[0] : lse[1];
    }
    if (__any_sync(~0u, empty[0] || empty[1])) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (empty[r]) scale[r] = 0;
      }
#pragma unroll
      for (int i = 0; i < Config::kDimV / 2; ++i) {
        if (empty[i / 2 % 2]) out_[i] = 0;
      }
    }
    if (lane_ == 0) ptx::TmaStoreWaitRead();
    __syncwarp();
    auto* out = static_cast<uint16_t*>(params_.out) + token * params_.out_token_stride +
                head * params_.out_head_stride;
    constexpr int kFirstLeft = Config::kVBlocks - Config::kOutBuffers;
#pragma unroll
    for (int block = 0; block < kFirstLeft; ++block) {
      Stage(block, scale);
      __syncwarp();
      CopyOut(block, rows, out);
      __syncwarp();
    }
    // What has a buffer to itself is left to the copy engine: a warp's own stores would hold up
    // all that it does through the load and store units.
#pragma unroll
    for (int block = kFirstLeft; block < Config::kVBlocks; ++block) Stage(block, scale);
    if (!__any_sync(~0u, rows < 16)) {  // a vote: the compiler sees that it is uniform
      ptx::FenceProxyAsync();
      __syncwarp();
      if (lane_ == 0) {
#pragma unroll
        for (int block = kFirstLeft; block < Config::kVBlocks; ++block) {
          ptx::TmaStore4(&maps_.out, OutBuffer(block), block * 64, static_cast<int>(token), head,
                         0);
        }
        ptx::TmaStoreCommit();
      }
    } else {
      __syncwarp();
#pragma unroll
      for (int block = kFirstLeft; block < Config::kVBlocks; ++block) CopyOut(block, rows, out);
    }
  }

  // Where the warp's 16 rows of 64 output columns lie, chunks of 16 bytes swizzled by row.
  __device__ __forceinline__ uint32_t OutBuffer(int block) const {
    return shared_.out + (threadIdx.x / 32 - 4) * Config::kWarpOutBytes +
           block % Config::kOutBuffers * (16 * 128);
  }
  // stmatrix: lane l has the address of row l % 8 of matrix l / 8. Matrices are rows 0-7 and 8-15
  // of eight columns, then of the next eight.
  __device__ __forceinline__ void Stage(int block, const float (&scale)[2]) const {
    const uint32_t row = OutBuffer(block) + lane_ % 16 * 128;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (block * 8 + pair * 2 + i / 2) * 4 + i % 2 * 2;
        x[i] = Type::Pack(out_[at] * scale[i % 2], out_[at + 1] * scale[i % 2]);
      }
      ptx::StoreMatrix(row + ((pair * 2 + lane_ / 16) ^ (lane_ % 8)) * 16, x[0], x[1], x[2], x[3]);
    }
  }
  // Those of the rows that exist, in whole lines.
  __device__ __forceinline__ void CopyOut(int block, int rows, uint16_t* out) const {
    const int chunk = lane_ % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane_ / 8 + i * 4;
      const uint4 value =
          ptx::LoadSharedQuad(OutBuffer(block) + row * 128 + (chunk ^ (row % 8)) * 16);
      if (row < rows) {
        ptx::StoreGlobal(out + row * params_.out_token_stride + block * 64 + chunk * 8, value);
      }
    }
  }

  const PrefillParams& params_;
  const PrefillMaps& maps_;
  const PrefillShared<Config>& shared_;
  int group_;
  int lane_;
  float scale_log2_;
  uint64_t q_first_;  // descriptors of the first stages
  uint64_t k_first_;
  uint64_t v_first_;
  uint32_t zero_;  // which the compiler does not know
  PipelinePosition<Config::kStages> k_;
  PipelinePosition<Config::kStages> v_;
  PipelinePosition<Config::kQStages> q_;
  PipelinePosition<PrefillShared<Config>::kWorkSlots> taken_;
  int full_tiles_;    // key tiles before this one are seen in full by all rows,
  int window_tile_;   // unless they lie before this one
  bool add_ = false;  // the next product of probabilities and values adds to out_
  bool moved_ = false;
  float base_[2];  // log2
  float sum_[2];   // of this thread's columns
  float rescale_[2];
  float s_[kKeys / 2];
  uint32_t p_[kSteps][4];
  float out_[Config::kDimV / 2];
};

}  // namespace fathom::kernels::cuda::sm90
