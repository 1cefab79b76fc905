#include "diagnose/readers/chrome_event.h"

#include <algorithm>
#include <iterator>

namespace fathom::diagnose {
namespace {

using json::Cursor;
using json::Number;
using json::Scan;
using json::Token;
using F = EventField;

struct ArgName {
  std::string_view name;
  EventField field;
};
constexpr ArgName kArgNames[] = {
    {"correlation", F::kCorrelation},
    {"External id", F::kExternalId},
    {"external id", F::kExternalId},
    {"device", F::kDevice},
    {"stream", F::kStream},
    {"context", F::kContext},
    {"registers per thread", F::kRegisters},
    {"shared memory", F::kSharedBytes},
    {"bytes", F::kBytes},
    {"graph id", F::kGraphId},
    {"graph node id", F::kGraphNodeId},
    {"Python id", F::kPythonId},
    {"Python parent id", F::kPythonParent},
    {"wait_on_stream", F::kWaitOnStream},
    {"wait_on_cuda_event_record_corr_id", F::kWaitOnCorrelation},
    {"In msg nelems", F::kInElements},
    {"Out msg nelems", F::kOutElements},
    {"Group size", F::kGroupSize},
    {"Seq", F::kSequence},
    {"Src Rank", F::kSrcRank},
    {"Dst Rank", F::kDstRank},
    {"Comms Id", F::kCommId},
    {"Total Reserved", F::kTotalReserved},
    {"Total Allocated", F::kTotalAllocated},
    {"Bytes", F::kMemoryBytes},
    {"Device Id", F::kDeviceId},
    {"Device Type", F::kDeviceType},
    {"tokens", F::kTokens},
    {"prompt_tokens", F::kPromptTokens},
    {"kind", F::kKind},
    {"kernel", F::kKernel},
    {"Input Dims", F::kInputDims},
    {"Input dims", F::kInputDims},
    {"Input type", F::kInputTypes},
    {"Input Strides", F::kInputStrides},
    {"Call stack", F::kCallStack},
    {"Module Hierarchy", F::kModuleHierarchy},
    {"kernel_hash", F::kKernelHash},
    {"kernel_file", F::kKernelFile},
    {"cuda_sync_kind", F::kSyncKind},
    {"Collective name", F::kCollectiveName},
    {"dtype", F::kDtype},
    {"Process Group Name", F::kGroupName},
    {"Process Group Description", F::kGroupDescription},
    {"Process Group Ranks", F::kGroupRanks},
    {"name", F::kArgName},
    {"labels", F::kArgLabels},
    {"grid", F::kGrid},
    {"block", F::kBlock},
};

// Perfect enough: open addressing over a hash of length, first, middle and last byte, built at
// compile time.
constexpr size_t kArgCells = 256;
constexpr size_t ArgHash(std::string_view key) {
  const auto byte = [&](size_t i) {
    return static_cast<size_t>(static_cast<unsigned char>(key[i]));
  };
  return (key.size() * 7 + byte(0) * 5 + byte(key.size() / 2) * 3 + byte(key.size() - 1)) %
         kArgCells;
}
constexpr std::array<uint8_t, kArgCells> BuildArgIndex() {
  std::array<uint8_t, kArgCells> index{};  // position + 1; 0: empty
  for (size_t i = 0; i < std::size(kArgNames); ++i) {
    size_t cell = ArgHash(kArgNames[i].name);
    while (index[cell] != 0) cell = (cell + 1) % kArgCells;
    index[cell] = static_cast<uint8_t>(i + 1);
  }
  return index;
}
constexpr std::array<uint8_t, kArgCells> kArgIndex = BuildArgIndex();

EventField FindArg(std::string_view key) {
  if (key.empty()) return F::kIgnored;
  for (size_t cell = ArgHash(key); kArgIndex[cell] != 0; cell = (cell + 1) % kArgCells) {
    const ArgName& entry = kArgNames[kArgIndex[cell] - 1];
    if (entry.name == key) return entry.field;
  }
  return F::kIgnored;
}

enum class TopKey : uint8_t {
  kPhase,
  kCategory,
  kName,
  kPid,
  kTid,
  kTs,
  kDur,
  kId,
  kArgs,
  kIgnored
};

TopKey FindTopKey(std::string_view key) {
  switch (key.size()) {
    case 2:
      if (key == "ph") return TopKey::kPhase;
      if (key == "ts") return TopKey::kTs;
      return key == "id" ? TopKey::kId : TopKey::kIgnored;
    case 3:
      if (key == "cat") return TopKey::kCategory;
      if (key == "pid") return TopKey::kPid;
      if (key == "tid") return TopKey::kTid;
      return key == "dur" ? TopKey::kDur : TopKey::kIgnored;
    case 4:
      if (key == "name") return TopKey::kName;
      return key == "args" ? TopKey::kArgs : TopKey::kIgnored;
    default:
      return TopKey::kIgnored;
  }
}

void Clear(ChromeEvent& event) {
  event.phase = 0;
  event.has_ts = event.has_dur = event.bad_time = false;
  event.ts_ns = event.dur_ns = 0;
  event.name = event.category = event.id = event.pid = event.tid = event.args = Token{};
  event.present.reset();
  event.defects.reset();
  event.grid = event.block = Dim3{};
}

// The text of a scalar or string without its quotes; arrays and objects as written.
Scan ScanText(Cursor& c, Token& token) {
  if (c.p >= c.end) return Scan::kMore;
  if (*c.p == '"') {
    ++c.p;
    return ScanString(c, token);
  }
  token = Token{};
  token.begin = c.p;
  const Scan scan = SkipValue(c);
  token.end = c.p;
  return scan;
}

class EventScanner {
 public:
  explicit EventScanner(ChromeEvent& event) : event_(event) {}

