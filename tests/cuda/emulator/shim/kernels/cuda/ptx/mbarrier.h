#pragma once
// Emulated src/kernels/cuda/ptx/mbarrier.h. An mbarrier's 8 bytes hold expected and pending
// arrivals (12 bits each), the phase (1) and the outstanding bytes (32, signed).
#include <cstdint>

#include "cuda_runtime_api.h"

namespace fathom::kernels::cuda::ptx {

struct MbarrierWord {
  int32_t bytes;
  uint32_t pending : 12;
  uint32_t expected : 12;
  uint32_t phase : 1;
  uint32_t magic : 7;
};
static_assert(sizeof(MbarrierWord) == 8);

FATHOM_SIMT_UNWATCHED inline MbarrierWord* Mbarrier(uint32_t address) {
  auto* word = reinterpret_cast<MbarrierWord*>(simt::SharedAt(address, 8));
  if (word->magic != 0x55) simt::Fail("mbarrier used before it was initialised");
  return word;
}
// For simt::Acquire and Release: an even and an odd phase.
inline const void* MbarrierOrder(const MbarrierWord* word, bool odd) {
  return reinterpret_cast<const uint8_t*>(word) + (odd ? 4 : 0);
}
FATHOM_SIMT_UNWATCHED inline void MbarrierSettle(MbarrierWord* word) {
  if (word->pending == 0 && word->bytes == 0) {
    word->phase ^= 1;
    word->pending = word->expected;
  }
}

inline uint8_t* DynamicShared() { return simt::SharedBase(); }
inline uint32_t SharedAddress(const void* pointer) { return simt::AddressOf(pointer); }

FATHOM_SIMT_UNWATCHED inline void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  auto* word = reinterpret_cast<MbarrierWord*>(simt::SharedAt(barrier, 8));
  *word = {0, arrivals, arrivals, 0, 0x55};
}
inline void MbarrierInitFence() {}

FATHOM_SIMT_UNWATCHED inline void MbarrierArrive(uint32_t barrier) {
  MbarrierWord* word = Mbarrier(barrier);
  simt::Release(MbarrierOrder(word, word->phase));
  if (word->pending == 0) simt::Fail("mbarrier: more arrivals than expected");
  --word->pending;
  MbarrierSettle(word);
  simt::Moved();
}
FATHOM_SIMT_UNWATCHED inline void MbarrierExpectBytes(uint32_t barrier, uint32_t bytes) {
  Mbarrier(barrier)->bytes += static_cast<int32_t>(bytes);
  MbarrierArrive(barrier);
}
FATHOM_SIMT_UNWATCHED inline void MbarrierCompleteBytes(uint32_t barrier, uint32_t bytes) {
  MbarrierWord* word = Mbarrier(barrier);
  simt::Release(MbarrierOrder(word, word->phase));
  word->bytes -= static_cast<int32_t>(bytes);
  MbarrierSettle(word);
  simt::Moved();
}
FATHOM_SIMT_UNWATCHED inline bool MbarrierIsIn(const MbarrierWord* word, uint32_t parity) {
  return word->phase == parity;
}
inline void MbarrierWait(uint32_t barrier, uint32_t parity) {
  const MbarrierWord* word = Mbarrier(barrier);
  simt::WaitUntil("mbarrier", [=] { return !MbarrierIsIn(word, parity & 1); });
  simt::Acquire(MbarrierOrder(word, parity & 1));
}

}  // namespace fathom::kernels::cuda::ptx
