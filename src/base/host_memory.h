#pragma once
// Large host buffers: weights, KV pages, activations.
#include <cstddef>

namespace fathom {

// Uninitialised and 64-byte aligned; null when the system has none left. From 2 MiB on the memory
// is aligned to huge pages and asks for them: streaming is twice as fast with fewer TLB misses
// (docs/cpu-kernels.md), and a system that refuses costs nothing. Released by std::free.
void* AllocateHost(size_t bytes);

}  // namespace fathom
