#include "diagnose/readers/ncu.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kHeaderStart = "\"ID\",";
// A record may go on over lines inside quotes (rule texts); one longer than this is broken.
constexpr size_t kMaxRecordBytes = 8 << 20;

struct UnitPart {
  std::string_view name;
  std::string_view base;
  double factor;
};
constexpr UnitPart kUnitParts[] = {
    {"ns", "ns", 1},         {"nsecond", "ns", 1},   {"us", "ns", 1e3},      {"usecond", "ns", 1e3},
    {"ms", "ns", 1e6},       {"msecond", "ns", 1e6}, {"s", "ns", 1e9},       {"second", "ns", 1e9},
    {"byte", "byte", 1},     {"Kbyte", "byte", 1e3}, {"Mbyte", "byte", 1e6}, {"Gbyte", "byte", 1e9},
    {"Tbyte", "byte", 1e12}, {"hz", "hz", 1},        {"Hz", "hz", 1},        {"Khz", "hz", 1e3},
    {"Mhz", "hz", 1e6},      {"MHz", "hz", 1e6},     {"Ghz", "hz", 1e9},     {"GHz", "hz", 1e9},
};

ScaledUnit NormalizePart(std::string_view part) {
  for (const UnitPart& known : kUnitParts) {
    if (known.name == part) return {std::string(known.base), known.factor};
  }
  return {std::string(part), 1};
}

bool IsNumberText(std::string_view text) {
  if (text.empty()) return false;
  const size_t start = text[0] == '-' || text[0] == '+';
  return start < text.size() && text[start] >= '0' && text[start] <= '9' &&
         text.find_first_not_of("0123456789.,eE+-", start) == std::string_view::npos;
}

// "(256, 1, 1)" or "256, 1, 1"; a single number is x.
Dim3 ParseDim(std::string_view text) {
  uint32_t values[3] = {0, 1, 1};
  for (uint32_t& value : values) {
    const size_t begin = text.find_first_of("0123456789");
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return {};
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
  }
  return values[0] == 0 ? Dim3{} : Dim3{values[0], values[1], values[2]};
}

class NcuReader {
 public:
  NcuReader(Timeline& timeline, SourceId source)
      : timeline_(timeline),
        source_(source),
        first_metric_(timeline.kernel_metrics.size()),
        first_advice_(timeline.kernel_advice.size()) {}

