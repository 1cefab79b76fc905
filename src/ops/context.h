#pragma once
// What an op needs besides its plan and arguments: where it runs, its scratch memory, who records
// its time. One Context a step and stream; nothing in it is global.
#include <cstdint>

#include "base/arena.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "event/ring.h"
#include "ops/comm.h"
#include "ops/device.h"

namespace fathom::kernels::cpu {
struct KernelTable;
}  // namespace fathom::kernels::cpu

namespace fathom::ops {

struct Context {
  Device& device;
  ThreadPool& pool;                      // host-executed devices
  const kernels::cpu::KernelTable& cpu;  // the ISA that was chosen
  Comm& comm;
  Arena& arena;  // activations of this step, in device memory
  event::Sink sink;
  uint64_t step_id = 0;
  StreamId stream = kDefaultStream;

  // Records the time of an op from here to the end of the scope. On the CPU it is the work itself;
  // a deferred device records what the host spent enqueuing and, later, when the work ran.
  class Span;
  [[nodiscard]] Span Mark(event::Op op, int layer);
};

class Context::Span {
 public:
  Span(const Context& context, event::Op op, int layer)
      : sink_(context.sink), start_ns_(sink_.enabled() ? NowNs() : 0) {
    event_.step_id = context.step_id;
    event_.kind = event::Kind::kOp;
    event_.op = op;
    event_.layer = static_cast<int16_t>(layer);
  }
  ~Span() {
    if (!sink_.enabled()) return;
    event_.start_ns = start_ns_;
    event_.duration_ns = NowNs() - start_ns_;
    sink_.Emit(event_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // What the op moved and computed (cost/), for rooflines.
  void Cost(uint64_t bytes, uint64_t flops) {
    event_.value = bytes;
    event_.aux = flops;
  }

 private:
  event::Sink sink_;
  int64_t start_ns_;
  event::Event event_;
};

inline Context::Span Context::Mark(event::Op op, int layer) { return Span(*this, op, layer); }

}  // namespace fathom::ops