  Scan Object(Cursor& c, bool top_level) {
    ++c.p;  // the brace
    SkipSpace(c);
    if (c.p < c.end && *c.p == '}') {
      ++c.p;
      return Scan::kOk;
    }
    for (;;) {
      SkipSpace(c);
      if (c.p >= c.end || *c.p != '"') return c.Fail();
      ++c.p;
      Token key;
      if (const Scan scan = ScanString(c, key); scan != Scan::kOk) return scan;
      SkipSpace(c);
      if (c.p >= c.end || *c.p != ':') return c.Fail();
      ++c.p;
      SkipSpace(c);
      const Scan scan = top_level ? TopValue(key.view(), c) : ArgValue(key.view(), c);
      if (scan != Scan::kOk) return scan;
      SkipSpace(c);
      if (c.p >= c.end) return Scan::kMore;
      if (*c.p == '}') {
        ++c.p;
        return Scan::kOk;
      }
      if (*c.p != ',') return Scan::kBad;
      ++c.p;
    }
  }

  void AssignTop(TopKey key, const Token& token) {
    NoteControl(token);
    switch (key) {
      case TopKey::kPhase:
        if (token.end - token.begin == 1) event_.phase = *token.begin;
        break;
      case TopKey::kCategory:
        event_.category = token;
        break;
      case TopKey::kName:
        event_.name = token;
        break;
      case TopKey::kPid:
        event_.pid = token;
        break;
      case TopKey::kTid:
        event_.tid = token;
        break;
      case TopKey::kId:
        event_.id = token;
        break;
      case TopKey::kTs:
        AssignTime(token, event_.ts_ns, event_.has_ts);
        break;
      case TopKey::kDur:
        AssignTime(token, event_.dur_ns, event_.has_dur);
        break;
      case TopKey::kArgs:
      case TopKey::kIgnored:
        break;
    }
  }

  void AssignArg(EventField field, const Token& token) {
    NoteControl(token);
    const auto index = static_cast<size_t>(field);
    if (field == F::kGrid || field == F::kBlock) {
      if (ParseDimensions(token.view(), field == F::kGrid ? event_.grid : event_.block)) {
        event_.present.set(index);
      }
    } else if (index >= kNumEventInts) {
      event_.texts[index - kNumEventInts] = token;
      event_.present.set(index);
    } else {
      switch (json::ToInteger(token.view(), &event_.ints[index])) {
        case Number::kBig:
          Note(Defect::kBigInteger);
          event_.present.set(index);
          break;
        case Number::kOk:
          event_.present.set(index);
          break;
        case Number::kNonFinite:
          Note(Defect::kNonFinite);
          break;
        case Number::kNone:
          break;
      }
    }
  }