  Status Read(Input& input) {
    LineReader lines(input);
    std::string_view line;
    std::string record;  // lines of one record put together
    uint64_t offset = 0;
    for (;;) {
      FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&line));
      if (!more) break;
      if (record.empty()) {
        offset = lines.offset();
        if (!line.starts_with('"')) continue;  // program output, banners
      } else {
        record += '\n';
      }
      record += line;
      if (std::count(record.begin(), record.end(), '"') % 2 != 0) {
        if (record.size() < kMaxRecordBytes) continue;
        stats().Count(Defect::kMalformed, offset);
        record.clear();
        continue;
      }
      ReadRecord(record, offset);
      record.clear();
    }
    if (!record.empty()) stats().Count(Defect::kTruncated, offset);
    Finish(input);
    return {};
  }

 private:
  ReadStats& stats() { return timeline_.sources[source_].stats; }

  void ReadRecord(const std::string& record, uint64_t offset) {
    const std::vector<std::string_view>& fields = splitter_.Split(record);
    if (record.starts_with(kHeaderStart)) {
      columns_.assign(fields.begin(), fields.end());
      units_.clear();
      details_ = Column("Metric Name") != kNone;
      if (details_) {
        id_ = Column("ID");
      } else {
        // The names of the metrics start behind the last column that describes the launch.
        first_raw_ = 0;
        for (const std::string_view name :
             {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
              "Block Size", "Grid Size", "Device", "CC"}) {
          const uint32_t at = Column(name);
          if (at != kNone) first_raw_ = std::max(first_raw_, at + 1);
        }
      }
      return;
    }
    if (columns_.empty()) return;  // a quoted line of the program's output
    if (!details_ && units_.empty() && !fields.empty() && fields[0].empty()) {
      units_.assign(fields.begin(), fields.end());
      return;
    }
    ++stats().records;
    // Details rows leave out the rule columns at their end.
    if (fields.size() > columns_.size() || fields.size() < std::min<size_t>(columns_.size(), 11)) {
      stats().Count(Defect::kMalformed, offset);
      return;
    }
    StartKernel(fields);
    if (details_) {
      ReadDetails(fields);
    } else {
      for (uint32_t i = first_raw_; i < fields.size(); ++i) {
        AddMetric(columns_[i], "", i < units_.size() ? std::string_view(units_[i]) : "", fields[i]);
      }
    }
    ++stats().kept;
  }

  uint32_t Column(std::string_view name) const {
    const auto at = std::find(columns_.begin(), columns_.end(), name);
    return at == columns_.end() ? kNone : static_cast<uint32_t>(at - columns_.begin());
  }
  std::string_view Field(const std::vector<std::string_view>& fields, std::string_view name) const {
    const uint32_t column = Column(name);
    return column < fields.size() ? fields[column] : std::string_view();
  }

  // Consecutive rows of one ID and process are one kernel.
  void StartKernel(const std::vector<std::string_view>& fields) {
    std::string key(Field(fields, "ID"));
    key.append("/").append(Field(fields, "Process ID"));
    if (key == kernel_key_ && details_) return;
    kernel_key_ = key;
    ProfiledKernel kernel;
    kernel.id = WholeInteger(Field(fields, "ID")).value_or(-1);
    kernel.name = timeline_.strings.Intern(Field(fields, "Kernel Name"));
    kernel.section_set = timeline_.strings.Intern(details_ ? "details" : "raw");
    kernel.grid = ParseDim(Field(fields, "Grid Size"));
    kernel.block = ParseDim(Field(fields, "Block Size"));
    kernel.stream = WholeInteger(Field(fields, "Stream")).value_or(-1);
    kernel.device = static_cast<int32_t>(
        std::clamp<int64_t>(WholeInteger(Field(fields, "Device")).value_or(-1), -1, INT32_MAX));
    std::string_view cc = Field(fields, "CC");
    kernel.compute_major = Small(TakeUntil(cc, "."));
    kernel.compute_minor = Small(cc);
    kernel.first_metric = static_cast<uint32_t>(timeline_.kernel_metrics.size());
    kernel.first_advice = static_cast<uint32_t>(timeline_.kernel_advice.size());
    kernel.source = source_;
    timeline_.profiled_kernels.push_back(kernel);
  }

  static int32_t Small(std::string_view text) {
    return static_cast<int32_t>(std::clamp<int64_t>(WholeInteger(text).value_or(0), 0, INT32_MAX));
  }

  void ReadDetails(const std::vector<std::string_view>& fields) {
    const std::string_view metric = Field(fields, "Metric Name");
    if (!metric.empty()) {
      AddMetric(metric, Field(fields, "Section Name"), Field(fields, "Metric Unit"),
                Field(fields, "Metric Value"));
    }
    const std::string_view rule = Field(fields, "Rule Name");
    if (rule.empty()) return;
    KernelAdvice advice;
    advice.rule = timeline_.strings.Intern(rule);
    advice.type = timeline_.strings.Intern(Field(fields, "Rule Type"));
    advice.text = timeline_.strings.Intern(Field(fields, "Rule Description"));
    advice.estimated_speedup_pct = kNaN;
    const std::string_view speedup = Field(fields, "Estimated Speedup");
    if (IsNumberText(speedup)) {
      guess_.See(speedup);
      speedups_.emplace_back(timeline_.kernel_advice.size(), speedup);
    }
    timeline_.kernel_advice.push_back(advice);
    ++timeline_.profiled_kernels.back().num_advice;
  }

  void AddMetric(std::string_view name, std::string_view section, std::string_view unit,
                 std::string_view text) {
    text = Trim(text);
    if (text.empty() || text == "n/a" || text == "N/A") return;
    KernelMetric metric;
    metric.name = timeline_.strings.Intern(name);
    metric.section = timeline_.strings.Intern(section);
    metric.unit = timeline_.strings.Intern(unit);
    metric.text = timeline_.strings.Intern(text);
    metric.value = kNaN;
    if (IsNumberText(text)) guess_.See(text);
    timeline_.kernel_metrics.push_back(metric);
    ++timeline_.profiled_kernels.back().num_metrics;
  }

  // The locale is known only now: turn the texts into numbers of base units.
  void Finish(const Input& input) {
    const NumberStyle style = guess_.style();
    std::map<StringId, std::pair<StringId, double>> units;
    for (size_t i = first_metric_; i < timeline_.kernel_metrics.size(); ++i) {
      KernelMetric& metric = timeline_.kernel_metrics[i];
      auto unit = units.find(metric.unit);
      if (unit == units.end()) {
        const ScaledUnit scaled = NormalizeUnit(timeline_.Name(metric.unit));
        unit = units
                   .emplace(metric.unit,
                            std::pair(timeline_.strings.Intern(scaled.base), scaled.factor))
                   .first;
      }
      metric.value = ParseNumber(timeline_.Name(metric.text), style) * unit->second.second;
      metric.unit = unit->second.first;
      if (!std::isnan(metric.value)) metric.text = 0;
    }
    for (const auto& [row, text] : speedups_) {
      timeline_.kernel_advice[row].estimated_speedup_pct = ParseNumber(text, style);
    }
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
  }

  Timeline& timeline_;
  const SourceId source_;
  const size_t first_metric_;
  const size_t first_advice_;
  CsvSplitter splitter_;
  std::vector<std::string> columns_;
  std::vector<std::string> units_;  // raw page
  uint32_t first_raw_ = 0;
  uint32_t id_ = 0;
  bool details_ = false;
  std::string kernel_key_;
  NumberStyleGuess guess_;
  std::vector<std::pair<size_t, std::string>> speedups_;
};

