#include "diagnose/readers/perf.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr size_t npos = std::string_view::npos;

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == npos;
}

bool IsHex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF") == npos;
}

// "1077.632971:" as ns.
std::optional<int64_t> TimeOf(std::string_view word) {
  if (!word.ends_with(':')) return std::nullopt;
  word.remove_suffix(1);
  std::string_view fraction = word;
  const std::string_view seconds = TakeUntil(fraction, ".");
  if (!IsDigits(seconds) || seconds.size() > 10 || !IsDigits(fraction) || fraction.size() > 9) {
    return std::nullopt;
  }
  int64_t ns = WholeInteger(fraction).value_or(0);
  for (size_t i = fraction.size(); i < 9; ++i) ns *= 10;
  return WholeInteger(seconds).value_or(0) * 1'000'000'000 + ns;
}

struct Header {
  std::string_view command;
  int64_t pid = -1;
  int64_t tid = -1;
  int16_t cpu = -1;
  int64_t t_ns = kNoTime;
  uint64_t period = 1;
  std::string_view event;
  std::string_view rest;  // behind the event: a memory sample, or the frame of the same line
};

// "comm pid[/tid] [cpu] time: [period] event: ...". The command may hold spaces: it ends before the
// first number that a CPU or a time follows.
bool ParseHeader(std::string_view line, Header& header) {
  const size_t start = line.find_first_not_of(' ');
  if (start == npos || line[start] == '#' || line[start] == '\t') return false;
  std::string_view rest = line.substr(start);
  const char* const command = rest.data();
  std::string_view word = TakeWord(rest);
  const char* command_end = word.data() + word.size();
  for (;;) {
    word = TakeWord(rest);
    if (word.empty()) return false;
    std::string_view tid = word;
    const std::string_view pid = TakeUntil(tid, "/");
    std::string_view after = rest;
    const std::string_view next = TakeWord(after);
    const bool cpu = next.size() > 2 && next.front() == '[' && next.back() == ']' &&
                     IsDigits(next.substr(1, next.size() - 2));
    if (IsDigits(pid) && (tid.empty() || IsDigits(tid)) && (cpu || TimeOf(next))) {
      header.command = std::string_view(command, static_cast<size_t>(command_end - command));
      header.pid = tid.empty() ? -1 : WholeInteger(pid).value_or(-1);
      header.tid = WholeInteger(tid.empty() ? pid : tid).value_or(-1);
      if (cpu) {
        const int64_t index = WholeInteger(next.substr(1, next.size() - 2)).value_or(-1);
        header.cpu = static_cast<int16_t>(std::min<int64_t>(index, INT16_MAX));
        rest = after;
      }
      break;
    }
    command_end = word.data() + word.size();
  }
  std::string_view after = rest;
  if (const std::optional<int64_t> time = TimeOf(TakeWord(after))) {
    header.t_ns = *time;
    rest = after;
  }
  after = rest;
  word = TakeWord(after);
  if (IsDigits(word)) {
    header.period = static_cast<uint64_t>(WholeInteger(word).value_or(1));
    rest = after;
    word = TakeWord(after);
  }
  if (word.ends_with(':')) {
    header.event = word.substr(0, word.find_last_not_of(':') + 1);
    rest = after;
  } else {
    // Branch traces name what happened instead ("call", "return", "tr end").
    header.event = word;
    rest = after;
  }
  header.rest = Trim(rest);
  return true;
}

struct Frame {
  std::string_view symbol;
  std::string_view module;
};

// "ffffffff82249ae4 sized_strscpy+0xc4 ([kernel.kallsyms])", or without the address.
std::optional<Frame> ParseFrame(std::string_view text) {
  text = Trim(text);
  if (!text.ends_with(')')) return std::nullopt;
  const size_t open = text.rfind(" (");
  if (open == npos) return std::nullopt;
  Frame frame;
  frame.module = text.substr(open + 2, text.size() - open - 3);
  std::string_view symbol = Trim(text.substr(0, open));
  // Branch traces put what was called, and padding, in front of the address.
  if (const size_t gap = symbol.rfind("  "); gap != npos) symbol = Trim(symbol.substr(gap));
  std::string_view after = symbol;
  if (IsHex(TakeWord(after)) && !Trim(after).empty()) symbol = Trim(after);
  if (const size_t plus = symbol.rfind("+0x"); plus != npos) symbol = symbol.substr(0, plus);
  frame.symbol = symbol.empty() ? "[unknown]" : symbol;
  return frame;
}

