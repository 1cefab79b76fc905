// Any bytes given to one reader of diagnose: it returns, and what it put into the timeline is
// consistent, printable and can be aligned.
#include <simdjson.h>

#include <cmath>
#include <string>
#include <string_view>

#include FATHOM_READER_HEADER
#include "base/check.h"
#include "diagnose/clock.h"

namespace fathom::diagnose {
namespace {

// A few bytes of gzip or zstd become megabytes. They are the Kineto reader's, whose input comes
// packed most often, so that the others' executions are of their own grammar.
constexpr bool kPackedToo = std::string_view(FATHOM_READER_HEADER) == "diagnose/readers/kineto.h";

void CheckSlices(const Timeline& t) {
  const Slices& s = t.slices;
  for (size_t i = 0; i < s.size(); ++i) {
    FATHOM_CHECK(s.track[i] < t.tracks.size() && s.name[i] < t.strings.size());
    FATHOM_CHECK(s.dur_ns[i] >= 0 && s.end_ns(i) >= s.start_ns[i]);
    const uint32_t detail = s.detail[i];
    if (detail == kNone) continue;
    switch (s.category[i]) {
      case Category::kKernel:
      case Category::kGraph:
        FATHOM_CHECK(detail < t.kernels.size());
        break;
      case Category::kMemcpy:
      case Category::kMemset:
        FATHOM_CHECK(detail < t.copies.size());
        break;
      case Category::kPython:
        FATHOM_CHECK(detail < t.python.size());
        break;
      case Category::kRuntime:
      case Category::kDriver:
        FATHOM_CHECK(detail < t.launches.size());
        break;
      case Category::kSync:
      case Category::kCudaEvent:
        FATHOM_CHECK(detail < t.syncs.size());
        break;
      default:
        FATHOM_CHECK(detail < t.ops.size());
    }
  }
  for (const KernelDetail& kernel : t.kernels) {
    FATHOM_CHECK(kernel.collective == kNone || kernel.collective < t.collectives.size());
  }
}

void CheckTables(const Timeline& t) {
  for (size_t i = 0; i < t.samples.size(); ++i) {
    FATHOM_CHECK(t.samples.series[i] < t.series.size() && std::isfinite(t.samples.value[i]));
  }
  for (const LogLine& line : t.log_lines) {
    FATHOM_CHECK(line.first_value + line.num_values <= t.log_values.size());
  }
  for (const StackSample& sample : t.stack_samples) {
    FATHOM_CHECK(sample.stack == kNone || sample.stack < t.stack_nodes.size());
  }
  for (size_t i = 0; i < t.stack_nodes.size(); ++i) {
    // Parents come first: no stack is a circle.
    FATHOM_CHECK(t.stack_nodes[i].parent == kNone || t.stack_nodes[i].parent < i);
  }
  for (const Span& span : t.spans) {
    FATHOM_CHECK(span.first_attribute + span.num_attributes <= t.attributes.size());
  }
  for (const ProfiledKernel& kernel : t.profiled_kernels) {
    FATHOM_CHECK(kernel.first_metric + kernel.num_metrics <= t.kernel_metrics.size());
    FATHOM_CHECK(kernel.first_advice + kernel.num_advice <= t.kernel_advice.size());
  }
  for (StringId id = 0; id < t.strings.size(); ++id) {
    FATHOM_CHECK(simdjson::validate_utf8(t.Name(id).data(), t.Name(id).size()));
  }
}

}  // namespace
}  // namespace fathom::diagnose

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  using namespace fathom::diagnose;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (!kPackedToo && (bytes.starts_with("\x1f\x8b") || bytes.starts_with("\x28\xb5\x2f\xfd"))) {
    return -1;
  }
  Result<Input> input = Input::FromMemory("fuzz", bytes);
  FATHOM_CHECK(input.has_value());
  FATHOM_READER.detect(input->prefix());
  Timeline timeline;
  const SourceId source = timeline.AddSource("fuzz", "fuzz");
  const Status read = FATHOM_READER.read(*input, timeline, source);
  if (!read) FATHOM_CHECK(!read.error().message.empty());
  const Source& entry = timeline.sources[source];
  FATHOM_CHECK((entry.first_ns == kNoTime) == (entry.last_ns == kNoTime));
  FATHOM_CHECK(entry.first_ns <= entry.last_ns);
  CheckSlices(timeline);
  CheckTables(timeline);
  AlignClocks(timeline);
  return 0;
}
