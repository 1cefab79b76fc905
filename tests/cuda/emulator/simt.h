#pragma once
// A functional model of a CUDA block on the host, so that kernels can be checked without a GPU.
//
// Every thread is a fiber; all of them run on the caller's thread, in an order that changes with
// the seed. Collectives (shuffles, barriers, mbarriers, matrix instructions) wait by yielding. What
// the hardware does asynchronously happens here at a moment the seed chooses between the earliest
// and the latest that the hardware may choose: bulk copies some turns after they were issued,
// wgmma between its commit and its wait. A kernel that reads too early, or overwrites what is still
// being read, gives wrong results for some seeds. Shared memory starts as NaN.
//
// Built with ThreadSanitizer, it also finds accesses that no barrier orders (order.h).
//
// Ordinary stores to shared memory are another proxy than copies and matrix operands: what a thread
// stores is theirs only behind its FenceProxyAsync. Reading or overwriting it before fails.
//
// Not modelled: time, registers.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "order.h"

namespace fathom::simt {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline constexpr int kWarp = 32;
inline constexpr size_t kSharedBytes = 228 * 1024;

void SetSeed(uint64_t seed);
uint64_t Random();

// Runs a kernel body once a thread; `together` blocks at the same time.
void RunGrid(Dim3 grid, unsigned threads, size_t shared_bytes, unsigned together,
             const std::function<void()>& body);

[[noreturn]] void Fail(const std::string& what);  // with the thread's coordinates

// The running thread.
int Lane();
int Warp();
int CtaRank();  // among the blocks that run together
void Yield();
void Moved();  // something changed that others may wait for
// Yields until `ready`; `what` is named when nothing moves any more.
template <class Ready>
void WaitUntil(const char* what, Ready ready);
void SetWaiting(const char* what);

// Shared memory of the running thread's block. Shared addresses are offsets into it; those of
// another block that runs carry its rank.
uint8_t* SharedBase();
size_t SharedLimit();
uint32_t AddressOf(const void* pointer);
uint8_t* SharedAt(uint32_t address, size_t bytes);
uint32_t MapToRank(uint32_t address, int rank);

// The running thread has stored there; its stores become the asynchronous proxy's; that proxy reads
// or writes there (`what` says who), which fails where a store has had no fence.
void NoteStore(uint32_t address, size_t bytes);
void FenceProxy();
void CheckProxy(uint32_t address, size_t bytes, const char* what);

// Collectives of the running warp: out[i] is lane i's bytes. Only __syncwarp orders memory.
void GatherWarp(const void* mine, size_t bytes, void* out);
void SyncWarp();
// Of `threads` threads that meet at barrier `id` of the block.
void BarrierSync(int id, int threads);
void BarrierArrive(int id, int threads);
// Of all threads of the block: out[i] is thread i's bytes.
void GatherBlock(const void* mine, size_t bytes, void* out);

// Runs `action` in some later turn.
void Later(std::function<void()> action);

// Matrix products of the running thread's warpgroup, run in order.
void IssueMatrix(std::function<void()> product);
void CommitMatrix();
void WaitMatrix(int pending);

// Copies of the running thread (cp.async), run in order.
void IssueCopy(std::function<void()> copy);
void CommitCopies();
void WaitCopies(int pending);

// Something made once for all threads of the warpgroup: the n-th call of each thread shares it.
void* SharedOfWarpgroup(size_t bytes, const std::function<void(void*)>& make, uint64_t index);
uint64_t NextMatrixIndex();

template <class Ready>
void WaitUntil(const char* what, Ready ready) {
  SetWaiting(what);
  while (!ready()) Yield();
  SetWaiting(nullptr);
}

}  // namespace fathom::simt

extern fathom::simt::Dim3 threadIdx, blockIdx, blockDim, gridDim;
