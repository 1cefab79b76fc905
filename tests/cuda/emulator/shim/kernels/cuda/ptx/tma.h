#pragma once
// Emulated src/kernels/cuda/ptx/tma.h.
#include <cuda.h>

#include "kernels/cuda/ptx/mbarrier.h"

namespace fathom::kernels::cuda::ptx {

inline constexpr uint64_t kL2EvictNormal = 0;
inline constexpr uint64_t kL2EvictFirst = 1;
inline constexpr uint64_t kL2EvictLast = 2;

inline void TmaPrefetchMap(const CUtensorMap*) {}

// 16-byte chunk i of the 128-byte row r lies at chunk i ^ (r % 8), rows counted from addresses.
inline uint32_t SwizzledOffset(uint32_t address, int swizzle_bytes) {
  if (swizzle_bytes == 128) return address ^ (address >> 3 & 0x70);
  if (swizzle_bytes == 64) return address ^ (address >> 3 & 0x30);
  if (swizzle_bytes == 32) return address ^ (address >> 3 & 0x10);
  return address;
}

// Copies run on the scheduler's stack, whose use is nobody's access: they say what they write.
FATHOM_SIMT_UNWATCHED inline void CopyBox(uint32_t destination, const CUtensorMap& map,
                                          const int (&at)[4]) {
  const int row_bytes = map.box[0] * map.element_bytes;
  if (destination % 128 != 0) simt::Fail("box not at a multiple of 128 bytes");
  if (map.swizzle_bytes != 0 && row_bytes > map.swizzle_bytes) simt::Fail("box wider than swizzle");
  uint32_t offset = 0;
  for (int c3 = 0; c3 < map.box[3]; ++c3) {
    for (int c2 = 0; c2 < map.box[2]; ++c2) {
      for (int c1 = 0; c1 < map.box[1]; ++c1) {
        for (int c0 = 0; c0 < row_bytes; c0 += 16, offset += 16) {
          const int64_t x[4] = {at[0] + c0 / map.element_bytes, at[1] + c1, at[2] + c2, at[3] + c3};
          uint4 value = {0, 0, 0, 0};
          bool inside = true;
          int64_t from = x[0] * map.element_bytes;
          for (int d = 0; d < 4; ++d) {
            inside = inside && x[d] >= 0 && x[d] < map.extents[d];
            if (d > 0) from += x[d] * map.strides[d];
          }
          if (inside) std::memcpy(&value, map.base + from, 16);
          const uint32_t to = SwizzledOffset(destination + offset, map.swizzle_bytes);
          uint8_t* const at_shared = simt::SharedAt(to, 16);
          simt::CheckProxy(to, 16, "copy");
          simt::TouchWrite(at_shared, 16);
          std::memcpy(at_shared, &value, 16);
        }
      }
    }
  }
}
FATHOM_SIMT_UNWATCHED inline uint32_t BoxBytes(const CUtensorMap& map) {
  return static_cast<uint32_t>(map.box[0] * map.box[1] * map.box[2] * map.box[3] *
                               map.element_bytes);
}

inline void TmaLoad4(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int c0, int c1,
                     int c2, int c3, uint64_t) {
  const int rank = simt::CtaRank();
  // The map is on the stack of a thread that may end first.
  simt::Later([ =, box = *map ]() __attribute__((no_sanitize("thread"))) {
    CopyBox(simt::MapToRank(destination, rank), box, {c0, c1, c2, c3});
    MbarrierCompleteBytes(simt::MapToRank(barrier, rank), BoxBytes(box));
  });
}

// Boxes are read when they are committed, or at the latest moment, when they are waited for: the
// seed chooses.
FATHOM_SIMT_UNWATCHED inline void WriteBox(const CUtensorMap& map, uint32_t source,
                                           const int (&at)[4]) {
  const int row_bytes = map.box[0] * map.element_bytes;
  if (source % 128 != 0) simt::Fail("box not at a multiple of 128 bytes");
  if (map.box[2] != 1 || map.box[3] != 1) simt::Fail("boxes of several heads are not written");
  uint32_t offset = 0;
  for (int c1 = 0; c1 < map.box[1]; ++c1) {
    for (int c0 = 0; c0 < row_bytes; c0 += 16, offset += 16) {
      const int64_t x[4] = {at[0] + c0 / map.element_bytes, at[1] + c1, at[2], at[3]};
      bool inside = true;
      int64_t to = x[0] * map.element_bytes;
      for (int d = 0; d < 4; ++d) {
        inside = inside && x[d] >= 0 && x[d] < map.extents[d];
        if (d > 0) to += x[d] * map.strides[d];
      }
      const uint32_t at_source = SwizzledOffset(source + offset, map.swizzle_bytes);
      const uint8_t* const from = simt::SharedAt(at_source, 16);
      simt::CheckProxy(at_source, 16, "copy");
      simt::TouchRead(from, 16);
      if (inside) std::memcpy(const_cast<uint8_t*>(map.base) + to, from, 16);
    }
  }
}
inline void TmaStore4(const CUtensorMap* map, uint32_t source, int c0, int c1, int c2, int c3) {
  simt::IssueCopy([=] { WriteBox(*map, source, {c0, c1, c2, c3}); });
}
inline void TmaStoreCommit() {
  simt::CommitCopies();
  if (simt::Random() % 2 == 0) simt::WaitCopies(0);
}
inline void TmaStoreWaitRead() { simt::WaitCopies(0); }

inline void FenceProxyAsync() { simt::FenceProxy(); }

}  // namespace fathom::kernels::cuda::ptx
