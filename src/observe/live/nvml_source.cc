#include "observe/live/nvml_source.h"

#include <dlfcn.h>

#include <array>
#include <climits>
#include <fstream>

namespace fathom::observe {
namespace {

using event::Metric;

// The ABI of libnvidia-ml.so.1 as its API reference documents it.
using Return = int;
using Handle = void*;
constexpr Return kSuccess = 0;
constexpr unsigned kClockSm = 1;
constexpr unsigned kClockMemory = 2;
constexpr unsigned kPcieTxBytes = 0;
constexpr unsigned kPcieRxBytes = 1;
constexpr unsigned kFieldNvlinkTx = 138;  // KiB, data only, all links
constexpr unsigned kFieldNvlinkRx = 139;

struct Utilization {
  unsigned gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;  // bytes
};
struct FieldValue {
  unsigned field_id;
  unsigned scope_id;
  long long timestamp_us;
  long long latency_us;
  unsigned value_type;
  Return result;
  unsigned long long value;
};
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  std::array<char, 32> bus_id;
};

// Of one lane and direction, after encoding, by PCIe generation.
double LaneBytesPerSecond(unsigned generation) {
  static constexpr std::array<double, 7> kPerLane = {0,      250e6,  500e6, 985e6,
                                                     1969e6, 3938e6, 7563e6};
  return generation < kPerLane.size() ? kPerLane[generation] : 0;
}

// nvmlProcessInfo_v1_t: the oldest layout, which every driver still answers in.
struct ProcessInfo {
  unsigned pid;
  unsigned long long memory_bytes;
};
constexpr size_t kMostProcesses = 256;

int NumaNodeOf(std::string bus_id, const std::string& root) {
  for (char& c : bus_id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // NVML prints an 8-digit domain, sysfs a 4-digit one.
  if (bus_id.size() > 12) bus_id.erase(0, bus_id.size() - 12);
  int node = -1;
  std::ifstream(root + "/sys/bus/pci/devices/" + bus_id + "/numa_node") >> node;
  return node;
}

}  // namespace

struct Nvml::Api {
  void* library = nullptr;
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_handle)(unsigned, Handle*) = nullptr;
  Return (*name)(Handle, char*, unsigned) = nullptr;
  Return (*memory)(Handle, Memory*) = nullptr;
  Return (*utilization)(Handle, Utilization*) = nullptr;
  Return (*clock)(Handle, unsigned, unsigned*) = nullptr;
  Return (*power)(Handle, unsigned*) = nullptr;
  Return (*temperature)(Handle, unsigned, unsigned*) = nullptr;
  Return (*pcie)(Handle, unsigned, unsigned*) = nullptr;
  Return (*pcie_generation)(Handle, unsigned*) = nullptr;
  Return (*pcie_width)(Handle, unsigned*) = nullptr;
  Return (*pci_info)(Handle, PciInfo*) = nullptr;
  Return (*field_values)(Handle, int, FieldValue*) = nullptr;
  Return (*compute_processes)(Handle, unsigned*, ProcessInfo*) = nullptr;