 private:
  Scan TopValue(std::string_view name, Cursor& c) {
    const TopKey key = FindTopKey(name);
    if (key == TopKey::kIgnored) return SkipValue(c);
    if (key == TopKey::kArgs && c.p < c.end && *c.p == '{') {
      event_.args.begin = c.p;
      const Scan scan = Object(c, /*top_level=*/false);
      event_.args.end = c.p;
      return scan;
    }
    Token token;
    const Scan scan = ScanText(c, token);
    if (scan == Scan::kOk) AssignTop(key, token);
    return scan;
  }

  Scan ArgValue(std::string_view name, Cursor& c) {
    const EventField field = FindArg(name);
    if (field == F::kIgnored) return IgnoredArg(name, c);
    Token token;
    const Scan scan = ScanText(c, token);
    if (scan == Scan::kOk) AssignArg(field, token);
    return scan;
  }

  // The bandwidth of a copy of no duration is inf or nan: worth a count, since strict parsers stop
  // there.
  Scan IgnoredArg(std::string_view name, Cursor& c) {
    const char* const begin = c.p;
    const Scan scan = SkipValue(c);
    if (scan == Scan::kOk && name == "memory bandwidth (GB/s)" &&
        (*begin == 'i' || *begin == 'n' || *begin == 'I' || *begin == 'N')) {
      Note(Defect::kNonFinite);
    }
    return scan;
  }

  void NoteControl(const Token& token) {
    if (token.control) Note(Defect::kControlByte);
  }

  void AssignTime(const Token& token, int64_t& ns, bool& given) {
    given = json::MicrosecondsToNs(token.view(), &ns) == Number::kOk;
    event_.bad_time |= !given;
  }

  // [x, y, z]; anything else (Triton's "grid": "(8,)") is not taken.
  static bool ParseDimensions(std::string_view text, Dim3& dim) {
    if (!text.starts_with('[')) return false;
    uint32_t values[3] = {};
    size_t count = 0;
    for (size_t i = 0; i < text.size() && count < 3;) {
      if (text[i] < '0' || text[i] > '9') {
        ++i;
        continue;
      }
      uint64_t value = 0;
      for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
        value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text[i] - '0'), UINT32_MAX);
      }
      values[count++] = static_cast<uint32_t>(value);
    }
    if (count == 3) dim = {values[0], values[1], values[2]};
    return count == 3;
  }

  void Note(Defect defect) { event_.defects.set(static_cast<size_t>(defect)); }

  ChromeEvent& event_;
};

bool IsSpace(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

size_t SkipSpaceAt(std::string_view text, size_t at) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

// Whether the quote at `quote` opens a known key ("key":).
bool OpensKey(std::string_view text, size_t quote) {
  const size_t close = text.find('"', quote + 1);
  if (close == std::string_view::npos) return false;
  const size_t colon = SkipSpaceAt(text, close + 1);
  if (colon >= text.size() || text[colon] != ':') return false;
  const std::string_view key = text.substr(quote + 1, close - quote - 1);
  return FindTopKey(key) != TopKey::kIgnored || FindArg(key) != F::kIgnored;
}

// The end of a string that may hold unescaped quotes or lack its closing one: the first quote that
// a comma, a closing bracket or a key follows; where a quote opens a key, the closing one was left
// out and the string ends before the comma. npos: the text ends inside the string.
size_t LenientStringEnd(std::string_view text, size_t begin) {
  for (size_t at = begin; (at = text.find('"', at)) != std::string_view::npos; ++at) {
    const size_t next = SkipSpaceAt(text, at + 1);
    if (next >= text.size() || text[next] == ',' || text[next] == '}' || text[next] == ']' ||
        (text[next] == '"' && OpensKey(text, next))) {
      return at;
    }
    if (!OpensKey(text, at)) continue;
    size_t end = at;
    while (end > begin && IsSpace(text[end - 1])) --end;
    if (end > begin && text[end - 1] == ',') --end;
    return end;
  }
  return std::string_view::npos;
}

}  // namespace

