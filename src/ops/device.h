#pragma once
// A place where ops run: memory, streams that execute work in order, fences that say how far a
// stream has come. The CPU executes at once; CUDA later; DeferredDevice (tests) later too, and it
// makes its memory unreadable to the host meanwhile, so that code which peeks is caught without a
// GPU.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace fathom::ops {

enum class DeviceKind : uint8_t { kCpu, kCuda, kDeferred };

std::string_view NameOf(DeviceKind kind);

using StreamId = int32_t;
inline constexpr StreamId kDefaultStream = 0;

// A point in a stream's work. Fences of one stream complete in order.
struct Fence {
  StreamId stream = kDefaultStream;
  uint64_t value = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;

  // 64-byte aligned, uninitialised. The error names the bytes asked for and those free.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Makes allocated memory resident, where that happens at the first write; destroys what it holds.
  virtual void Touch(void* /*memory*/, size_t /*bytes*/) {}

  // Copies in stream order. The source of CopyIn may be reused as soon as it returns.
  virtual void CopyIn(StreamId stream, void* device, const void* host, size_t bytes) = 0;
  // The destination holds the bytes once a fence recorded after this has passed.
  virtual void CopyOut(StreamId stream, void* host, const void* device, size_t bytes) = 0;

  virtual Fence Record(StreamId stream) = 0;
  virtual bool Passed(const Fence& fence) = 0;
  virtual Status Wait(const Fence& fence) = 0;  // an error when the device is lost

  // Work for a host-executed device, in stream order. CUDA ops launch kernels instead.
  template <class F>
  void Execute(StreamId stream, F&& work) {
    if (immediate()) {
      work();
    } else {
      Defer(stream, std::function<void()>(std::forward<F>(work)));
    }
  }

 protected:
  virtual bool immediate() const { return true; }
  virtual void Defer(StreamId stream, std::function<void()> work);
};

std::unique_ptr<Device> MakeCpuDevice();

// "cpu" or "cuda"; --device cuda in a build or on a machine without it is an error that says which.
Result<std::unique_ptr<Device>> MakeDevice(std::string_view name);

// Owns device memory.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> Make(Device& device, size_t bytes);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->Free(data_);
  }
  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fathom::ops
