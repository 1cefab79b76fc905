#include "diagnose/readers/prometheus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

// DCGM writes 0x7ffffffffffffff0 and above, as a float or an integer, for "blank", "not found",
// "not supported" and "no permission".
constexpr double kDcgmBlank = 9223372036854775792.0;

bool IsNameByte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_' ||
         byte == ':' || (byte >= '0' && byte <= '9');
}

struct Label {
  std::string_view key;
  std::string_view value;  // as written, escapes kept: canonical enough to compare
};

struct SampleLine {
  std::string_view name;
  std::vector<Label> labels;
  double value = 0;
  std::optional<double> time;  // as written: ms (Prometheus) or s (OpenMetrics)
};

// name{a="x",b="y"} value [time] [# exemplar]
bool ParseSample(std::string_view text, SampleLine& sample) {
  sample.labels.clear();
  size_t at = 0;
  while (at < text.size() && IsNameByte(text[at])) ++at;
  if (at == 0 || (text[0] >= '0' && text[0] <= '9')) return false;
  sample.name = text.substr(0, at);
  text.remove_prefix(at);
  if (text.starts_with('{')) {
    text.remove_prefix(1);
    for (;;) {
      const size_t begin = text.find_first_not_of(" \t,");
      if (begin == std::string_view::npos) return false;
      text.remove_prefix(begin);
      if (text[0] == '}') break;
      size_t end = 0;
      while (end < text.size() && (IsNameByte(text[end]) || text[end] == '.')) ++end;
      const std::string_view key = text.substr(0, end);
      const size_t quote = text.find_first_not_of(" \t=", end);
      if (end == 0 || quote == std::string_view::npos || text[quote] != '"') return false;
      size_t close = quote + 1;
      while (close < text.size() && text[close] != '"') close += text[close] == '\\' ? 2 : 1;
      if (close >= text.size()) return false;
      sample.labels.push_back({key, text.substr(quote + 1, close - quote - 1)});
      text.remove_prefix(close + 1);
    }
    text.remove_prefix(1);
  }
  const std::string_view value = TakeWord(text);
  const auto [stop, error] = std::from_chars(value.data() + value.starts_with('+'),
                                             value.data() + value.size(), sample.value);
  if (value.empty() || error != std::errc() || stop != value.data() + value.size()) return false;
  sample.time = WholeNumber(TakeWord(text));
  return true;
}

class PrometheusReader {
 public:
  PrometheusReader(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}

