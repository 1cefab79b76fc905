#pragma once
// NVIDIA's management library, loaded at run time: a machine without it only lacks these readings.
// Utilisation is itself an average of the driver over 1/6 to 1 s (NVML API reference,
// nvmlDeviceGetUtilizationRates), however often it is read.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "observe/live/source.h"

namespace fathom::observe {

struct GpuInfo {
  std::string name;
  uint64_t memory_bytes = 0;
  double pcie_bytes_per_second = 0;  // of the current link, one direction; 0 = unknown
  int numa_node = -1;                // of its PCIe slot; -1 = unknown or the machine has one
};

// The loaded library and its devices; shared by the sources below.
class Nvml {
 public:
  // `library` empty: libnvidia-ml.so.1. The error says whether the library, the driver or the
  // devices are missing. `root` is put in front of /sys (tests).
  static Result<std::shared_ptr<Nvml>> Load(const std::string& library = "",
                                            const std::string& root = "");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::vector<GpuInfo>& gpus() const { return gpus_; }
  // Ids of the processes that compute on a GPU, in the host's process namespace; nothing when the
  // driver does not say.
  std::optional<std::vector<int>> ComputeProcesses(int gpu) const;

 private:
  friend class NvmlSource;
  friend class NvmlPcieSource;
  struct Api;
  Nvml();
  std::unique_ptr<Api> api_;
  std::vector<void*> devices_;
  std::vector<GpuInfo> gpus_;
};

// Use, memory, clocks, power, temperature, NVLink: about a millisecond a GPU.
class NvmlSource final : public Source {
 public:
  explicit NvmlSource(std::shared_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
  std::string_view name() const override { return "nvml"; }
  Status Open() override;
  void Read(std::vector<event::Sample>& out) override;

 private:
  std::shared_ptr<Nvml> nvml_;
  std::vector<Rate> nvlink_tx_, nvlink_rx_;
};

// PCIe throughput: the library measures for 20 ms inside each call.
class NvmlPcieSource final : public Source {
 public:
  explicit NvmlPcieSource(std::shared_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
  std::string_view name() const override { return "nvml-pcie"; }
  Status Open() override { return {}; }
  void Read(std::vector<event::Sample>& out) override;
  int min_period_ms() const override { return 50; }

 private:
  std::shared_ptr<Nvml> nvml_;
};

}  // namespace fathom::observe