json::Scan ScanEvent(json::Cursor& c, ChromeEvent& event) {
  Clear(event);
  return EventScanner(event).Object(c, /*top_level=*/true);
}

void RecoverEvent(std::string_view text, ChromeEvent& event) {
  Clear(event);
  EventScanner scanner(event);
  for (size_t at = 0; (at = text.find('"', at)) != std::string_view::npos;) {
    const size_t close = text.find('"', at + 1);
    if (close == std::string_view::npos) return;
    const std::string_view key = text.substr(at + 1, close - at - 1);
    const TopKey top = FindTopKey(key);
    const EventField arg = FindArg(key);
    size_t value = SkipSpaceAt(text, close + 1);
    if ((top == TopKey::kIgnored && arg == F::kIgnored) || value >= text.size() ||
        text[value] != ':') {
      at = close;  // this quote may open the next key
      continue;
    }
    value = SkipSpaceAt(text, value + 1);
    if (value >= text.size()) return;
    if (top == TopKey::kArgs) {
      at = value;
      continue;
    }
    Token token;
    const bool quoted = text[value] == '"';
    const size_t begin = value + (quoted ? 1 : 0);
    size_t end = std::string_view::npos;
    if (quoted) {
      end = LenientStringEnd(text, begin);
    } else if (text[value] == '[') {
      Cursor nested{text.data() + value, text.data() + text.size()};
      if (SkipNested(nested) == Scan::kOk) end = static_cast<size_t>(nested.p - text.data());
    } else {
      end = text.find_first_of(",}] \r\n\t", begin);
    }
    if (end == std::string_view::npos) return;  // cut off inside the value
    token.begin = text.data() + begin;
    token.end = text.data() + end;
    const std::string_view body = token.view();
    token.escaped = body.find('\\') != std::string_view::npos;
    token.control = std::any_of(body.begin(), body.end(),
                                [](char byte) { return static_cast<unsigned char>(byte) < 0x20; });
    // "name" is a key of the event and of metadata's args: the first is the event's.
    const bool to_top = top != TopKey::kIgnored && (top != TopKey::kName || !event.name.begin);
    if (to_top) {
      scanner.AssignTop(top, token);
    } else {
      scanner.AssignArg(arg, token);
    }
    at = end + (quoted && end < text.size() && text[end] == '"' ? 1 : 0);
  }
}

size_t FindEventBoundary(std::string_view text, size_t from) {
  for (size_t at = from; (at = text.find_first_of("{]", at)) != std::string_view::npos; ++at) {
    if (text[at] == ']') {
      // The array's own bracket is followed by the trace's next key or its brace, and that by more
      // than an event's args ever have.
      size_t next = SkipSpaceAt(text, at + 1);
      size_t before = at;
      while (before > 0 && IsSpace(text[before - 1])) --before;
      if (before == 0 || text[before - 1] != '}') continue;
      if (next >= text.size() || text[next] == '}') return at;
      if (text[next] != ',') continue;
      next = SkipSpaceAt(text, next + 1);
      if (next < text.size() && text[next] == '"') return at;
      continue;
    }
    size_t before = at;
    while (before > 0 && IsSpace(text[before - 1])) --before;
    if (before > 0 && text[before - 1] != ',' && text[before - 1] != '}' &&
        text[before - 1] != '[') {
      continue;
    }
    const size_t quote = SkipSpaceAt(text, at + 1);
    if (quote >= text.size() || text[quote] != '"') continue;
    const size_t close = text.find('"', quote + 1);
    if (close == std::string_view::npos) continue;
    if (FindTopKey(text.substr(quote + 1, close - quote - 1)) != TopKey::kIgnored) return at;
  }
  return std::string_view::npos;
}

}  // namespace fathom::diagnose
