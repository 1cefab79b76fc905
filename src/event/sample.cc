#include "event/sample.h"

#include <array>

namespace fathom::event {
namespace {

struct Description {
  std::string_view name;
  std::string_view unit;
};

constexpr std::array<Description, static_cast<size_t>(Metric::kCount)> kMetrics = {{
    {"cpu_busy", "share"},
    {"cpu_iowait", "share"},
    {"cpu_steal", "share"},
    {"runnable_threads", "threads"},
    {"context_switches", "1/s"},
    {"memory_available", "bytes"},
    {"numa_local_pages", "1/s"},
    {"numa_remote_pages", "1/s"},
    {"numa_migrated_pages", "1/s"},
    {"numa_hint_faults", "1/s"},
    {"process_cpu", "CPUs"},
    {"process_resident", "bytes"},
    {"process_major_faults", "1/s"},
    {"process_voluntary_switches", "1/s"},
    {"process_involuntary_switches", "1/s"},
    {"process_instructions", "1/s"},
    {"process_cycles", "1/s"},
    {"process_cache_misses", "1/s"},
    {"gpu_threads_near", "threads"},
    {"gpu_threads_far", "threads"},
    {"gpu_busy", "share"},
    {"gpu_memory_busy", "share"},
    {"gpu_memory_used", "bytes"},
    {"gpu_sm_clock", "MHz"},
    {"gpu_memory_clock", "MHz"},
    {"gpu_power", "W"},
    {"gpu_temperature", "degC"},
    {"pcie_tx", "bytes/s"},
    {"pcie_rx", "bytes/s"},
    {"nvlink_tx", "bytes/s"},
    {"nvlink_rx", "bytes/s"},
}};

}  // namespace

std::string_view NameOf(Metric metric) {
  const auto index = static_cast<size_t>(metric);
  return index < kMetrics.size() ? kMetrics[index].name : "unknown";
}

std::string_view UnitOf(Metric metric) {
  const auto index = static_cast<size_t>(metric);
  return index < kMetrics.size() ? kMetrics[index].unit : "";
}

std::optional<Metric> MetricFromName(std::string_view name) {
  for (size_t i = 0; i < kMetrics.size(); ++i) {
    if (kMetrics[i].name == name) return static_cast<Metric>(i);
  }
  return std::nullopt;
}

}  // namespace fathom::event