  Status Read(Input& input) {
    LineReader lines(input);
    std::string_view text;
    ReadStats& stats = timeline_.sources[source_].stats;
    for (;;) {
      FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&text));
      if (!more) break;
      text = Trim(text);
      if (text.empty()) continue;
      if (text[0] == '#') {
        ReadComment(text);
        continue;
      }
      ++stats.records;
      SampleLine& sample = sample_;
      if (!ParseSample(text, sample)) {
        stats.Count(Defect::kMalformed, lines.offset());
      } else if (std::isnan(sample.value) || sample.value >= kDcgmBlank) {
        stats.Count(Defect::kBlankValue, lines.offset());
      } else {
        AddSample(sample);
        ++stats.kept;
      }
    }
    Finish(input);
    return {};
  }

 private:
  void ReadComment(std::string_view text) {
    text.remove_prefix(1);
    const std::string_view word = TakeWord(text);
    if (word == "TYPE") {
      const std::string_view name = TakeWord(text);
      types_[std::string(name)] = std::string(TakeWord(text));
    } else if (word == "Time:") {
      // A series of scrapes has the UNIX time of each in front: "# Time: 1790000000.5".
      const std::optional<double> seconds = WholeNumber(TakeWord(text));
      if (seconds) scrape_ns_ = SecondsToNs(*seconds);
    }
  }

  static int64_t SecondsToNs(double seconds) {
    // Milliseconds since 1970 are beyond 1e11.
    if (std::fabs(seconds) > 1e11) seconds /= 1000;
    // The distance of two times is a time, too: 146 years from 1970 leave room for it.
    constexpr double kMostSeconds = 4.6e9;
    return std::fabs(seconds) < kMostSeconds ? static_cast<int64_t>(seconds * 1e9) : kNoTime;
  }

  SeriesKind KindOf(std::string_view name) const {
    if (name.ends_with("_bucket")) return SeriesKind::kHistogramBucket;
    std::string base(name);
    for (const std::string_view suffix : {"", "_total", "_sum", "_count", "_created"}) {
      if (!name.ends_with(suffix)) continue;
      const auto type = types_.find(base.substr(0, base.size() - suffix.size()));
      if (type == types_.end()) continue;
      if (type->second == "gauge") return SeriesKind::kGauge;
      if (type->second == "counter" || type->second == "histogram" || type->second == "summary") {
        return SeriesKind::kCounter;
      }
    }
    return SeriesKind::kUnknown;
  }

  void AddSample(const SampleLine& sample) {
    // The device's label of DCGM ("gpu") and of Fathom's own GPU metrics ("device").
    int32_t device = -1;
    std::vector<Label> labels = sample.labels;
    std::sort(labels.begin(), labels.end(),
              [](const Label& a, const Label& b) { return a.key < b.key; });
    std::string canonical;
    for (const Label& label : labels) {
      const auto index = WholeInteger(label.value);
      if (label.key == "gpu" && index) {
        device = static_cast<int32_t>(*index);
        continue;
      }
      canonical += canonical.empty() ? "" : ",";
      canonical.append(label.key).append("=\"").append(label.value).append("\"");
    }
    const std::string key =
        std::string(sample.name) + '{' + canonical + '}' + std::to_string(device);
    const auto [entry, added] = series_.try_emplace(key, 0);
    if (added) {
      Series row;
      row.source = source_;
      row.kind = KindOf(sample.name);
      row.name = timeline_.strings.Intern(sample.name);
      row.labels = timeline_.strings.Intern(canonical);
      row.device = device;
      entry->second = timeline_.AddSeries(row);
    } else if (!sample.time && seen_[entry->second] == scrape_) {
      ++scrape_;  // the same series again without a time: the next scrape has begun
    }
    seen_[entry->second] = scrape_;
    int64_t t_ns = sample.time ? SecondsToNs(*sample.time) : scrape_ns_;
    if (t_ns == kNoTime) {
      t_ns = static_cast<int64_t>(scrape_);
      ordinal_ = true;
    } else {
      first_ns_ = std::min(first_ns_, t_ns);
      last_ns_ = std::max(last_ns_, t_ns);
    }
    timeline_.AddSample(entry->second, t_ns, sample.value);
  }

  void Finish(const Input& input) {
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
    timeline_.AddFact(source_, "prometheus.scrapes", static_cast<double>(scrape_ + 1));
    if (!ordinal_ && first_ns_ <= last_ns_) {
      source.clock = ClockDomain::kUnix;
      source.utc_anchor_ns = 0;
      source.first_ns = first_ns_;
      source.last_ns = last_ns_;
      source.resolution_ns = 1'000'000;
    }
  }

  Timeline& timeline_;
  const SourceId source_;
  SampleLine sample_;
  std::map<std::string, std::string, std::less<>> types_;
  std::unordered_map<std::string, uint32_t> series_;
  std::unordered_map<uint32_t, uint64_t> seen_;  // series -> scrape it was last seen in
  uint64_t scrape_ = 0;
  int64_t scrape_ns_ = kNoTime;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
  bool ordinal_ = false;  // some samples have the scrape's number for their time
};

// A "# TYPE name kind" line, or lines that all are samples.
int DetectPrometheus(std::string_view prefix) {
  if (prefix.starts_with("# HELP ") || prefix.starts_with("# TYPE ") ||
      prefix.find("\n# TYPE ") != std::string_view::npos) {
    return 80;
  }
  SampleLine sample;
  int samples = 0;
  for (std::string_view line = TakeUntil(prefix, "\n"); !prefix.empty() && samples < 5;
       line = TakeUntil(prefix, "\n")) {
    line = Trim(line);
    if (line.empty() || line[0] == '#') continue;
    if (!ParseSample(line, sample)) return 0;
    ++samples;
  }
  return samples >= 2 ? 40 : 0;
}

Status ReadPrometheus(Input& input, Timeline& timeline, SourceId source) {
  return PrometheusReader(timeline, source).Read(input);
}

}  // namespace

const Reader kPrometheusReader = {"prometheus", "Prometheus or DCGM exporter scrape (/metrics)",
                                  DetectPrometheus, ReadPrometheus};

}  // namespace fathom::diagnose
