#pragma once
// What a live machine was doing: readings of counters on the program's monotonic clock. Written by
// observe/live, read by diagnose; recorded to a file as JSON lines (docs/doctor.md).
#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom::event {

// Rates are per second over the time since the previous reading. Shares are 0 to 1.
enum class Metric : uint16_t {
  // The machine; device = CPU or NUMA node where it says so.
  kCpuBusy,            // share of all CPUs
  kCpuIoWait,          // share
  kCpuSteal,           // share: time that the hypervisor gave to others
  kRunnableThreads,    // running or waiting for a CPU
  kContextSwitches,    // per second
  kMemoryAvailable,    // bytes
  kNumaLocalPages,     // per second, device = node: allocated there as wished
  kNumaRemotePages,    // per second, device = node: allocated there though another was wished
  kNumaMigratedPages,  // per second: moved by NUMA balancing
  kNumaHintFaults,     // per second: balancing's own page faults
  // The watched process.
  kProcessCpu,                  // CPUs busy
  kProcessResident,             // bytes
  kProcessMajorFaults,          // per second
  kProcessVoluntarySwitches,    // per second: it waited
  kProcessInvoluntarySwitches,  // per second: it was preempted
  kProcessInstructions,         // per second
  kProcessCycles,               // per second
  kProcessCacheMisses,          // last level, per second
  // GPUs; device = index.
  kGpuThreadsNear,  // threads of its processes that worked since the last reading, on its NUMA node
  kGpuThreadsFar,   // such threads on another node
  kGpuBusy,         // share of time with a kernel running
  kGpuMemoryBusy,   // share of time the memory was read or written
  kGpuMemoryUsed,   // bytes
  kGpuSmClock,      // MHz
  kGpuMemoryClock,  // MHz
  kGpuPower,        // W
  kGpuTemperature,  // degrees Celsius
  kPcieTx,          // bytes per second, from the GPU
  kPcieRx,          // bytes per second, to the GPU
  kNvlinkTx,        // bytes per second
  kNvlinkRx,        // bytes per second
  kCount,
};

struct Sample {
  int64_t t_ns = 0;  // middle of the reading
  double value = 0;
  int32_t half_width_ns = 0;  // the reading lies within t_ns +- this
  Metric metric = Metric::kCpuBusy;
  uint16_t device = 0;
};

std::string_view NameOf(Metric metric);  // "gpu_busy", ...
std::string_view UnitOf(Metric metric);  // "share", "bytes", "bytes/s", "1/s", "MHz", "W", ...
std::optional<Metric> MetricFromName(std::string_view name);

}  // namespace fathom::event
