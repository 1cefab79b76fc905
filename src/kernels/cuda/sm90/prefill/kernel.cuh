#pragma once
// Prefill attention for sm_90a: a producer warp loads by TMA, two or three consumer warpgroups of
// 64 query rows each multiply and reduce.
//
// Blocks are persistent and take (query tile, head) pairs from a counter, those with the most keys
// first; the producer runs ahead into the next tile while the consumers finish this one. Keys are
// walked from the end, so that only the first tiles need masks. In each turn a warpgroup issues
// S(n) = Q K(n)' and O += P(n+1) V(n+1) together, and works on S(n)'s softmax while the second
// product still runs; with two warpgroups, named barriers make one's softmax run under the other's
// products.
#include <cuda_runtime.h>

#include "kernels/cuda/prefill_params.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/prefill/config.h"

namespace fathom::kernels::cuda::sm90 {

struct PrefillMaps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
};

// One (query tile, head), as the producer hands it to the consumers.
struct PrefillWork {
  int32_t sequence;  // -1: no more
  int32_t row;       // first query row of the tile, in its sequence
  int32_t head;
  int32_t query_begin;
  int32_t queries;
  int32_t kv_tokens;
  int32_t key_tiles;
  int32_t unused;
};

template <class Config>
struct PrefillShared {
  uint32_t q;         // [kQkBlocks][kRows][64] bf16, swizzled
  uint32_t k;         // [kStages][kQkBlocks][kKeys][64]
  uint32_t v;         // [kStages][kVBlocks][kKeys][64]
  PrefillWork* work;  // [2]
  uint32_t barriers;
  uint32_t unread;  // [kThreads] f32, written to order instructions

  __device__ __forceinline__ explicit PrefillShared(uint8_t* memory) {
    const uint32_t base = ptx::SharedAddress(memory);
    q = (base + 1023) & ~1023u;
    k = q + Config::kQBytes;
    v = k + Config::kStages * Config::kKBytes;
    const uint32_t small = v + Config::kStages * Config::kVBytes;
    work = reinterpret_cast<PrefillWork*>(memory + (small - base));
    barriers = small + 2 * sizeof(PrefillWork);
    unread = small + 512;
  }
  __device__ __forceinline__ uint32_t QFull() const { return barriers; }
  __device__ __forceinline__ uint32_t QEmpty() const { return barriers + 8; }
  __device__ __forceinline__ uint32_t WorkFull(int i) const { return barriers + 16 + i * 8; }
  __device__ __forceinline__ uint32_t WorkEmpty(int i) const { return barriers + 32 + i * 8; }
  __device__ __forceinline__ uint32_t KFull(int i) const { return barriers + 48 + i * 8; }
  __device__ __forceinline__ uint32_t KEmpty(int i) const { return KFull(i) + Config::kStages * 8; }
  __device__ __forceinline__ uint32_t VFull(int i) const {
    return KFull(i) + 2 * Config::kStages * 8;
  }
  __device__ __forceinline__ uint32_t VEmpty(int i) const {
    return KFull(i) + 3 * Config::kStages * 8;
  }

  __device__ __forceinline__ void Initialise() const {
    constexpr int kWarps = Config::kGroups * 4;
    ptx::MbarrierInit(QFull(), 1);
    ptx::MbarrierInit(QEmpty(), kWarps);
    for (int i = 0; i < 2; ++i) {
      ptx::MbarrierInit(WorkFull(i), 1);
      ptx::MbarrierInit(WorkEmpty(i), kWarps);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::MbarrierInit(KFull(i), 1);
      ptx::MbarrierInit(KEmpty(i), kWarps);
      ptx::MbarrierInit(VFull(i), 1);
      ptx::MbarrierInit(VEmpty(i), kWarps);
    }
    ptx::MbarrierInitFence();
  }
};

// Stage and phase of a two-stage pipeline after `count` uses.
struct PipelinePosition {
  uint32_t count = 0;
  __device__ __forceinline__ int Stage() const { return static_cast<int>(count & 1); }
  __device__ __forceinline__ uint32_t Phase() const { return count >> 1 & 1; }
  __device__ __forceinline__ void Next() { ++count; }
};

