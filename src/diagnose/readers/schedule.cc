#include "diagnose/readers/schedule.h"

#include <algorithm>

#include "diagnose/readers/json_scan.h"
#include "diagnose/readers/records.h"

namespace fathom::diagnose {
namespace {

int DetectSchedule(std::string_view prefix) {
  RecordStorage storage;
  const std::optional<Record> record = FirstRecord(prefix, &storage);
  return record && record->Has("seq_id") && record->Has("phase") && record->Has("start_us") ? 95
                                                                                            : 0;
}

std::optional<int64_t> Microseconds(const Record& record, std::string_view key) {
  const std::optional<std::string_view> text = record.Text({key});
  int64_t ns = 0;
  if (!text || json::MicrosecondsToNs(*text, &ns) != json::Number::kOk) return std::nullopt;
  return ns;
}

Status ReadSchedule(Input& input, Timeline& timeline, SourceId source) {
  ReadStats& stats = timeline.sources[source].stats;
  RecordStream records(input, stats);
  Record record;
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, records.Next(&record));
    if (!more) break;
    const std::optional<int64_t> start = Microseconds(record, "start_us");
    const std::optional<int64_t> end = Microseconds(record, "end_us");
    if (!start || !end || *end < *start) {
      stats.Count(Defect::kBadTime, records.offset());
      continue;
    }
    ScheduleInterval interval;
    interval.start_ns = *start;
    interval.end_ns = *end;
    interval.sequence = timeline.strings.Intern(record.Text({"seq_id"}).value_or(""));
    interval.phase = timeline.strings.Intern(record.Text({"phase"}).value_or(""));
    const std::string_view graph = record.Text({"graph_id"}).value_or("");
    interval.graph_id = graph == "null" ? 0 : timeline.strings.Intern(graph);
    interval.source = source;
    timeline.schedule.push_back(interval);
    first = std::min(first, *start);
    last = std::max(last, *end);
    ++stats.kept;
  }
  Source& entry = timeline.sources[source];
  entry.stats.bytes = input.bytes_read();
  if (input.damaged()) stats.Count(Defect::kTruncated, input.bytes_read());
  if (first <= last) {
    constexpr int64_t kYear2001 = 1'000'000'000'000'000'000;
    entry.clock = first > kYear2001 ? ClockDomain::kUnix : ClockDomain::kRelative;
    if (entry.clock == ClockDomain::kUnix) entry.utc_anchor_ns = 0;
    entry.first_ns = first;
    entry.last_ns = last;
    entry.resolution_ns = 1000;
  }
  return {};
}

}  // namespace

const Reader kScheduleReader = {"schedule",
                                "scheduler log {seq_id, phase, start_us, end_us, "
                                "graph_id} (JSON lines or CSV)",
                                DetectSchedule, ReadSchedule};

}  // namespace fathom::diagnose
