#pragma once
// What the warps of a latent decode block share, and the copies into it.
#include <cuda_runtime.h>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/sm80/decode_latent/config.h"

namespace fathom::kernels::cuda::sm80 {

template <class Config>
struct LatentShared {
  uint32_t ring;     // [kSlots][kGroupKeys] keys, 16-byte chunks swizzled within 128 bytes
  uint32_t scores;   // [kQuarters][kRows][kStepKeys] f32; of the first quarter's rows, later P
  uint32_t factors;  // [kRows] f32: what a step's new base makes of the output
  uint32_t states;   // [kRows] an item's base (log2) and sum

  __device__ __forceinline__ explicit LatentShared(const uint8_t* memory) {
    ring = (ptx::SharedAddress(memory) + 127) & ~127u;  // steps flip bits of swizzled addresses
    scores = ring + Config::kSlots * Config::kSlotBytes;
    factors = scores + Config::kScoreBytes;
    states = factors + Config::kRows * 4;
  }
  __device__ __forceinline__ uint32_t Slot(int slot) const {
    return ring + slot * Config::kSlotBytes;
  }
  // 16-byte chunk of a slot's key. Neither eight keys' chunks nor eight chunks of a key meet in a
  // bank.
  __device__ __forceinline__ static uint32_t Chunk(int key, int chunk) {
    return key * Config::kKeyBytes + chunk / 8 * 128 + (((chunk % 8) ^ (key & 7)) << 4);
  }
  // Score of a row and key of a step. As written by a product's accumulators (rows two apart, eight
  // keys) and as read along a row, a warp's words lie in different banks.
  __device__ __forceinline__ uint32_t Score(int quarter, int row, int key) const {
    return scores +
           ((quarter * Config::kRows + row) * Config::kStepKeys + (key ^ (row >> 1 & 3) * 8)) * 4;
  }
  // Eight keys' probabilities of a row, 16 bits: over its scores of the first quarter.
  __device__ __forceinline__ uint32_t Probabilities(int row, int chunk) const {
    static_assert(Config::kStepKeys * 4 == 128);
    return scores + row * 128 + ((chunk ^ (row & 7)) << 4);
  }
};

// The part's keys in groups of 16, in the order in which they are taken: the keys of each step of
// 32, and zeros where a sequence ends within one. Each warp copies two keys of a group.
template <class Config>
class LatentSource {
 public:
  __device__ __forceinline__ LatentSource(const DecodeParams& params,
                                          const LatentShared<Config>& shared,
                                          const DecodePart& part)
      : params_(params),
        shared_(shared),
        sequence_(part.sequence),
        key_(part.tile * Config::kTile),
        kv_tokens_(part.kv_tokens),
        left_(part.num_tiles),
        pages_(params.page_table + part.sequence * params.page_table_stride) {
    while (1 << page_shift_ < params.page_tokens) ++page_shift_;
    page_ = PageOf();
#pragma unroll 1
    for (int i = 0; i < Config::kSlots; ++i) Load();
  }

  // Waits for the two groups of the next step; all threads call it.
  __device__ __forceinline__ void Take() {
    ptx::CopyWait<Config::kSlots - 2>();
    __syncthreads();
  }
  // When nobody needs them any more.
  __device__ __forceinline__ void Release() {
    __syncthreads();
    Load();
    Load();
    slot_ = Next(Next(slot_));
  }
  // Of half of the step's keys.
  __device__ __forceinline__ uint32_t Slot(int half) const {
    return shared_.Slot(half == 0 ? slot_ : Next(slot_));
  }

 private:
  __device__ __forceinline__ static int Next(int slot) {
    return slot + 1 == Config::kSlots ? 0 : slot + 1;
  }
  // This thread's key of a group, and the first 16 bytes of it; others are 256 further on each.
  __device__ __forceinline__ static int Row() { return static_cast<int>(threadIdx.x / 16); }
  __device__ __forceinline__ static int Chunk() { return static_cast<int>(threadIdx.x % 16); }
  __device__ __forceinline__ bool Live() const { return key_ + Row() < kv_tokens_; }
  // Of a key that there is not: any page, nothing is read.
  __device__ __forceinline__ int32_t PageOf() const {
    return left_ > 0 && Live() ? pages_[(key_ + Row()) >> page_shift_] : 0;
  }

  // One group of copies, empty behind the part's end: groups are counted.
  __device__ __forceinline__ void Load() {
    if (left_ > 0) {
      const bool live = Live();
      const int64_t token = (key_ + Row()) & (params_.page_tokens - 1);
      const auto source = [&](const PagedPlane& plane) {
        return static_cast<const char*>(plane.base) + page_ * plane.page_stride_bytes +
               token * plane.token_stride_bytes + Chunk() * 16;
      };
      const uint32_t target =
          shared_.Slot(load_slot_) + LatentShared<Config>::Chunk(Row(), Chunk());
      const char* latents = source(params_.plane[0]);
      constexpr int kLatentBytes = Config::kDimV * 2;
#pragma unroll
      for (int at = 0; at < kLatentBytes; at += 256) {
        ptx::CopyAsync(target + at, latents + at, live);
      }
      if (Chunk() < Config::kRope / 8) {
        ptx::CopyAsync(target + kLatentBytes, source(params_.plane[1]), live);
      }
      Advance();
    }
    ptx::CopyCommit();
    load_slot_ = Next(load_slot_);
  }

  __device__ __forceinline__ void Advance() {
    key_ += Config::kGroupKeys;
    if (key_ % Config::kStepKeys == 0 && (key_ % Config::kTile == 0 || key_ >= kv_tokens_)) {
      --left_;
      if (left_ > 0 && key_ >= kv_tokens_) {
        do {
          kv_tokens_ = params_.kv_lengths[++sequence_];
        } while (kv_tokens_ == 0);
        pages_ = params_.page_table + sequence_ * params_.page_table_stride;
        key_ = 0;
      }
    }
    page_ = PageOf();  // before it is needed: behind the other copies of this group
  }

  const DecodeParams& params_;
  const LatentShared<Config>& shared_;
  int page_shift_ = 0;  // log2 of page_tokens, a power of two
  int sequence_;
  int key_;  // first of the next group
  int kv_tokens_;
  int left_;              // tiles
  const int32_t* pages_;  // of the sequence
  int32_t page_;
  int slot_ = 0;
  int load_slot_ = 0;
};

}  // namespace fathom::kernels::cuda::sm80
