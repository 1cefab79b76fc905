#include "diagnose/readers/experts.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "diagnose/readers/records.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
constexpr const char* kCountKeys[] = {"logical_count", "physical_count", "expert_load"};

bool IsRecord(const Record& record) {
  return record.Text({"layer", "layer_id"}) && record.Text({"expert", "expert_id"}) &&
         record.Text({"tokens", "count"});
}

// Counts beyond it are broken, and sums of them would be no numbers.
constexpr double kMostTokens = 1e15;

bool IsCount(double tokens) { return tokens >= 0 && tokens <= kMostTokens; }

int DetectExperts(std::string_view prefix) {
  RecordStorage storage;
  const std::optional<Record> record = FirstRecord(prefix, &storage);
  if (record && IsRecord(*record)) return 90;
  if (!Trim(prefix.substr(0, 256)).starts_with('{')) return 0;
  for (const std::string key : kCountKeys) {
    if (prefix.find('"' + key + '"') != std::string_view::npos) return 85;
  }
  return 0;
}

// [layers][experts], or one such array a dump (`dumps`).
void AddCounts(const Json& counts, bool dumps, Timeline& timeline, SourceId source) {
  ReadStats& stats = timeline.sources[source].stats;
  int32_t layer = 0;
  for (const Json& row : counts) {
    if (!row.is_array()) continue;
    if (dumps && !row.empty() && row[0].is_array()) {
      AddCounts(row, /*dumps=*/false, timeline, source);
      continue;
    }
    int32_t expert = 0;
    for (const Json& count : row) {
      ++stats.records;
      if (count.is_number() && IsCount(count.get<double>())) {
        timeline.expert_loads.push_back({kNoTime, count.get<double>(), layer, expert, -1, source});
        ++stats.kept;
      } else {
        stats.Count(Defect::kMalformed, stats.records);
      }
      ++expert;
    }
    ++layer;
  }
}

Status ReadObject(Input& input, Timeline& timeline, SourceId source) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, input.ReadAll(kMaxBytes));
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return Err(Code::kDataLoss, "expected a JSON object with expert counts, found broken JSON");
  }
  for (const char* key : kCountKeys) {
    if (const auto counts = document.find(key); counts != document.end()) {
      if (counts->is_array()) AddCounts(*counts, /*dumps=*/true, timeline, source);
      return {};
    }
  }
  return {};
}

Status ReadRecords(Input& input, Timeline& timeline, SourceId source) {
  ReadStats& stats = timeline.sources[source].stats;
  RecordStream records(input, stats);
  Record record;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, records.Next(&record));
    if (!more) return {};
    const auto layer = record.Integer({"layer", "layer_id"});
    const auto expert = record.Integer({"expert", "expert_id"});
    const auto tokens = record.Number({"tokens", "count"});
    if (!layer || !expert || !tokens || !IsCount(*tokens) || *layer < 0 || *layer > INT32_MAX ||
        *expert < 0 || *expert > INT32_MAX) {
      stats.Count(Defect::kMalformed, records.offset());
      continue;
    }
    ExpertLoad load;
    load.tokens = *tokens;
    load.layer = static_cast<int32_t>(*layer);
    load.expert = static_cast<int32_t>(*expert);
    load.rank = static_cast<int32_t>(record.Integer({"rank", "rank_id"}).value_or(-1));
    load.source = source;
    timeline.expert_loads.push_back(load);
    ++stats.kept;
  }
}

Status ReadExperts(Input& input, Timeline& timeline, SourceId source) {
  RecordStorage storage;
  const std::optional<Record> record = FirstRecord(input.prefix(), &storage);
  FATHOM_TRY(record && IsRecord(*record) ? ReadRecords(input, timeline, source)
                                         : ReadObject(input, timeline, source));
  ReadStats& stats = timeline.sources[source].stats;
  stats.bytes = input.bytes_read();
  if (input.damaged()) stats.Count(Defect::kTruncated, input.bytes_read());
  return {};
}

}  // namespace

const Reader kExpertsReader = {"expert-load", "expert loads (CSV, JSON lines, or JSON counts)",
                               DetectExperts, ReadExperts};

}  // namespace fathom::diagnose
