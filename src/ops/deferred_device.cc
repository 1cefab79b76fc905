#include "ops/deferred_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/strings.h"

namespace fathom::ops {

DeferredDevice::~DeferredDevice() {
  for (const auto& [memory, size] : memory_) munmap(memory, size);
}

Result<void*> DeferredDevice::Allocate(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
  void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Err(Code::kResourceExhausted, "cannot map {}: {}", HumanBytes(bytes),
               std::strerror(errno));
  }
  memory_[memory] = size;
  return memory;
}

void DeferredDevice::Free(void* memory) {
  const auto it = memory_.find(memory);
  FATHOM_CHECK(it != memory_.end(), "freed memory is not this device's");
  for (const auto& [id, stream] : streams_) {
    FATHOM_CHECK(stream.work.empty(), "memory freed while stream {} still has work", id);
  }
  munmap(memory, it->second);
  memory_.erase(it);
}

void DeferredDevice::CopyIn(StreamId stream, void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;  // nothing may have no address
  const auto* begin = static_cast<const char*>(host);
  Defer(stream, [device, copy = std::vector<char>(begin, begin + bytes)] {
    std::memcpy(device, copy.data(), copy.size());
  });
}

void DeferredDevice::CopyOut(StreamId stream, void* host, const void* device, size_t bytes) {
  if (bytes > 0) Defer(stream, [=] { std::memcpy(host, device, bytes); });
}

void DeferredDevice::Defer(StreamId stream, std::function<void()> work) {
  Stream& s = streams_[stream];
  s.work.push_back(std::move(work));
  ++s.enqueued;
}

Fence DeferredDevice::Record(StreamId stream) {
  return {.stream = stream, .value = streams_[stream].enqueued};
}

bool DeferredDevice::Passed(const Fence& fence) {
  return streams_[fence.stream].done >= fence.value;
}

Status DeferredDevice::Wait(const Fence& fence) {
  while (!Passed(fence)) FATHOM_CHECK(RunOne(fence.stream), "a fence that was never recorded");
  return {};
}

bool DeferredDevice::RunOne(StreamId stream) {
  Stream& s = streams_[stream];
  if (s.work.empty()) return false;
  const std::function<void()> work = std::move(s.work.front());
  s.work.pop_front();
  Protect(true);
  work();
  Protect(false);
  ++s.done;
  return true;
}

size_t DeferredDevice::Pending(StreamId stream) const {
  const auto it = streams_.find(stream);
  return it == streams_.end() ? 0 : it->second.work.size();
}

void DeferredDevice::Protect(bool readable) {
  for (const auto& [memory, size] : memory_) {
    FATHOM_CHECK(mprotect(memory, size, readable ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  }
}

}  // namespace fathom::ops
