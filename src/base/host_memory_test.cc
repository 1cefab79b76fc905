#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace fathom {
namespace {

TEST(HostMemory, IsAlignedAndWritableInFull) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65}, (size_t{2} << 20) + 3}) {
    void* memory = AllocateHost(bytes);
    ASSERT_NE(memory, nullptr);
    const size_t alignment = bytes >= (size_t{2} << 20) ? size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % alignment, 0U) << bytes;
    std::memset(memory, 1, bytes);
    std::free(memory);
  }
  EXPECT_EQ(AllocateHost(std::numeric_limits<size_t>::max()), nullptr);
}

}  // namespace
}  // namespace fathom
