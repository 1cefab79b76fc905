#pragma once
// Tables of sampled values, one row a device and time, as nvidia-smi dmon and dcgmi dmon print
// them: each column of a device becomes a gauge.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

class Gauges {
 public:
  Gauges(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}

  // One field of a row. "-" and "N/A" mean that there is no value: they are counted, and never 0.
  // The unit ("": not stated) is that of the first field of its gauge.
  void Add(std::string_view name, std::string_view unit, int32_t device, int64_t t_ns,
           std::string_view field, uint64_t offset);

 private:
  uint32_t SeriesOf(std::string_view name, std::string_view unit, int32_t device);

  Timeline& timeline_;
  const SourceId source_;
  std::map<std::pair<std::string, int32_t>, uint32_t> series_;
};

}  // namespace fathom::diagnose