MemoryLevel LevelOf(std::string_view text) {
  const bool remote = text.find("Remote") != npos;
  if (text.find("RAM") != npos) return remote ? MemoryLevel::kRemoteRam : MemoryLevel::kLocalRam;
  if (remote) return MemoryLevel::kRemoteCache;
  if (text.find("LFB") != npos) return MemoryLevel::kLfb;
  if (text.find("L1") != npos) return MemoryLevel::kL1;
  if (text.find("L2") != npos) return MemoryLevel::kL2;
  if (text.find("L3") != npos) return MemoryLevel::kL3;
  return text.find("N/A") != npos ? MemoryLevel::kUnknown : MemoryLevel::kOther;
}

// "[addr] data_src |OP LOAD|LVL L1 hit|SNP None|TLB L1 hit|LCK No|BLK  N/A  weight ... frame":
// fills the sample and returns what follows the weight.
std::string_view ReadMemory(std::string_view text, StackSample& sample) {
  const size_t bar = text.find("|OP ");
  if (bar == npos) return text;
  std::string_view front = text.substr(0, bar);
  const std::string_view address = TakeWord(front);
  if (!TakeWord(front).empty() && IsHex(address)) {  // two words: address, then data source
    std::from_chars(address.data(), address.data() + address.size(), sample.address, 16);
  }
  std::string_view rest = text.substr(bar + 1);
  std::string_view last;
  while (!rest.empty()) {
    last = TakeUntil(rest, "|");
    if (last.starts_with("OP ")) sample.store = last.find("STORE") != npos;
    if (last.starts_with("LVL ")) sample.level = LevelOf(last);
    if (last.starts_with("SNP ")) {
      sample.hit_modified = last.find("HitM") != npos || last.find("Hitm") != npos;
    }
  }
  // The last field runs into the weights: "BLK  N/A    5   7    0   7fad7c47425d sym (dso)".
  TakeWord(last);  // BLK or LCK
  TakeWord(last);  // its value, one word or several ("N/A", "No", "Data Addr")
  std::string_view after = last;
  for (std::string_view word = TakeWord(after); !word.empty() && !IsDigits(word) && !IsHex(word);
       word = TakeWord(after)) {
    last = after;
  }
  after = last;
  const std::string_view weight = TakeWord(after);
  if (IsDigits(weight) && weight.size() < 10) {
    sample.latency_cycles = static_cast<uint32_t>(WholeInteger(weight).value_or(0));
    last = after;
    // Further weights (instruction latency, retire latency) are small decimal numbers as well.
    for (;;) {
      after = last;
      const std::string_view word = TakeWord(after);
      if (!IsDigits(word) || word.size() > 6) break;
      last = after;
    }
  }
  return last;
}

class PerfReader {
 public:
  PerfReader(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}

