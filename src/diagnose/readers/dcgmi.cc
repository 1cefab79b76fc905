#include "diagnose/readers/dcgmi.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/gauges.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A number in front of a row is a time from this one on (2001), else it belongs to the row.
constexpr double kFirstEpochSecond = 1e9;
constexpr double kLastEpochSecond = 4e9;

struct Field {
  std::string_view id, short_name, name;
};
constexpr Field kFields[] = {
    {"100", "SMCLK", "DCGM_FI_DEV_SM_CLOCK"},
    {"101", "MMCLK", "DCGM_FI_DEV_MEM_CLOCK"},
    {"140", "MMTMP", "DCGM_FI_DEV_MEMORY_TEMP"},
    {"150", "TMPTR", "DCGM_FI_DEV_GPU_TEMP"},
    {"155", "POWER", "DCGM_FI_DEV_POWER_USAGE"},
    {"203", "GPUTL", "DCGM_FI_DEV_GPU_UTIL"},
    {"204", "MCUTL", "DCGM_FI_DEV_MEM_COPY_UTIL"},
    {"252", "FBUSD", "DCGM_FI_DEV_FB_USED"},
    {"1001", "GRACT", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
    {"1002", "SMACT", "DCGM_FI_PROF_SM_ACTIVE"},
    {"1003", "SMOCC", "DCGM_FI_PROF_SM_OCCUPANCY"},
    {"1004", "TENSO", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"},
    {"1005", "DRAMA", "DCGM_FI_PROF_DRAM_ACTIVE"},
    {"1009", "PCITX", "DCGM_FI_PROF_PCIE_TX_BYTES"},
    {"1010", "PCIRX", "DCGM_FI_PROF_PCIE_RX_BYTES"},
    {"1011", "NVLTX", "DCGM_FI_PROF_NVLINK_TX_BYTES"},
    {"1012", "NVLRX", "DCGM_FI_PROF_NVLINK_RX_BYTES"},
};

std::string_view FieldName(std::string_view column) {
  for (const Field& field : kFields) {
    if (column == field.short_name || column == field.id) return field.name;
  }
  return column;
}

// Takes the time that a shell wrote in front of a row.
std::optional<std::pair<int64_t, ClockDomain>> TakeTime(std::string_view& text) {
  std::string_view rest = text;
  if (const std::optional<double> seconds = WholeNumber(TakeWord(rest));
      seconds && *seconds >= kFirstEpochSecond && *seconds < kLastEpochSecond) {
    text = Trim(rest);
    // A double holds such times to the microsecond.
    return std::pair(int64_t{std::llround(*seconds * 1e6)} * 1000, ClockDomain::kUnix);
  }
  if (const std::optional<int64_t> t_ns = TakeDateTime(text)) {
    text = Trim(text);
    return std::pair(*t_ns, ClockDomain::kWallLocal);
  }
  return std::nullopt;
}

// "#Entity" or "# Entity", behind a time or not; what follows are the names of the columns.
bool TakeHeader(std::string_view& text) {
  std::string_view rest = text;
  TakeTime(rest);
  if (!rest.starts_with('#')) return false;
  rest.remove_prefix(1);
  if (TakeWord(rest) != "Entity") return false;
  text = rest;
  return true;
}

class DcgmiReader {
 public:
  DcgmiReader(Timeline& timeline, SourceId source)
      : timeline_(timeline), source_(source), gauges_(timeline, source) {}

  Status Read(Input& input) {
    LineReader lines(input);
    std::string_view text;
    for (;;) {
      FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&text));
      if (!more) break;
      text = Trim(text);
      if (!text.empty()) ReadLine(text, lines.offset());
    }
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
    if (first_ns_ <= last_ns_) {
      source.clock = clock_;
      source.first_ns = first_ns_;
      source.last_ns = last_ns_;
      if (clock_ == ClockDomain::kUnix) source.utc_anchor_ns = 0;
      if (clock_ != ClockDomain::kUnix) source.resolution_ns = kSecond;
    }
    return {};
  }

 private:
  void ReadLine(std::string_view text, uint64_t offset) {
    if (TakeHeader(text)) {
      const std::vector<std::string_view> names = Words(text);
      columns_.assign(names.begin(), names.end());
      return;
    }
    const auto time = TakeTime(text);
    const std::string_view entity = TakeWord(text);
    if (entity == "ID" || entity == "Id") {
      const std::vector<std::string_view> units = Words(text);
      units_.assign(units.begin(), units.end());
      return;
    }
    ReadStats& stats = timeline_.sources[source_].stats;
    ++stats.records;
    const std::optional<int64_t> id = WholeInteger(TakeWord(text));
    if (!id || *id < 0 || *id > INT32_MAX || columns_.empty()) {
      stats.Count(Defect::kMalformed, offset);
    } else if (entity != "GPU") {
      ++stats.ignored;
    } else {
      ReadRow(static_cast<int32_t>(*id), time, text, offset);
    }
  }

  void ReadRow(int32_t device, std::optional<std::pair<int64_t, ClockDomain>> time,
               std::string_view text, uint64_t offset) {
    ReadStats& stats = timeline_.sources[source_].stats;
    const std::vector<std::string_view> words = Words(text);
    // A value of several words (a device's name) leaves no way to tell whose the next one is.
    if (words.size() != columns_.size()) {
      stats.Count(Defect::kMalformed, offset);
      return;
    }
    // One clock a file: rows without the time that others have belong nowhere.
    if (time && clock_ == ClockDomain::kNone) clock_ = time->second;
    if (!time && clock_ == ClockDomain::kNone) clock_ = ClockDomain::kRelative;
    if ((time ? time->second : ClockDomain::kRelative) != clock_) {
      stats.Count(Defect::kBadTime, offset);
      return;
    }
    const int64_t t_ns = time ? time->first : rows_of_device_[device]++ * kSecond;
    first_ns_ = std::min(first_ns_, t_ns);
    last_ns_ = std::max(last_ns_, t_ns);
    // The units' line has a word only for columns with a unit: it fits when all have one.
    const bool units = units_.size() == columns_.size();
    for (size_t i = 0; i < words.size(); ++i) {
      gauges_.Add(FieldName(columns_[i]), units ? units_[i] : "", device, t_ns, words[i], offset);
    }
    ++stats.kept;
  }

  Timeline& timeline_;
  const SourceId source_;
  Gauges gauges_;
  std::vector<std::string> columns_;
  std::vector<std::string> units_;
  std::map<int32_t, int64_t> rows_of_device_;
  ClockDomain clock_ = ClockDomain::kNone;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
};

int DetectDcgmi(std::string_view prefix) {
  // What dcgmi says of itself, and a shell's comments, may come first.
  constexpr int kSearchedLines = 8;
  for (int i = 0; i < kSearchedLines && !prefix.empty(); ++i) {
    std::string_view line = Trim(TakeUntil(prefix, "\n"));
    if (TakeHeader(line)) return 95;
  }
  return 0;
}

Status ReadDcgmi(Input& input, Timeline& timeline, SourceId source) {
  return DcgmiReader(timeline, source).Read(input);
}

}  // namespace

const Reader kDcgmiReader = {"dcgmi-dmon", "dcgmi dmon output", DetectDcgmi, ReadDcgmi};

}  // namespace fathom::diagnose
