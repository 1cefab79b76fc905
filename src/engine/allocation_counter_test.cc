// Replaces the global operator new of the test program; a file of its own, so that the compiler
// cannot inline one half of a pair.
#include "engine/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace fathom::engine {

thread_local bool counting_allocations = false;
std::atomic<int> counted_allocations{0};

}  // namespace fathom::engine

void* operator new(size_t size) {
  if (fathom::engine::counting_allocations) ++fathom::engine::counted_allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
