#include "base/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace fathom {

void* AllocateHost(size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  const size_t rounded = (std::max(bytes, kLine) + alignment - 1) / alignment * alignment;
  if (rounded < bytes) return nullptr;  // overflow
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory != nullptr && alignment == kHugePage) {
    static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
  }
  return memory;
}

}  // namespace fathom