template <class Config>
class PrefillProducer {
 public:
  __device__ __forceinline__ PrefillProducer(const PrefillParams& params, const PrefillMaps& maps,
                                             const PrefillShared<Config>& shared)
      : params_(params),
        maps_(maps),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        paged_(params.page_table != nullptr),
        box_tokens_(paged_ && params.page_tokens < Config::kKeys
                        ? static_cast<int>(params.page_tokens)
                        : Config::kKeys),
        boxes_(Config::kKeys / box_tokens_) {}

  // The whole warp.
  __device__ __forceinline__ void Run() {
    const int total = *params_.num_tiles * params_.num_heads;
    int index = static_cast<int>(blockIdx.x);
    while (index < total) {
      int next = 0;
      if (lane_ == 0) next = atomicAdd(params_.next, 1);
      const PrefillWork work = Decode(index, total / params_.num_heads);
      Publish(work);
      Load(work);
      // Every item is followed by one fetch: the last of all leaves the counter as it was.
      if (lane_ == 0 && next == total - 1) *params_.next = 0;
      index = __shfl_sync(~0u, next, 0) + static_cast<int>(gridDim.x);
    }
    PrefillWork end = {};
    end.sequence = -1;
    Publish(end);
  }

 private:
  __device__ __forceinline__ PrefillWork Decode(int index, int num_tiles) const {
    const int section = index / (num_tiles * params_.section_heads);
    const int first_head = section * params_.section_heads;
    const int heads = min(params_.section_heads, params_.num_heads - first_head);
    const int rest = index - num_tiles * first_head;
    const PrefillTile tile = params_.tiles[rest / heads];
    PrefillWork work;
    work.sequence = tile.sequence;
    work.row = tile.row;
    work.head = first_head + rest % heads;
    work.query_begin = params_.query_starts[tile.sequence];
    work.queries = params_.query_starts[tile.sequence + 1] - work.query_begin;
    work.kv_tokens = params_.kv_lengths[tile.sequence];
    int keys = work.kv_tokens;
    if (params_.causal) keys += min(work.row + Config::kRows, work.queries) - work.queries;
    work.key_tiles = keys <= 0 ? 0 : (keys + Config::kKeys - 1) / Config::kKeys;
    work.unused = 0;
    return work;
  }

  __device__ __forceinline__ void Publish(const PrefillWork& work) {
    if (lane_ == 0) {
      ptx::MbarrierWait(shared_.WorkEmpty(published_.Stage()), published_.Phase() ^ 1);
      shared_.work[published_.Stage()] = work;
      ptx::MbarrierArrive(shared_.WorkFull(published_.Stage()));
    }
    __syncwarp();
    published_.Next();
  }

  // Page of this lane's box of a key tile, or -1 past the sequence's end.
  __device__ __forceinline__ int32_t PageOf(const PrefillWork& work, int key_tile) const {
    const int token = key_tile * Config::kKeys + lane_ * box_tokens_;
    if (!paged_ || lane_ >= boxes_ || key_tile < 0 || token >= work.kv_tokens) {
      return static_cast<int32_t>(params_.num_pages);
    }
    return params_.page_table[work.sequence * params_.page_table_stride +
                              token / static_cast<int>(params_.page_tokens)];
  }

