#include "diagnose/readers/access.h"

#include <algorithm>

#include "diagnose/readers/json_scan.h"
#include "diagnose/readers/records.h"

namespace fathom::diagnose {
namespace {

int DetectAccess(std::string_view prefix) {
  RecordStorage storage;
  const std::optional<Record> record = FirstRecord(prefix, &storage);
  return record && record->Has("token_id") && record->Has("hbm_addr") ? 95 : 0;
}

// The ns of `key`, or of `key`_us.
std::optional<int64_t> Nanoseconds(const Record& record, std::string_view key,
                                   std::string_view key_us) {
  int64_t ns = 0;
  if (const auto text = record.Text({key_us})) {
    if (json::MicrosecondsToNs(*text, &ns) == json::Number::kOk) return ns;
    return std::nullopt;
  }
  const auto text = record.Text({key});
  if (!text || json::ToInteger(*text, &ns) != json::Number::kOk) return std::nullopt;
  if (ns >= int64_t{1} << 61 || ns <= -(int64_t{1} << 61)) return std::nullopt;
  return ns;
}

Status ReadAccess(Input& input, Timeline& timeline, SourceId source) {
  ReadStats& stats = timeline.sources[source].stats;
  RecordStream records(input, stats);
  Record record;
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, records.Next(&record));
    if (!more) break;
    const std::optional<int64_t> address = record.Integer({"hbm_addr"});
    const std::optional<int64_t> time = Nanoseconds(record, "emit_ts", "emit_ts_us");
    if (!address || !time) {
      stats.Count(address ? Defect::kBadTime : Defect::kMalformed, records.offset());
      continue;
    }
    AccessEvent event;
    event.t_ns = *time;
    event.address = static_cast<uint64_t>(*address);
    event.token = record.Integer({"token_id"}).value_or(-1);
    event.latency_ns = Nanoseconds(record, "latency", "latency_us").value_or(-1);
    event.source = source;
    timeline.access_events.push_back(event);
    first = std::min(first, *time);
    last = std::max(last, *time);
    ++stats.kept;
  }
  Source& entry = timeline.sources[source];
  entry.stats.bytes = input.bytes_read();
  if (input.damaged()) stats.Count(Defect::kTruncated, input.bytes_read());
  if (first <= last) {
    entry.clock = ClockDomain::kRelative;
    entry.first_ns = first;
    entry.last_ns = last;
  }
  return {};
}

}  // namespace

const Reader kAccessReader = {"access-events",
                              "memory-access events {token_id, emit_ts, hbm_addr, latency} (JSON "
                              "lines or CSV)",
                              DetectAccess, ReadAccess};

}  // namespace fathom::diagnose