int DetectNcu(std::string_view prefix) {
  for (size_t at = 0; (at = prefix.find(kHeaderStart, at)) != std::string_view::npos; ++at) {
    const std::string_view line = prefix.substr(at, prefix.find('\n', at) - at);
    if ((at == 0 || prefix[at - 1] == '\n') &&
        line.find("\"Kernel Name\"") != std::string_view::npos) {
      return 95;
    }
  }
  return 0;
}

Status ReadNcu(Input& input, Timeline& timeline, SourceId source) {
  return NcuReader(timeline, source).Read(input);
}

}  // namespace

void NumberStyleGuess::See(std::string_view number) {
  const size_t comma = number.find(',');
  const size_t point = number.find('.');
  constexpr size_t npos = std::string_view::npos;
  if (comma == npos && point == npos) return;
  if (comma != npos && point != npos) {
    ++(number.rfind(',') > number.rfind('.') ? comma_decimal_ : point_decimal_);
    return;
  }
  // One kind of sign: twice it groups, and so it does not when other than three digits follow.
  const bool is_comma = comma != npos;
  const size_t at = is_comma ? comma : point;
  uint64_t& as_decimal = is_comma ? comma_decimal_ : point_decimal_;
  uint64_t& as_group = is_comma ? point_decimal_ : comma_decimal_;
  if (number.find(number[at], at + 1) != npos) {
    ++as_group;
  } else if (number.size() - at - 1 != 3) {
    ++as_decimal;
  }
}

double ParseNumber(std::string_view text, NumberStyle style) {
  text = Trim(text);
  if (const size_t paren = text.find(" ("); paren != std::string_view::npos) {
    text = text.substr(0, paren);
  }
  if (!IsNumberText(text)) return kNaN;
  std::string plain;
  for (const char byte : text) {
    if (byte == style.group) continue;
    plain += byte == style.point ? '.' : byte;
  }
  return WholeNumber(plain).value_or(kNaN);
}

ScaledUnit NormalizeUnit(std::string_view unit) {
  const size_t slash = unit.find('/');
  if (slash == std::string_view::npos) return NormalizePart(unit);
  ScaledUnit over = NormalizePart(unit.substr(0, slash));
  const ScaledUnit under = NormalizePart(unit.substr(slash + 1));
  if (under.base == "ns") {
    // A rate: per second.
    const double factor = over.factor * 1e9 / under.factor;
    return {over.base == "cycle" ? "hz" : over.base + "/s", factor};
  }
  return {over.base + "/" + under.base, over.factor / under.factor};
}

const Reader kNcuReader = {"ncu-csv", "Nsight Compute CSV (ncu --csv)", DetectNcu, ReadNcu};

}  // namespace fathom::diagnose