  template <int kBlocks>
  __device__ __forceinline__ void LoadTile(const CUtensorMap* map, uint32_t target, uint32_t full,
                                           uint32_t empty, uint32_t phase, const PrefillWork& work,
                                           int key_tile, int32_t page) {
    const int kv_head = work.head / (params_.num_heads / params_.num_kv_heads);
    if (lane_ == 0) {
      ptx::MbarrierWait(empty, phase ^ 1);
      ptx::MbarrierExpectBytes(full, kBlocks * Config::kKeys * 128);
    }
    __syncwarp();
    if (lane_ < boxes_) {
      const int row = lane_ * box_tokens_;
      const int token =
          paged_ ? (key_tile * Config::kKeys + row) % static_cast<int>(params_.page_tokens)
                 : params_.kv_starts[work.sequence] + key_tile * Config::kKeys;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::TmaLoad4(target + block * (Config::kKeys * 128) + row * 128, map, full, block * 64,
                      token, kv_head, paged_ ? page : 0, ptx::kL2EvictLast);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void LoadQueries(const PrefillWork& work) {
    if (lane_ == 0) {
      ptx::MbarrierWait(shared_.QEmpty(), query_phase_ ^ 1);
      ptx::MbarrierExpectBytes(shared_.QFull(), Config::kQBytes);
#pragma unroll
      for (int block = 0; block < Config::kQkBlocks; ++block) {
#pragma unroll
        for (int group = 0; group < Config::kGroups; ++group) {
          ptx::TmaLoad4(shared_.q + (block * Config::kRows + group * 64) * 128, &maps_.q,
                        shared_.QFull(), block * 64, work.query_begin + work.row + group * 64,
                        work.head, 0, ptx::kL2EvictFirst);
        }
      }
    }
    __syncwarp();
    query_phase_ ^= 1;
  }

  __device__ __forceinline__ void LoadK(const PrefillWork& work, int tile, int32_t page) {
    LoadTile<Config::kQkBlocks>(&maps_.k, shared_.k + k_.Stage() * Config::kKBytes,
                                shared_.KFull(k_.Stage()), shared_.KEmpty(k_.Stage()), k_.Phase(),
                                work, tile, page);
    k_.Next();
  }
  __device__ __forceinline__ void LoadV(const PrefillWork& work, int tile, int32_t page) {
    LoadTile<Config::kVBlocks>(&maps_.v, shared_.v + v_.Stage() * Config::kVBytes,
                               shared_.VFull(v_.Stage()), shared_.VEmpty(v_.Stage()), v_.Phase(),
                               work, tile, page);
    v_.Next();
  }

  // K of a tile goes before V of the tile before it, as the consumers take them.
  __device__ __forceinline__ void Load(const PrefillWork& work) {
    if (work.key_tiles == 0) return;
    int tile = work.key_tiles - 1;
    int32_t page = PageOf(work, tile);
    LoadK(work, tile, page);
    LoadQueries(work);
    for (; tile > 0; --tile) {
      const int32_t next_page = PageOf(work, tile - 1);
      LoadK(work, tile - 1, next_page);
      LoadV(work, tile, page);
      page = next_page;
    }
    LoadV(work, 0, page);
  }

  const PrefillParams& params_;
  const PrefillMaps& maps_;
  const PrefillShared<Config>& shared_;
  int lane_;
  bool paged_;
  int box_tokens_;
  int boxes_;
  PipelinePosition k_;
  PipelinePosition v_;
  PipelinePosition published_;
  uint32_t query_phase_ = 0;
};

template <class Config>
class PrefillConsumer {
 public:
  static constexpr int kSteps = Config::kKeys / 16;
  static constexpr int kFirstBarrier = 1;    // of the turns between warpgroups, one each
  static constexpr int kOwnBarrier = 1 + 3;  // within a warpgroup, one each

  __device__ __forceinline__ PrefillConsumer(const PrefillParams& params,
                                             const PrefillShared<Config>& shared)
      : params_(params),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(thread_ % 32),
        scale_log2_(params.scale * 1.4426950408889634f) {}

  __device__ __forceinline__ void Run() {
    if (Config::kGroups == 2 && group_ == 1) ptx::BarrierArrive(kFirstBarrier, 256);
    while (true) {
      ptx::MbarrierWait(shared_.WorkFull(taken_.Stage()), taken_.Phase());
      const PrefillWork work = shared_.work[taken_.Stage()];
      __syncwarp();
      if (lane_ == 0) ptx::MbarrierArrive(shared_.WorkEmpty(taken_.Stage()));
      taken_.Next();
      if (__shfl_sync(~0u, work.sequence, 0) < 0) break;
      Tile(work);
    }
  }

 private:
  __device__ __forceinline__ void Release(uint32_t barrier) const {
    if (lane_ == 0) ptx::MbarrierArrive(barrier);
  }

  __device__ __forceinline__ void Tile(const PrefillWork& work) {
#pragma unroll
    for (int i = 0; i < Config::kDimV / 2; ++i) out_[i] = 0;
    peak_[0] = peak_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
    const int key_tiles = __shfl_sync(~0u, work.key_tiles, 0);
    if (key_tiles > 0) {
      // Keys that a row may see; rows of a thread are 8 apart.
      const int row = work.row + group_ * 64 + thread_ / 32 * 16 + lane_ / 4;
      const int diagonal = work.kv_tokens - work.queries + 1 + row;
      limit_[0] = params_.causal ? min(diagonal, work.kv_tokens) : work.kv_tokens;
      limit_[1] = params_.causal ? min(diagonal + 8, work.kv_tokens) : work.kv_tokens;
      // The first tile that every row of the warpgroup sees in full.
      const int first_row = work.row + group_ * 64;
      const int visible = params_.causal
                              ? min(work.kv_tokens - work.queries + 1 + first_row, work.kv_tokens)
                              : work.kv_tokens;
      const int full_tiles = __shfl_sync(~0u, visible < 0 ? 0 : visible / Config::kKeys, 0);

      int tile = key_tiles - 1;
      ptx::MbarrierWait(shared_.QFull(), query_phase_);
      ptx::MbarrierWait(shared_.KFull(k_.Stage()), k_.Phase());
      ptx::WgmmaFence();
      IssueScores();
      ptx::WgmmaWait<0>();
      ptx::WgmmaFenceRegisters(s_);
      Release(shared_.KEmpty(k_.Stage()));
      k_.Next();
      if (tile >= full_tiles) Mask(tile);
      Softmax<true>();
      Pack();
      const int live = __shfl_sync(~0u, work.kv_tokens, 0) - tile * Config::kKeys;
      if (live < Config::kKeys) ZeroDeadValues(live);

      for (--tile; tile >= 0 && tile >= full_tiles; --tile) Turn<true>(tile);
      for (; tile >= 0; --tile) Turn<false>(tile);
      Release(shared_.QEmpty());
      query_phase_ ^= 1;

      ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
      ptx::WgmmaFence();
      IssueValues();
      ptx::WgmmaWait<0>();
      ptx::WgmmaFenceRegisters(out_);
      Release(shared_.VEmpty(v_.Stage()));
      v_.Next();
    }
    Store(work.query_begin + work.row, work.queries - work.row, work.head);
  }

  template <bool kMask>
  __device__ __forceinline__ void Turn(int tile) {
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
    if constexpr (kMask) Mask(tile);
    Softmax<false>();
    // The assembler would move the wait in front of the softmax; it keeps it behind this store,
    // which needs the softmax's sums.
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_.unread + threadIdx.x * 4),
                 "f"(sum_[0] + sum_[1])
                 : "memory");
    ptx::WgmmaWait<0>();
    ptx::WgmmaFenceRegisters(out_);
    Release(shared_.VEmpty(v_.Stage()));
    v_.Next();
    Rescale();
    Pack();
  }