  Status Read(Input& input) {
    LineReader lines(input);
    std::string_view line;
    for (;;) {
      FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&line));
      if (!more) break;
      if (line.empty() || line[0] == '#') {
        Flush();
        continue;
      }
      if (line[0] == '\t') {
        AddFrame(line, lines.offset());
        continue;
      }
      Header header;
      if (ParseHeader(line, header)) {
        Flush();
        ++stats().records;
        Start(header);
      } else {
        AddFrame(line, lines.offset());
      }
    }
    Flush();
    Finish(input);
    return {};
  }

 private:
  ReadStats& stats() { return timeline_.sources[source_].stats; }

  void Start(const Header& header) {
    sample_ = {};
    sample_.source = source_;
    sample_.t_ns = header.t_ns;
    sample_.period = header.period;
    sample_.pid = header.pid;
    sample_.tid = header.tid;
    sample_.cpu = header.cpu;
    sample_.command = timeline_.strings.Intern(header.command);
    sample_.event = timeline_.strings.Intern(header.event);
    open_ = true;
    frames_.clear();
    const std::string_view rest = ReadMemory(header.rest, sample_);
    if (!rest.empty()) {
      if (const std::optional<Frame> frame = ParseFrame(rest)) Push(*frame);
    }
  }

  void AddFrame(std::string_view line, uint64_t offset) {
    const std::optional<Frame> frame = ParseFrame(line);
    if (open_ && frame) {
      Push(*frame);
    } else {
      ++stats().records;
      stats().Count(Defect::kMalformed, offset);
    }
  }

  void Push(const Frame& frame) {
    frames_.emplace_back(timeline_.strings.Intern(frame.symbol),
                         timeline_.strings.Intern(frame.module));
  }

  // perf writes the innermost frame first.
  void Flush() {
    if (!open_) return;
    open_ = false;
    uint32_t node = kNone;
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      node = timeline_.AddStackNode(node, frame->first, frame->second);
    }
    sample_.stack = node;
    timeline_.stack_samples.push_back(sample_);
    ++stats().kept;
    if (sample_.t_ns == kNoTime) return;
    first_ns_ = std::min(first_ns_, sample_.t_ns);
    last_ns_ = std::max(last_ns_, sample_.t_ns);
  }

  void Finish(const Input& input) {
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
    if (first_ns_ > last_ns_) return;
    // perf's own clock counts from boot, as CLOCK_MONOTONIC does (exactly so with -k monotonic).
    source.clock = ClockDomain::kMonotonic;
    source.resolution_ns = 1000;
    source.first_ns = first_ns_;
    source.last_ns = last_ns_;
  }

  Timeline& timeline_;
  const SourceId source_;
  StackSample sample_;
  bool open_ = false;
  std::vector<std::pair<StringId, StringId>> frames_;  // of the open sample, innermost first
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
};

// Of the first lines that are no comment, one is a header and none is foreign.
int DetectPerfScript(std::string_view prefix) {
  for (int lines = 0; lines < 40 && !prefix.empty();) {
    const std::string_view line = TakeUntil(prefix, "\n");
    if (Trim(line).empty() || line[0] == '#') continue;
    ++lines;
    Header header;
    if (!ParseHeader(line, header)) return 0;
    // A header leads to a frame of its own line, to frames below, or to nothing (-F without ip).
    if (!header.event.empty() || prefix.starts_with('\t')) return 55;
  }
  return 0;
}

Status ReadPerfScript(Input& input, Timeline& timeline, SourceId source) {
  return PerfReader(timeline, source).Read(input);
}

int DetectPerfC2c(std::string_view prefix) {
  return prefix.find("Trace Event Information") != npos && prefix.find("Load Operations") != npos
             ? 90
             : 0;
}

// "  Load Remote DRAM                  :       3246" becomes the fact c2c.load_remote_dram.
Status ReadPerfC2c(Input& input, Timeline& timeline, SourceId source) {
  LineReader lines(input);
  std::string_view line;
  ReadStats& stats = timeline.sources[source].stats;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, lines.Next(&line));
    if (!more) break;
    ++stats.records;
    std::string_view value = line;
    const std::string_view name = Trim(TakeUntil(value, ":"));
    value = Trim(value);
    const bool share = value.ends_with('%');
    if (share) value.remove_suffix(1);
    const std::optional<double> number = WholeNumber(value);
    if (!number || name.empty() || line.starts_with('#')) {
      ++stats.ignored;
      continue;
    }
    std::string key = "c2c.";
    for (const char byte : name) {
      const bool word = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
      const bool upper = byte >= 'A' && byte <= 'Z';
      if (word || upper) {
        key += upper ? static_cast<char>(byte - 'A' + 'a') : byte;
      } else if (key.back() != '_' && key.back() != '.') {
        key += '_';
      }
    }
    if (key.back() == '_') key.pop_back();
    timeline.AddFact(source, key, share ? *number / 100 : *number);
    ++stats.kept;
  }
  stats.bytes = input.bytes_read();
  if (input.damaged()) stats.Count(Defect::kTruncated, input.bytes_read());
  return {};
}

}  // namespace

const Reader kPerfScriptReader = {"perf-script", "perf script output", DetectPerfScript,
                                  ReadPerfScript};
const Reader kPerfC2cReader = {"perf-c2c", "perf c2c report", DetectPerfC2c, ReadPerfC2c};

}  // namespace fathom::diagnose
