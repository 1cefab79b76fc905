#include "ops/device.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/host_memory.h"
#include "base/strings.h"

namespace fathom::ops {
namespace {

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  Result<void*> Allocate(size_t bytes) override {
    void* memory = AllocateHost(bytes);
    if (memory == nullptr) {
      return Err(Code::kResourceExhausted, "cannot allocate {} of host memory", HumanBytes(bytes));
    }
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  void Touch(void* memory, size_t bytes) override {
    constexpr size_t kPage = 4096;  // the smallest that x86-64 and arm64 use
    auto* at = static_cast<volatile char*>(memory);
    for (size_t i = 0; i < bytes; i += kPage) at[i] = 0;
  }

  void CopyIn(StreamId, void* device, const void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);  // nothing may have no address
  }
  void CopyOut(StreamId, void* host, const void* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  Fence Record(StreamId stream) override { return {.stream = stream, .value = 0}; }
  bool Passed(const Fence&) override { return true; }
  Status Wait(const Fence&) override { return {}; }
};

}  // namespace

std::string_view NameOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kDeferred:
      return "deferred";
  }
  return "unknown";
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is the virtual one
void Device::Defer(StreamId, std::function<void()>) {
  FATHOM_CHECK(false, "an immediate device does not defer");
}

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

Result<std::unique_ptr<Device>> MakeDevice(std::string_view name) {
  if (name == "cpu") return MakeCpuDevice();
  if (name == "cuda") {
    return Err(Code::kUnsupported,
               "--device cuda: this program serves models on CPUs; its CUDA attention kernels are "
               "measured on their own (docs/kernels.md); use --device cpu");
  }
  return Err(Code::kInvalidArgument, "--device {}: expected cpu or cuda", name);
}

Result<DeviceBuffer> DeviceBuffer::Make(Device& device, size_t bytes) {
  FATHOM_ASSIGN_OR_RETURN(void* data, device.Allocate(bytes));
  DeviceBuffer buffer;
  buffer.device_ = &device;
  buffer.data_ = data;
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace fathom::ops