  __device__ __forceinline__ void IssueScores() {
    const uint64_t q = ptx::Descriptor(shared_.q + group_ * (64 * 128));
    const uint64_t k = ptx::Descriptor(shared_.k + k_.Stage() * Config::kKBytes);
#pragma unroll
    for (int block = 0; block < Config::kQkBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::WgmmaSS<Config::kKeys, ptx::Major::kK, ptx::Major::kK>(
            s_, ptx::Advance(q, block * (Config::kRows * 128) + step * 32),
            ptx::Advance(k, block * (Config::kKeys * 128) + step * 32), block + step > 0);
      }
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void IssueValues() {
    const uint64_t v =
        ptx::Descriptor(shared_.v + v_.Stage() * Config::kVBytes, Config::kKeys * 128);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::WgmmaRS<Config::kDimV, ptx::Major::kMn>(out_, p_[step], ptx::Advance(v, step * 2048),
                                                   true);
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void Mask(int tile) {
    const int key = tile * Config::kKeys + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < Config::kKeys / 2; ++i) {
      if (key + i / 4 * 8 + i % 2 >= limit_[i / 2 % 2]) s_[i] = -INFINITY;
    }
  }

  // Turns scores into probabilities; leaves in rescale_ what out_ has to be multiplied with.
  template <bool kFirst>
  __device__ __forceinline__ void Softmax() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = fmaxf(s_[2 * r], s_[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < Config::kKeys / 2; i += 4) {
        peak = fmaxf(peak, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      if constexpr (!kFirst) peak = fmaxf(peak, peak_[r]);
      const float base = peak == -INFINITY ? 0.f : peak * scale_log2_;
      rescale_[r] = kFirst ? 1.f : ptx::Exp2(fmaf(peak_[r], scale_log2_, -base));
      peak_[r] = peak;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Config::kKeys / 2; i += 4) {
        const int at = i + 2 * r;
        s_[at] = ptx::Exp2(fmaf(s_[at], scale_log2_, -base));
        s_[at + 1] = ptx::Exp2(fmaf(s_[at + 1], scale_log2_, -base));
        sum += s_[at] + s_[at + 1];
      }
      sum_[r] = kFirst ? sum : fmaf(sum_[r], rescale_[r], sum);
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

  // Rows past the sequence's end may hold anything, and 0 x NaN is NaN. Every warpgroup clears them
  // all, so that none waits for another.
  __device__ __forceinline__ void ZeroDeadValues(int live) const {
    ptx::MbarrierWait(shared_.VFull(v_.Stage()), v_.Phase());
    const uint32_t v = shared_.v + v_.Stage() * Config::kVBytes;
    for (int block = 0; block < Config::kVBlocks; ++block) {
      for (int i = live * 8 + thread_; i < Config::kKeys * 8; i += 128) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                         v + block * (Config::kKeys * 128) + i * 16),
                     "r"(0)
                     : "memory");
      }
    }
    ptx::FenceProxyAsync();
    ptx::BarrierSync(kOwnBarrier + group_, 128);
  }

