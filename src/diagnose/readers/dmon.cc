#include "diagnose/readers/dmon.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/gauges.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class DmonReader {
 public:
  DmonReader(Timeline& timeline, SourceId source)
      : timeline_(timeline), source_(source), gauges_(timeline, source) {}

  Status Read(Input& input) {
    LineReader lines(input);
    std::string_view text;
    for (;;) {
      FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&text));
      if (!more) break;
      text = Trim(text);
      if (text.empty()) continue;
      if (text[0] == '#') {
        ReadHeader(text.substr(1));
      } else {
        ReadRow(text, lines.offset());
      }
    }
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
    if (first_ns_ <= last_ns_) {
      source.clock = dated_ ? ClockDomain::kWallLocal : ClockDomain::kRelative;
      source.resolution_ns = kSecond;
      source.first_ns = first_ns_;
      source.last_ns = last_ns_;
    }
    return {};
  }

 private:
  // The names' line, then the units' line; both come again every few rows.
  void ReadHeader(std::string_view text) {
    const std::vector<std::string_view> words = Words(text);
    const bool units = std::find(words.begin(), words.end(), "Idx") != words.end();
    std::vector<std::string>& into = units ? units_ : names_;
    into.assign(words.begin(), words.end());
  }

  void ReadRow(std::string_view text, uint64_t offset) {
    ReadStats& stats = timeline_.sources[source_].stats;
    ++stats.records;
    const std::vector<std::string_view> words = Words(text);
    const auto column = [&](std::string_view name) -> std::optional<std::string_view> {
      const auto at = std::find(names_.begin(), names_.end(), name) - names_.begin();
      if (static_cast<size_t>(at) >= std::min(names_.size(), words.size())) return std::nullopt;
      return words[static_cast<size_t>(at)];
    };
    const std::optional<std::string_view> gpu = column("gpu");
    const auto device = gpu ? WholeInteger(*gpu) : std::nullopt;
    if (!device || *device < 0 || *device > INT32_MAX || words.size() < names_.size()) {
      stats.Count(Defect::kMalformed, offset);
      return;
    }
    const int64_t t_ns = TimeOf(column("Date"), column("Time"), static_cast<int32_t>(*device));
    first_ns_ = std::min(first_ns_, t_ns);
    last_ns_ = std::max(last_ns_, t_ns);
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == "gpu" || names_[i] == "Date" || names_[i] == "Time") continue;
      gauges_.Add(names_[i], i < units_.size() ? units_[i] : "", static_cast<int32_t>(*device),
                  t_ns, words[i], offset);
    }
    ++stats.kept;
  }

  // Without a date, dmon's default period of one second counts from the first row.
  int64_t TimeOf(std::optional<std::string_view> date, std::optional<std::string_view> time,
                 int32_t device) {
    if (time) {
      const std::string both = (date ? std::string(*date) : "01-01") + " " + std::string(*time);
      std::string_view text = both;
      if (const std::optional<int64_t> t_ns = TakeDateTime(text)) {
        dated_ = true;
        return *t_ns;
      }
    }
    return rows_of_device_[device]++ * kSecond;
  }

  Timeline& timeline_;
  const SourceId source_;
  Gauges gauges_;
  std::vector<std::string> names_;
  std::vector<std::string> units_;
  std::map<int32_t, int64_t> rows_of_device_;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
  bool dated_ = false;
};

// "# gpu    pwr ..." then "# Idx      W ...".
int DetectDmon(std::string_view prefix) {
  const std::string_view first = Trim(TakeUntil(prefix, "\n"));
  const std::string_view second = Trim(TakeUntil(prefix, "\n"));
  if (!first.starts_with('#') || !second.starts_with('#')) return 0;
  const std::vector<std::string_view> names = Words(first.substr(1));
  const std::vector<std::string_view> units = Words(second.substr(1));
  const bool gpu = std::find(names.begin(), names.end(), "gpu") != names.end();
  const bool idx = std::find(units.begin(), units.end(), "Idx") != units.end();
  return gpu && idx ? 95 : 0;
}

Status ReadDmon(Input& input, Timeline& timeline, SourceId source) {
  return DmonReader(timeline, source).Read(input);
}

}  // namespace

const Reader kDmonReader = {"nvidia-smi-dmon", "nvidia-smi dmon output", DetectDmon, ReadDmon};

}  // namespace fathom::diagnose
