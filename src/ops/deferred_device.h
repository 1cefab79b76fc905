#pragma once
// A device without hardware that behaves like one: work runs only when a fence is waited for (or
// RunOne is called), in stream order, and between runs its memory cannot be touched by the host: a
// read or write faults. Tests use it to prove that ops and engine never look at device data early.
#include <deque>
#include <map>

#include "ops/device.h"

namespace fathom::ops {

class DeferredDevice final : public Device {
 public:
  DeferredDevice() = default;
  ~DeferredDevice() override;

  DeviceKind kind() const override { return DeviceKind::kDeferred; }
  Result<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void CopyIn(StreamId stream, void* device, const void* host, size_t bytes) override;
  void CopyOut(StreamId stream, void* host, const void* device, size_t bytes) override;
  Fence Record(StreamId stream) override;
  bool Passed(const Fence& fence) override;
  Status Wait(const Fence& fence) override;

  // Runs the oldest piece of work of a stream; false when it has none.
  bool RunOne(StreamId stream);
  size_t Pending(StreamId stream) const;

 private:
  bool immediate() const override { return false; }
  void Defer(StreamId stream, std::function<void()> work) override;
  void Protect(bool readable);

  struct Stream {
    std::deque<std::function<void()>> work;
    uint64_t enqueued = 0;
    uint64_t done = 0;
  };
  std::map<StreamId, Stream> streams_;
  std::map<void*, size_t> memory_;
};

}  // namespace fathom::ops
