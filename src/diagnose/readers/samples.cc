#include "diagnose/readers/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "diagnose/input.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "fathom.samples/1";

int DetectSamples(std::string_view prefix) {
  const std::string_view line = prefix.substr(0, prefix.find('\n'));
  return line.starts_with('{') && line.find("\"fathom.samples/") != line.npos ? 99 : 0;
}

Status ReadHeader(const Json& header, Source& entry) {
  const std::string schema = header.value("schema", "");
  if (schema != kSchema) {
    return Err(Code::kUnsupported, "{}: expected schema {}, found '{}'", entry.path, kSchema,
               schema);
  }
  entry.schema = schema;
  entry.clock = ClockDomain::kMonotonic;
  entry.utc_anchor_ns = header.value("utc_ns_at_zero", kNoTime);
  entry.resolution_ns = header.value("alignment_error_ns", int64_t{1});
  int32_t id = 0;
  for (const Json& gpu : header.value("gpus", Json::array())) {
    entry.devices.push_back({.id = id++,
                             .name = gpu.value("name", ""),
                             .memory_bytes = gpu.value("memory_bytes", int64_t{0})});
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
    try {  // a field of another type
      if (!have_header) {
        FATHOM_TRY(ReadHeader(record, timeline.sources[source]));
        have_header = true;
        continue;
      }
      ++stats.records;
      const auto metric = event::MetricFromName(record.value("metric", ""));
      if (!metric) {
        stats.Count(Defect::kUnknownRecord, lines.offset());
        continue;
      }
      const event::Sample sample{.t_ns = record.at("t_ns").get<int64_t>(),
                                 .value = record.at("value").get<double>(),
                                 .metric = *metric,
                                 .device = record.value("device", uint16_t{0})};
      series.Add(sample);
      first = std::min(first, sample.t_ns);
      last = std::max(last, sample.t_ns);
      ++stats.kept;
    } catch (const Json::exception&) {
      stats.Count(Defect::kMalformed, lines.offset());
    }
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
