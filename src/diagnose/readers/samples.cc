#include "diagnose/readers/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "diagnose/input.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "fathom.samples/1";

int DetectSamples(std::string_view prefix) {
  const std::string_view line = prefix.substr(0, prefix.find('\n'));
  return line.starts_with('{') && line.find("\"fathom.samples/") != line.npos ? 99 : 0;
}

// Times beyond this leave no room for arithmetic.
constexpr int64_t kTimeLimit = int64_t{1} << 61;

// The members of a record; nothing when absent, of another type or out of range.
std::optional<int64_t> Integer(const Json& record, const char* key, int64_t min, int64_t max) {
  const auto entry = record.find(key);
  if (entry == record.end() || !entry->is_number_integer()) return std::nullopt;
  const bool beyond = entry->is_number_unsigned() && entry->get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t value = beyond ? INT64_MAX : entry->get<int64_t>();
  if (value < min || value > max) return std::nullopt;
  return value;
}

std::optional<double> Number(const Json& record, const char* key) {
  const auto entry = record.find(key);
  if (entry == record.end() || !entry->is_number()) return std::nullopt;
  return entry->get<double>();
}

std::string_view Text(const Json& record, const char* key) {
  const auto entry = record.find(key);
  if (entry == record.end() || !entry->is_string()) return {};
  return entry->get_ref<const std::string&>();
}

Status ReadHeader(const Json& header, Source& entry) {
  const std::string_view schema = Text(header, "schema");
  if (schema != kSchema) {
    return Err(Code::kUnsupported, "{}: expected schema {}, found '{}'", entry.path, kSchema,
               schema);
  }
  entry.schema = schema;
  entry.clock = ClockDomain::kMonotonic;
  entry.utc_anchor_ns =
      Integer(header, "utc_ns_at_zero", -kTimeLimit, kTimeLimit).value_or(kNoTime);
  entry.resolution_ns = Integer(header, "alignment_error_ns", 1, kTimeLimit).value_or(1);
  entry.numa_nodes = static_cast<int32_t>(Integer(header, "numa_nodes", 1, INT32_MAX).value_or(0));
  entry.threads_listed = Text(header, "threads_of") == "nvml";
  const auto gpus = header.find("gpus");
  if (gpus == header.end() || !gpus->is_array()) return {};
  int32_t id = 0;
  for (const Json& gpu : *gpus) {
    DeviceInfo& device = entry.devices.emplace_back();
    device.id = id++;
    if (!gpu.is_object()) continue;
    device.name = Text(gpu, "name");
    device.memory_bytes = Integer(gpu, "memory_bytes", 0, INT64_MAX).value_or(0);
    device.numa_node = static_cast<int32_t>(Integer(gpu, "numa_node", -1, INT32_MAX).value_or(-1));
  }
  return {};
}

Status ReadSamples(Input& input, Timeline& timeline, SourceId source) {
  LineReader lines(input);
  SampleSeries series(timeline, source);
  std::string_view text;
  bool have_header = false;
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&text));
    if (!more) break;
    if (text.empty()) continue;
    ReadStats& stats = timeline.sources[source].stats;
    const Json record = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) {
      stats.Count(Defect::kMalformed, lines.offset());
      continue;
    }
    if (!have_header) {
      FATHOM_TRY(ReadHeader(record, timeline.sources[source]));
      have_header = true;
      continue;
    }
    ++stats.records;
    const auto metric = event::MetricFromName(Text(record, "metric"));
    if (!metric) {
      stats.Count(Defect::kUnknownRecord, lines.offset());
      continue;
    }
    const std::optional<int64_t> t_ns = Integer(record, "t_ns", -kTimeLimit, kTimeLimit);
    const std::optional<double> value = Number(record, "value");
    const std::optional<int64_t> device =
        record.contains("device") ? Integer(record, "device", 0, UINT16_MAX) : 0;
    if (!t_ns || !value || !device) {
      stats.Count(Defect::kMalformed, lines.offset());
      continue;
    }
    series.Add({.t_ns = *t_ns,
                .value = *value,
                .metric = *metric,
                .device = static_cast<uint16_t>(*device)});
    first = std::min(first, *t_ns);
    last = std::max(last, *t_ns);
    ++stats.kept;
  }
  Source& entry = timeline.sources[source];
  entry.stats.bytes = input.bytes_read();
  if (input.damaged()) entry.stats.Count(Defect::kTruncated, input.bytes_read());
  if (first <= last) {
    entry.first_ns = first;
    entry.last_ns = last;
  }
  return {};
}

}  // namespace

void SampleSeries::Add(const event::Sample& sample) {
  const auto [it, added] = ids_.try_emplace({sample.metric, sample.device}, 0);
  if (added) {
    it->second = timeline_.AddSeries(
        {.source = source_,
         .kind = SeriesKind::kGauge,  // rates too: they are readings, not totals
         .name = timeline_.strings.Intern(event::NameOf(sample.metric)),
         .unit = timeline_.strings.Intern(event::UnitOf(sample.metric)),
         .device = sample.device});
  }
  timeline_.AddSample(it->second, sample.t_ns, sample.value);
}

const Reader kSamplesReader = {"fathom-samples", "recording of fathom doctor (fathom.samples/1)",
                               DetectSamples, ReadSamples};

}  // namespace fathom::diagnose