  // The tile's rows are tokens [first_token, first_token + rows).
  __device__ __forceinline__ void Store(int first_token, int rows, int head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float scale = sum == 0.f ? 0.f : 1.f / sum;
      const int row = group_ * 64 + thread_ / 32 * 16 + lane_ / 4 + r * 8;
      const bool inside = row < rows;
      const int64_t token = first_token + row;
      if (params_.lse != nullptr && inside && lane_ % 4 == 0) {
        constexpr float kLn2 = 0.6931471805599453f;
        params_.lse[token * params_.num_heads + head] =
            sum == 0.f ? -INFINITY : (peak_[r] * scale_log2_ + log2f(sum)) * kLn2;
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
          x[i] = ptx::PackBf16(out_[at] * scale, out_[at + 1] * scale);
        }
        Transpose(x);
        if (inside) {
          *reinterpret_cast<uint4*>(out + j * 32 + lane_ % 4 * 8) =
              make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }

  // Among four neighbouring lanes: x[i] of lane j becomes x[j] of lane i.
  __device__ __forceinline__ void Transpose(uint32_t (&x)[4]) const {
    const bool odd = lane_ & 1;
    const bool high = lane_ & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t give = odd ? x[i] : x[i + 1];
      const uint32_t take = __shfl_xor_sync(~0u, give, 1);
      (odd ? x[i] : x[i + 1]) = take;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t give = high ? x[i] : x[i + 2];
      const uint32_t take = __shfl_xor_sync(~0u, give, 2);
      (high ? x[i] : x[i + 2]) = take;
    }
  }

  const PrefillParams& params_;
  const PrefillShared<Config>& shared_;
  int group_;
  int thread_;
  int lane_;
  float scale_log2_;
  PipelinePosition k_;
  PipelinePosition v_;
  PipelinePosition taken_;
  uint32_t query_phase_ = 0;
  int limit_[2];
  float peak_[2];
  float sum_[2];  // of this thread's columns
  float rescale_[2];
  float s_[Config::kKeys / 2];
  uint32_t p_[kSteps][4];
  float out_[Config::kDimV / 2];
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void PrefillKernel(const __grid_constant__ PrefillParams params,
                                                   const __grid_constant__ PrefillMaps maps) {
  extern __shared__ uint8_t memory[];
  const PrefillShared<Config> shared(memory);
  if (threadIdx.x == 0) {
    ptx::TmaPrefetchMap(&maps.q);
    ptx::TmaPrefetchMap(&maps.k);
    ptx::TmaPrefetchMap(&maps.v);
    shared.Initialise();
  }
  __syncthreads();
  ptx::WaitForPreviousKernel();
  if (threadIdx.x < 128) {
    ptx::RegistersDecrease<Config::kProducerRegisters>();
    if (threadIdx.x < 32) PrefillProducer<Config>(params, maps, shared).Run();
  } else {
    ptx::RegistersIncrease<Config::kConsumerRegisters>();
    PrefillConsumer<Config>(params, shared).Run();
  }
}

}  // namespace fathom::kernels::cuda::sm90
