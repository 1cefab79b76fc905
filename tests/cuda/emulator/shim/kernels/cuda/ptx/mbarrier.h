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

inline MbarrierWord* Mbarrier(uint32_t address) {
  auto* word = reinterpret_cast<MbarrierWord*>(simt::SharedAt(address, 8));
  if (word->magic != 0x55) simt::Fail("mbarrier used before it was initialised");
  return word;
}
inline void MbarrierSettle(MbarrierWord* word) {
  if (word->pending == 0 && word->bytes == 0) {
    word->phase ^= 1;
    word->pending = word->expected;
  }
}

inline uint8_t* DynamicShared() { return simt::SharedBase(); }
inline uint32_t SharedAddress(const void* pointer) { return simt::AddressOf(pointer); }

inline void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  auto* word = reinterpret_cast<MbarrierWord*>(simt::SharedAt(barrier, 8));
  *word = {0, arrivals, arrivals, 0, 0x55};
}
inline void MbarrierInitFence() {}

inline void MbarrierArrive(uint32_t barrier) {
  MbarrierWord* word = Mbarrier(barrier);
  if (word->pending == 0) simt::Fail("mbarrier: more arrivals than expected");
  --word->pending;
  MbarrierSettle(word);
  simt::Moved();
}
inline void MbarrierExpectBytes(uint32_t barrier, uint32_t bytes) {
  Mbarrier(barrier)->bytes += static_cast<int32_t>(bytes);
  MbarrierArrive(barrier);
}
inline void MbarrierCompleteBytes(uint32_t barrier, uint32_t bytes) {
  MbarrierWord* word = Mbarrier(barrier);
  word->bytes -= static_cast<int32_t>(bytes);
  MbarrierSettle(word);
  simt::Moved();
}
inline void MbarrierWait(uint32_t barrier, uint32_t parity) {
  simt::WaitUntil("mbarrier", [&] { return Mbarrier(barrier)->phase != (parity & 1); });
}

}  // namespace fathom::kernels::cuda::ptx
