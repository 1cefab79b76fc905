#pragma once
// Readings of the live sampler: as they come (fathom doctor) and from its recordings, JSON lines
//   {"schema":"fathom.samples/1","utc_ns_at_zero":N,"period_ms":10,"alignment_error_ns":N,
//    "numa_nodes":2,"threads_of":"nvml","gpus":[{"name":"NVIDIA H200","memory_bytes":N,
//    "numa_node":0}]}
//   {"t_ns":N,"metric":"gpu_busy","device":0,"value":0.42,"half_width_ns":N}
// Times are of the machine's monotonic clock; the header says what UTC its zero was.
#include <map>
#include <utility>

#include "diagnose/readers/reader.h"
#include "event/sample.h"

namespace fathom::diagnose {

// Appends samples to a timeline as series named event::NameOf(metric).
class SampleSeries {
 public:
  SampleSeries(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}
  void Add(const event::Sample& sample);

 private:
  Timeline& timeline_;
  SourceId source_;
  std::map<std::pair<event::Metric, uint16_t>, uint32_t> ids_;
};

extern const Reader kSamplesReader;

}  // namespace fathom::diagnose
