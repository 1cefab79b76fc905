#include "simt.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

fathom::simt::Dim3 threadIdx, blockIdx, blockDim, gridDim;

// void fathom_switch_stack(void** save, void* load): the callee-saved registers of the System V
// ABI go to the old stack and come from the new one.
asm(R"(
.text
.globl fathom_switch_stack
fathom_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void fathom_switch_stack(void** save, void* load);

#ifdef FATHOM_SIMT_WATCHED
// Every warpgroup of prefill clears the same rows of a tile that all of them multiply, so that none
// waits for another: zeros over zeros.
extern "C" const char* __tsan_default_suppressions() { return "race:*ZeroDeadValues*\n"; }
#endif

namespace fathom::simt {
namespace {

constexpr size_t kStackBytes = (kWatched ? 512 : 64) * 1024;
constexpr size_t kGatherBytes = 64;  // of one lane
constexpr uint32_t kSharedStart =
    1024;  // as on the chip, dynamic shared memory does not start at 0

struct WarpState {
  uint8_t gathered[2][kWarp][kGatherBytes];
  int arrived = 0;
  int alive = 0;
  uint64_t generation = 0;
  uint64_t order[2];  // addresses for Acquire and Release: even and odd generations
};

struct Barrier {
  int arrived = 0;
  int threads = 0;
  uint64_t generation = 0;
  uint64_t order[2];
};

struct Warpgroup {
  struct Made {
    std::unique_ptr<uint8_t[]> data;
    int uses = 0;
  };
  std::map<uint64_t, Made> made;
};

// Who stored two bytes of shared memory last, and how many fences it had had.
struct LastStore {
  uint32_t thread = 0;  // of the block, plus one
  uint32_t fences = 0;
};

struct Block {
  Dim3 index;
  int rank = 0;
  std::vector<uint8_t> shared;
  std::vector<LastStore> stores;  // [bytes of shared / 2]
  std::vector<uint32_t> fences;   // of each thread
  std::vector<WarpState> warps;
  std::vector<Warpgroup> warpgroups;
  Barrier barriers[17];  // 16: of GatherBlock
  std::vector<uint8_t> gathered[2];
};

struct MatrixGroup {
  std::vector<std::function<void()>> products;
  bool done = false;
};

struct Thread {
  void* stack_top = nullptr;
  void* fiber = nullptr;
  uint8_t* stack = nullptr;
  Block* block = nullptr;
  unsigned index = 0;
  bool finished = false;
  const char* waiting = nullptr;
  std::vector<std::function<void()>> issued;  // not committed yet
  std::deque<MatrixGroup> groups;
  std::vector<std::function<void()>> copies;  // not committed yet
  std::deque<std::vector<std::function<void()>>> copy_groups;
  uint64_t matrix_index = 0;
  uint64_t commits = 0;
};

struct Delayed {
  uint64_t turn = 0;
  std::function<void()> action;
  std::unique_ptr<uint64_t> order = std::make_unique<uint64_t>();
};

uint64_t g_state = 1;
uint64_t g_seed = 1;
Thread* g_thread = nullptr;
void* g_scheduler = nullptr;
void* g_scheduler_fiber = nullptr;
uint64_t g_begin;  // what came before the blocks that run is ordered before what they do
uint64_t g_end;    // what threads and copies did is ordered before what follows the grid
const std::function<void()>* g_body = nullptr;
std::vector<Thread> g_threads;
std::vector<Block> g_blocks;
std::vector<Delayed> g_delayed;
uint64_t g_turn = 0;
bool g_moved = false;  // something happened in this round
size_t g_shared_bytes = 0;
std::vector<uint8_t*> g_stacks;
std::deque<void*> g_retired;
std::vector<void*> g_idle_fibers;

// Making and ending a fiber costs ThreadSanitizer 800 KB each time. One that ended with the blocks
// before, which are all ordered before these, serves again.
void* TakeFiber() {
  if (g_idle_fibers.empty()) return NewFiber();
  void* const fiber = g_idle_fibers.back();
  g_idle_fibers.pop_back();
  return fiber;
}

void Entry() {
  Acquire(&g_begin);
  (*g_body)();
  g_thread->finished = true;
  g_moved = true;
  Release(&g_end);
  SwitchFiber(g_scheduler_fiber);
  fathom_switch_stack(&g_thread->stack_top, g_scheduler);
  std::abort();
}

void Start(Thread* thread, size_t i) {
  while (g_stacks.size() <= i) {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) Fail("no memory for stacks");
    g_stacks.push_back(static_cast<uint8_t*>(memory));
  }
  thread->stack = g_stacks[i];
  auto** top = reinterpret_cast<void**>(thread->stack + kStackBytes);
  *--top = nullptr;  // aligns the stack as a call would
  *--top = reinterpret_cast<void*>(&Entry);
  for (int r = 0; r < 6; ++r) *--top = nullptr;
  thread->stack_top = top;
  thread->fiber = TakeFiber();
}

// ThreadSanitizer forgets how an ended fiber came to its accesses and then reports none of them: it
// ends late. It knows 8128 at a time.
void Retire(void* fiber) {
  constexpr size_t kKept = 4096;
  g_retired.push_back(fiber);
  while (g_retired.size() > kKept) {
    EndFiber(g_retired.front());
    g_retired.pop_front();
  }
}

void Resume(Thread* thread) {
  g_thread = thread;
  threadIdx = Dim3(thread->index, 0, 0);
  blockIdx = thread->block->index;
  g_scheduler_fiber = CurrentFiber();
  SwitchFiber(thread->fiber);
  fathom_switch_stack(&g_scheduler, thread->stack_top);
  if (thread->finished) Retire(thread->fiber);
  g_thread = nullptr;
}

// As nobody's access: it comes after what its thread did before, and before who waits for it.
void RunCopy(Delayed& delayed) {
  void* const scheduler = CurrentFiber();
  void* const fiber = TakeFiber();
  SwitchFiber(fiber);
  Acquire(&g_begin);
  Acquire(delayed.order.get());
  delayed.action();
  delayed.action = nullptr;
  Release(&g_end);
  SwitchFiber(scheduler);
  Retire(fiber);
}

void RunDelayed() {
  for (size_t i = 0; i < g_delayed.size();) {
    if (g_delayed[i].turn <= g_turn) {
      const Unwatched emulator;
      Delayed delayed = std::move(g_delayed[i]);
      g_delayed.erase(g_delayed.begin() + static_cast<std::ptrdiff_t>(i));
      RunCopy(delayed);
      g_moved = true;
    } else {
      ++i;
    }
  }
}

void ReportAndAbort() {
  std::map<std::string, int> waits;
  for (const Thread& t : g_threads) {
    if (!t.finished) {
      ++waits["block " + std::to_string(t.block->index.x) + " warp " +
              std::to_string(t.index / kWarp) + ": " + (t.waiting ? t.waiting : "?")];
    }
  }
  std::fprintf(stderr, "simt: nothing moves any more (seed %llu):\n",
               static_cast<unsigned long long>(g_seed));
  for (const auto& [what, count] : waits) std::fprintf(stderr, "  %3d x %s\n", count, what.c_str());
  std::abort();
}

void RunBlocks(unsigned first, unsigned count, unsigned threads, unsigned grid_x) {
  g_blocks = std::vector<Block>(count);
  for (unsigned i = 0; i < count; ++i) {
    Block& block = g_blocks[i];
    block.index = Dim3((first + i) % grid_x, (first + i) / grid_x, 0);
    block.rank = static_cast<int>(i);
    block.shared.assign(kSharedStart + g_shared_bytes, 0xff);
    block.stores.resize(block.shared.size() / 2 + 1);
    block.fences.resize(threads);
    block.warps.resize((threads + kWarp - 1) / kWarp);
    for (unsigned t = 0; t < threads; ++t) ++block.warps[t / kWarp].alive;
    block.warpgroups.resize((threads + 127) / 128);
  }
  g_threads = std::vector<Thread>(size_t{count} * threads);
  for (size_t i = 0; i < g_threads.size(); ++i) {
    g_threads[i].block = &g_blocks[i / threads];
    g_threads[i].index = static_cast<unsigned>(i % threads);
    Start(&g_threads[i], i);
  }
  Release(&g_begin);
  const unsigned warps = (threads + kWarp - 1) / kWarp * count;
  std::vector<unsigned> order(warps);
  for (unsigned i = 0; i < warps; ++i) order[i] = i;
  const unsigned warps_a_block = (threads + kWarp - 1) / kWarp;
  size_t left = g_threads.size();
  int still = 0;
  while (left > 0) {
    ++g_turn;
    g_moved = false;
    for (unsigned i = warps; i > 1; --i) std::swap(order[i - 1], order[Random() % i]);
    for (const unsigned w : order) {
      if (Random() % 4 == 0) continue;  // some warps are slower
      const unsigned block = w / warps_a_block;
      const unsigned begin = w % warps_a_block * kWarp;
      for (unsigned t = begin; t < std::min(begin + kWarp, threads); ++t) {
        Thread& thread = g_threads[size_t{block} * threads + t];
        if (thread.finished) continue;
        Resume(&thread);
        if (thread.finished) {
          --left;
          --thread.block->warps[t / kWarp].alive;
        }
      }
    }
    RunDelayed();
    still = g_moved || !g_delayed.empty() ? 0 : still + 1;
    if (still > 2000) ReportAndAbort();
  }
  const Unwatched emulator;
  for (Delayed& d : g_delayed) RunCopy(d);  // a block may not end with copies under way
  if (!g_delayed.empty()) {
    std::fprintf(stderr, "simt: a block ended with %zu copies under way\n", g_delayed.size());
    std::abort();
  }
}

}  // namespace

void SetSeed(uint64_t seed) { g_seed = seed, g_state = seed * 2 + 1; }

uint64_t Random() {
  g_state += 0x9e3779b97f4a7c15ull;
  uint64_t x = g_state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void RunGrid(Dim3 grid, unsigned threads, size_t shared_bytes, unsigned together,
             const std::function<void()>& body) {
  if (shared_bytes > kSharedBytes - 1024) Fail("more shared memory than a block may have");
  gridDim = grid;
  blockDim = Dim3(threads);
  g_body = &body;
  g_shared_bytes = shared_bytes;
  const unsigned blocks = grid.x * grid.y;
  for (unsigned b = 0; b < blocks; b += together) {
    RunBlocks(b, together, threads, grid.x);
    Acquire(&g_end);
    g_idle_fibers.insert(g_idle_fibers.end(), g_retired.begin(), g_retired.end());
    g_retired.clear();
  }
}

void Fail(const std::string& what) {
  std::fprintf(stderr, "simt: block %u thread %u (seed %llu): %s\n", blockIdx.x, threadIdx.x,
               static_cast<unsigned long long>(g_seed), what.c_str());
  std::abort();
}

void Moved() { g_moved = true; }

int Lane() { return static_cast<int>(g_thread->index % kWarp); }
int Warp() { return static_cast<int>(g_thread->index / kWarp); }
int CtaRank() { return g_thread->block->rank; }
void SetWaiting(const char* what) { g_thread->waiting = what; }

void Yield() {
  SwitchFiber(g_scheduler_fiber);
  fathom_switch_stack(&g_thread->stack_top, g_scheduler);
}

uint8_t* SharedBase() { return g_thread->block->shared.data() + kSharedStart; }
size_t SharedLimit() { return g_shared_bytes; }

uint32_t AddressOf(const void* pointer) {
  const auto& shared = g_thread->block->shared;
  const auto* p = static_cast<const uint8_t*>(pointer);
  if (p < shared.data() || p > shared.data() + shared.size()) Fail("not a shared address");
  return static_cast<uint32_t>(p - shared.data());
}

uint8_t* SharedAt(uint32_t address, size_t bytes) {
  const uint32_t tag = address >> 24;
  if (tag > g_blocks.size()) Fail("address of a block that does not run");
  Block* block = tag != 0 ? &g_blocks[tag - 1] : g_thread->block;
  const uint32_t offset = address & 0xffffff;
  if (offset < kSharedStart || offset + bytes > block->shared.size()) {
    Fail("shared address " + std::to_string(offset) + " + " + std::to_string(bytes) +
         " outside the block's " + std::to_string(block->shared.size() - kSharedStart) + " bytes");
  }
  if (bytes != 0 && offset % std::min<size_t>(bytes, 16) != 0 && (bytes & (bytes - 1)) == 0) {
    Fail("misaligned shared address");
  }
  return block->shared.data() + offset;
}

namespace {
Block& BlockOf(uint32_t address) {
  const uint32_t tag = address >> 24;
  return tag != 0 ? g_blocks[tag - 1] : *g_thread->block;
}
}  // namespace

FATHOM_SIMT_UNWATCHED void NoteStore(uint32_t address, size_t bytes) {
  Block& block = *g_thread->block;
  const uint32_t offset = address & 0xffffff;
  for (uint32_t at = offset / 2; at < (offset + bytes + 1) / 2; ++at) {
    block.stores[at] = {g_thread->index + 1, block.fences[g_thread->index]};
  }
}

FATHOM_SIMT_UNWATCHED void FenceProxy() { ++g_thread->block->fences[g_thread->index]; }

FATHOM_SIMT_UNWATCHED void CheckProxy(uint32_t address, size_t bytes, const char* what) {
  const Block& block = BlockOf(address);
  const uint32_t offset = address & 0xffffff;
  for (uint32_t at = offset / 2; at < (offset + bytes + 1) / 2; ++at) {
    const LastStore& store = block.stores[at];
    if (store.thread != 0 && store.fences == block.fences[store.thread - 1]) {
      Fail(std::string(what) + " of shared address " + std::to_string(at * 2) + ", which thread " +
           std::to_string(store.thread - 1) +
           " of the block has stored without a proxy fence since");
    }
  }
}

uint32_t MapToRank(uint32_t address, int rank) {
  return (address & 0xffffff) | static_cast<uint32_t>(rank + 1) << 24;
}

void GatherWarp(const void* mine, size_t bytes, void* out) {
  const Unwatched emulator;
  WarpState& warp = g_thread->block->warps[g_thread->index / kWarp];
  const uint64_t generation = warp.generation;
  auto& buffer = warp.gathered[generation % 2];
  if (bytes > kGatherBytes) Fail("gather too wide");
  std::memcpy(buffer[g_thread->index % kWarp], mine, bytes);
  if (++warp.arrived >= warp.alive) {
    warp.arrived = 0;
    ++warp.generation;
    g_moved = true;
  } else {
    WaitUntil("warp collective", [&] { return warp.generation != generation; });
  }
  for (int i = 0; i < kWarp; ++i) {
    std::memcpy(static_cast<uint8_t*>(out) + static_cast<size_t>(i) * bytes, buffer[i], bytes);
  }
}

void SyncWarp() {
  WarpState& warp = g_thread->block->warps[g_thread->index / kWarp];
  uint64_t* const order = &warp.order[warp.generation % 2];
  Release(order);
  const char mine = 0;
  char all[kWarp];
  GatherWarp(&mine, 1, all);
  Acquire(order);
}

namespace {
bool Arrive(Barrier& barrier, int threads) {
  if (barrier.arrived > 0 && barrier.threads != threads) Fail("barrier with two thread counts");
  barrier.threads = threads;
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  g_moved = true;
  return true;
}
}  // namespace

void BarrierSync(int id, int threads) {
  static const char* const kNames[16] = {"bar 0",  "bar 1",  "bar 2",  "bar 3", "bar 4",  "bar 5",
                                         "bar 6",  "bar 7",  "bar 8",  "bar 9", "bar 10", "bar 11",
                                         "bar 12", "bar 13", "bar 14", "bar 15"};
  if (id < 0 || id > 15) Fail("barrier id");
  Barrier& barrier = g_thread->block->barriers[id];
  const uint64_t generation = barrier.generation;
  uint64_t* const order = &barrier.order[generation % 2];
  Release(order);
  if (!Arrive(barrier, threads)) {
    WaitUntil(kNames[id], [&] { return barrier.generation != generation; });
  }
  Acquire(order);
}

void BarrierArrive(int id, int threads) {
  if (id < 0 || id > 15) Fail("barrier id");
  Barrier& barrier = g_thread->block->barriers[id];
  Release(&barrier.order[barrier.generation % 2]);
  Arrive(barrier, threads);
}

void GatherBlock(const void* mine, size_t bytes, void* out) {
  Block& block = *g_thread->block;
  Barrier& barrier = block.barriers[16];
  const uint64_t generation = barrier.generation;
  uint64_t* const order = &barrier.order[generation % 2];
  Release(order);
  const Unwatched emulator;
  auto& buffer = block.gathered[generation % 2];
  buffer.resize(std::max(buffer.size(), bytes * blockDim.x));
  std::memcpy(buffer.data() + bytes * g_thread->index, mine, bytes);
  if (!Arrive(barrier, static_cast<int>(blockDim.x))) {
    WaitUntil("block collective", [&] { return barrier.generation != generation; });
  }
  std::memcpy(out, buffer.data(), bytes * blockDim.x);
  Acquire(order);
}

void Later(std::function<void()> action) {
  const Unwatched emulator;
  Delayed& delayed = g_delayed.emplace_back(g_turn + Random() % 6, std::move(action));
  Release(delayed.order.get());
}

void IssueMatrix(std::function<void()> product) { g_thread->issued.push_back(std::move(product)); }

void CommitMatrix() {
  MatrixGroup group;
  group.products = std::move(g_thread->issued);
  g_thread->issued.clear();
  // The same choice in all threads of the warpgroup.
  const uint64_t mix =
      (g_thread->commits++ * 0x9e3779b97f4a7c15ull) ^ (g_seed * 0xbf58476d1ce4e5b9ull);
  g_thread->groups.push_back(std::move(group));
  const bool early = (mix >> 33) % 2 == 0;
  if (early) {
    for (MatrixGroup& g : g_thread->groups) {
      if (!g.done) {
        for (auto& product : g.products) product();
      }
      g.done = true;
    }
  }
}

void WaitMatrix(int pending) {
  auto& groups = g_thread->groups;
  while (static_cast<int>(groups.size()) > pending) {
    if (!groups.front().done) {
      for (auto& product : groups.front().products) product();
    }
    groups.pop_front();
  }
}

void IssueCopy(std::function<void()> copy) { g_thread->copies.push_back(std::move(copy)); }

void CommitCopies() {
  g_thread->copy_groups.push_back(std::move(g_thread->copies));
  g_thread->copies.clear();
}

void WaitCopies(int pending) {
  auto& groups = g_thread->copy_groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (auto& copy : groups.front()) copy();
    groups.pop_front();
  }
}

uint64_t NextMatrixIndex() { return g_thread->matrix_index++; }

void* SharedOfWarpgroup(size_t bytes, const std::function<void(void*)>& make, uint64_t index) {
  const Unwatched emulator;
  Warpgroup& group = g_thread->block->warpgroups[g_thread->index / 128];
  auto& made = group.made[index];
  if (!made.data) {
    made.data = std::make_unique<uint8_t[]>(bytes);
    make(made.data.get());
  }
  // The entry lives until every thread has come by; kept a little longer for the last user.
  if (++made.uses == 128) {
    static std::unique_ptr<uint8_t[]> last;
    last = std::move(made.data);
    group.made.erase(index);
    return last.get();
  }
  return made.data.get();
}

}  // namespace fathom::simt