  // Every symbol below has been in the library since driver 450.
  Status Bind() {
    std::string missing;
    const auto bind = [&](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    };
    bind(init, "nvmlInit_v2");
    bind(shutdown, "nvmlShutdown");
    bind(error_string, "nvmlErrorString");
    bind(device_count, "nvmlDeviceGetCount_v2");
    bind(device_handle, "nvmlDeviceGetHandleByIndex_v2");
    bind(name, "nvmlDeviceGetName");
    bind(memory, "nvmlDeviceGetMemoryInfo");
    bind(utilization, "nvmlDeviceGetUtilizationRates");
    bind(clock, "nvmlDeviceGetClockInfo");
    bind(power, "nvmlDeviceGetPowerUsage");
    bind(temperature, "nvmlDeviceGetTemperature");
    bind(pcie, "nvmlDeviceGetPcieThroughput");
    bind(pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
    bind(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth");
    bind(pci_info, "nvmlDeviceGetPciInfo_v3");
    bind(field_values, "nvmlDeviceGetFieldValues");
    bind(compute_processes, "nvmlDeviceGetComputeRunningProcesses");
    if (missing.empty()) return {};
    return Err(Code::kUnsupported,
               "the NVIDIA management library lacks {}: driver 450 or newer is "
               "needed",
               missing);
  }
};

Nvml::Nvml() : api_(std::make_unique<Api>()) {}

Nvml::~Nvml() {
  if (!devices_.empty()) api_->shutdown();
  if (api_->library != nullptr) dlclose(api_->library);
}

Result<std::shared_ptr<Nvml>> Nvml::Load(const std::string& library, const std::string& root) {
  const std::string path = library.empty() ? "libnvidia-ml.so.1" : library;
  std::shared_ptr<Nvml> nvml(new Nvml());
  Api& api = *nvml->api_;
  api.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (api.library == nullptr) {
    return Err(Code::kNotFound, "no NVIDIA driver here: {}", dlerror());
  }
  FATHOM_TRY(api.Bind());
  if (const Return result = api.init(); result != kSuccess) {
    return Err(Code::kUnavailable, "the NVIDIA driver does not answer: {}",
               api.error_string(result));
  }
  unsigned count = 0;
  api.device_count(&count);
  for (unsigned i = 0; i < count; ++i) {
    Handle device = nullptr;
    if (api.device_handle(i, &device) != kSuccess) continue;
    GpuInfo info;
    std::array<char, 96> name{};
    if (api.name(device, name.data(), name.size()) == kSuccess) info.name = name.data();
    Memory memory{};
    if (api.memory(device, &memory) == kSuccess) info.memory_bytes = memory.total;
    unsigned generation = 0;
    unsigned width = 0;
    if (api.pcie_generation(device, &generation) == kSuccess &&
        api.pcie_width(device, &width) == kSuccess) {
      info.pcie_bytes_per_second = LaneBytesPerSecond(generation) * width;
    }
    PciInfo pci{};
    if (api.pci_info(device, &pci) == kSuccess)
      info.numa_node = NumaNodeOf(pci.bus_id.data(), root);
    nvml->devices_.push_back(device);
    nvml->gpus_.push_back(std::move(info));
  }
  if (nvml->devices_.empty()) {
    api.shutdown();
    return Err(Code::kNotFound, "the NVIDIA driver answers but shows no GPU");
  }
  return nvml;
}

std::optional<std::vector<int>> Nvml::ComputeProcesses(int gpu) const {
  std::array<ProcessInfo, kMostProcesses> list{};
  unsigned count = list.size();
  if (api_->compute_processes(devices_[static_cast<size_t>(gpu)], &count, list.data()) !=
      kSuccess) {
    return std::nullopt;
  }
  std::vector<int> pids;
  for (unsigned i = 0; i < count; ++i) pids.push_back(static_cast<int>(list[i].pid));
  return pids;
}

Status NvmlSource::Open() {
  nvlink_tx_.resize(nvml_->devices_.size());
  nvlink_rx_.resize(nvml_->devices_.size());
  std::vector<event::Sample> first;
  Read(first);
  return {};
}

void NvmlSource::Read(std::vector<event::Sample>& out) {
  const Nvml::Api& api = *nvml_->api_;
  for (size_t i = 0; i < nvml_->devices_.size(); ++i) {
    const int gpu = static_cast<int>(i);
    Handle device = nvml_->devices_[i];
    ReadingScope scope(out);
    if (Utilization use{}; api.utilization(device, &use) == kSuccess) {
      scope.Add(Metric::kGpuBusy, use.gpu / 100.0, gpu);
      scope.Add(Metric::kGpuMemoryBusy, use.memory / 100.0, gpu);
    }
    if (Memory memory{}; api.memory(device, &memory) == kSuccess) {
      scope.Add(Metric::kGpuMemoryUsed, static_cast<double>(memory.used), gpu);
    }
    unsigned value = 0;
    if (api.clock(device, kClockSm, &value) == kSuccess) {
      scope.Add(Metric::kGpuSmClock, value, gpu);
    }
    if (api.clock(device, kClockMemory, &value) == kSuccess) {
      scope.Add(Metric::kGpuMemoryClock, value, gpu);
    }
    if (api.power(device, &value) == kSuccess) scope.Add(Metric::kGpuPower, value / 1e3, gpu);
    if (api.temperature(device, 0, &value) == kSuccess) {
      scope.Add(Metric::kGpuTemperature, value, gpu);
    }
    std::array<FieldValue, 2> links{};
    links[0].field_id = kFieldNvlinkTx;
    links[1].field_id = kFieldNvlinkRx;
    links[0].scope_id = links[1].scope_id = UINT_MAX;
    if (api.field_values(device, links.size(), links.data()) == kSuccess) {
      const auto add = [&](const FieldValue& link, Rate& rate, Metric metric) {
        double per_second = 0;
        if (link.result == kSuccess &&
            rate.Update(static_cast<double>(link.value) * 1024, scope.start_ns(), &per_second)) {
          scope.Add(metric, per_second, gpu);
        }
      };
      add(links[0], nvlink_tx_[i], Metric::kNvlinkTx);
      add(links[1], nvlink_rx_[i], Metric::kNvlinkRx);
    }
  }
}

void NvmlPcieSource::Read(std::vector<event::Sample>& out) {
  const Nvml::Api& api = *nvml_->api_;
  for (size_t i = 0; i < nvml_->devices_.size(); ++i) {
    ReadingScope scope(out);
    unsigned kb_per_second = 0;
    if (api.pcie(nvml_->devices_[i], kPcieTxBytes, &kb_per_second) == kSuccess) {
      scope.Add(Metric::kPcieTx, kb_per_second * 1024.0, static_cast<int>(i));
    }
    if (api.pcie(nvml_->devices_[i], kPcieRxBytes, &kb_per_second) == kSuccess) {
      scope.Add(Metric::kPcieRx, kb_per_second * 1024.0, static_cast<int>(i));
    }
  }
}

}  // namespace fathom::observe
