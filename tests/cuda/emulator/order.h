#pragma once
// What happens before what, told to ThreadSanitizer, so that the emulated kernels' accesses to
// memory are checked for races (preset tsan): each emulated thread and each bulk copy is a fiber of
// its own, switching between fibers orders nothing, and every barrier of the emulator orders
// exactly those who meet there. That covers what compute-sanitizer's racecheck does not follow:
// named barriers at which some threads only arrive, mbarriers, matrix operands, and global memory.
//
// Shuffles, votes and matrix instructions order nothing; __syncwarp does, atomics do (as if each
// had a fence). Without the sanitizer (FATHOM_SIMT_WATCHED, from CMake) all of this is nothing.
#include <cstddef>

// For functions that touch what stands for hardware state, or that are too hot to be watched.
#define FATHOM_SIMT_UNWATCHED __attribute__((no_sanitize("thread"), noinline))

#ifdef FATHOM_SIMT_WATCHED
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace fathom::simt {

#ifdef FATHOM_SIMT_WATCHED
inline constexpr bool kWatched = true;
inline void* CurrentFiber() { return __tsan_get_current_fiber(); }
inline void* NewFiber() { return __tsan_create_fiber(0); }
inline void EndFiber(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void SwitchFiber(void* fiber) {
  __tsan_switch_to_fiber(fiber, 1);  // 1: the switch itself orders nothing
}
inline void Acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
inline void Release(const void* at) { __tsan_release(const_cast<void*>(at)); }
inline void TouchRead(const void* from, size_t bytes) {
  __tsan_read_range(const_cast<void*>(from), bytes);
}
inline void TouchWrite(void* to, size_t bytes) { __tsan_write_range(to, bytes); }
#else
inline constexpr bool kWatched = false;
inline void* CurrentFiber() { return nullptr; }
inline void* NewFiber() { return nullptr; }
inline void EndFiber(void*) {}
inline void SwitchFiber(void*) {}
inline void Acquire(const void*) {}
inline void Release(const void*) {}
inline void TouchRead(const void*, size_t) {}
inline void TouchWrite(void*, size_t) {}
#endif

// The emulator's own state, which all emulated threads share: not a kernel's access.
class Unwatched {
 public:
#ifdef FATHOM_SIMT_WATCHED
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace fathom::simt
