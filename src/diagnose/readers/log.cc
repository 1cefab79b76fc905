#include "diagnose/readers/log.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kYear = 366 * 86400 * kSecond;
constexpr size_t kSearchedBytes = 2048;
constexpr size_t kSettingsBytes = size_t{1} << 16;

// What the lines of each kind hold; enough to tell a log from other text.
constexpr std::string_view kVllmMarks[] = {
    "Avg prompt throughput: ",      "SpecDecoding metrics: ",   "GPU KV cache size: ",
    "Graph capturing finished in ", "Maximum concurrency for ", "# GPU blocks: ",
    "iteration elapsed time: "};
constexpr std::string_view kSglangMarks[] = {"Decode batch", "Prefill batch",
                                             "max_total_num_tokens=", "#retracted_reqs: "};
constexpr std::string_view kNcclMarks[] = {"] NCCL INFO ", "] NCCL WARN ", " NCCL INFO "};

template <size_t N>
bool HoldsAny(std::string_view text, const std::string_view (&marks)[N]) {
  return std::any_of(std::begin(marks), std::end(marks), [&](std::string_view mark) {
    return text.find(mark) != std::string_view::npos;
  });
}

int DetectLog(std::string_view prefix) {
  return HoldsAny(prefix, kVllmMarks) || HoldsAny(prefix, kSglangMarks) ||
                 HoldsAny(prefix, kNcclMarks)
             ? 60
             : 0;
}

// Finds the time of a line: vLLM's "INFO 05-26 05:04:36", SGLang's "[2025-12-26 06:08:40 TP0]"
// (with DP and EP ranks), anything else that starts with a date, behind "(APIServer pid=1) ".
void ReadPrefix(std::string_view text, LogLine& line) {
  if (text.starts_with('(')) {
    // "(EngineCore_DP3 pid=12) "
    const std::string_view process = TakeUntil(text, ")");
    line.engine = ToInt32(NumberAfter(process, "_DP"), -1);
    text = Trim(text);
  }
  for (const std::string_view level : {"INFO ", "WARNING ", "ERROR ", "DEBUG "}) {
    if (text.starts_with(level)) text.remove_prefix(level.size());
  }
  const bool bracket = text.starts_with('[');
  if (bracket) text.remove_prefix(1);
  const std::optional<int64_t> time = TakeDateTime(text);
  if (!time) return;
  line.t_ns = *time;
  if (!bracket) return;
  const std::string_view ranks = TakeUntil(text, "]");
  line.rank = ToInt32(NumberAfter(ranks, " TP"), -1);
  line.engine = ToInt32(NumberAfter(ranks, " DP"), -1);
}

Status ReadLog(Input& input, Timeline& timeline, SourceId source) {
  LineReader lines(input);
  std::string_view text;
  std::array<uint64_t, 3> own{};  // lines of vLLM, SGLang, NCCL
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  int64_t previous = kNoTime;
  int64_t year_offset = 0;
  bool has_fraction = false;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&text));
    if (!more) break;
    // What is looked for stands at the front; prompts that servers log may go on for megabytes.
    // SGLang's own settings are one long line.
    const std::string_view front = text.substr(0, kSearchedBytes);
    const bool settings = HoldsSglangSettings(front);
    text = settings ? text.substr(0, kSettingsBytes) : front;
    LogLine line;
    line.line = lines.line_number();
    line.source = source;
    ReadPrefix(text, line);
    if (line.t_ns != kNoTime) {
      // Without a year, December is followed by January of the next.
      if (previous != kNoTime && previous - line.t_ns > kYear / 2) year_offset += kYear;
      previous = line.t_ns;
      line.t_ns += year_offset;
      first = std::min(first, line.t_ns);
      last = std::max(last, line.t_ns);
      has_fraction |= line.t_ns % kSecond != 0;
    }
    ReadStats& stats = timeline.sources[source].stats;
    ++stats.records;
    if (ReadVllmLine(text, line, timeline)) {
      ++own[0];
    } else if (ReadSglangLine(text, line, timeline)) {
      ++own[1];
    } else if (ReadNcclLine(text, line, timeline)) {
      ++own[2];
    } else {
      ++stats.ignored;
      continue;
    }
    ++stats.kept;
  }
  Source& entry = timeline.sources[source];
  constexpr std::string_view kFormats[] = {"vllm-log", "sglang-log", "nccl-log"};
  entry.format = kFormats[std::max_element(own.begin(), own.end()) - own.begin()];
  entry.stats.bytes = input.bytes_read();
  if (input.damaged()) entry.stats.Count(Defect::kTruncated, input.bytes_read());
  if (first <= last) {
    entry.clock = ClockDomain::kWallLocal;
    entry.resolution_ns = has_fraction ? kSecond / 1000 : kSecond;
    entry.first_ns = first;
    entry.last_ns = last;
  }
  if (entry.stats.kept == 0) {
    return Err(Code::kInvalidArgument, "expected a vLLM, SGLang or NCCL log, found no line of one");
  }
  return {};
}

}  // namespace

bool LogLineBuilder::Commit() {
  line_.num_values = static_cast<uint32_t>(timeline_.log_values.size()) - line_.first_value;
  if (line_.num_values == 0 && line_.text == 0) return false;
  timeline_.log_lines.push_back(line_);
  return true;
}

void AddModelFact(Timeline& timeline, SourceId source, std::string_view path) {
  path = path.substr(0, path.find_last_not_of('/') + 1);
  path = path.substr(path.find_last_of('/') + 1);
  if (!path.empty()) timeline.AddFact(source, kModelFact, path);
}

const Reader kLogReader = {"log", "vLLM, SGLang or NCCL log", DetectLog, ReadLog};

}  // namespace fathom::diagnose
