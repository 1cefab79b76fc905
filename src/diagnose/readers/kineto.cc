#include "diagnose/readers/kineto.h"

#include <string>
#include <utility>

#include "diagnose/readers/chrome_event.h"
#include "diagnose/readers/chrome_timeline.h"
#include "diagnose/readers/kineto_header.h"

namespace fathom::diagnose {
namespace {

using json::Cursor;
using json::Scan;
using json::Token;

// An event, or one top-level value, that goes on for longer than this is broken.
constexpr size_t kMaxRecordBytes = 16 << 20;
// More than the white space and first key that mark the boundary of two events.
constexpr size_t kMaxBoundaryBytes = 4096;

class KinetoReader {
 public:
  KinetoReader(Input& input, Timeline& timeline, SourceId source)
      : input_(input),
        window_(input),
        timeline_(timeline),
        source_(source),
        out_(timeline, source) {}

  Status Read() {
    const uint64_t repaired = timeline_.strings.invalid_utf8();
    FATHOM_TRY(window_.More());
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (window_.text().starts_with(kByteOrderMark)) window_.Consume(kByteOrderMark.size());
    FATHOM_TRY(SkipToValue());
    const char bracket = Peek();
    if (bracket != '[' && bracket != '{') {
      return Err(Code::kDataLoss, "expected a JSON object or array of events, found neither");
    }
    window_.Consume(1);
    FATHOM_TRY(bracket == '[' ? ReadEvents() : ReadTopLevel());
    if (const uint64_t bad = timeline_.strings.invalid_utf8() - repaired; bad > 0) {
      stats().Count(Defect::kInvalidUtf8, 0, bad);
    }
    if (input_.damaged()) Cut();
    stats().bytes = input_.bytes_read();
    out_.Finish(header_);
    return {};
  }

 private:
  ReadStats& stats() { return timeline_.sources[source_].stats; }
  char Peek() const { return window_.size() > 0 ? *window_.begin() : '\0'; }

  // Leaves the window on the next byte that is no space, if there is one.
  Status SkipToValue() {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      SkipSpace(c);
      window_.ConsumeTo(c.p);
      if (window_.size() > 0) return {};
      FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
      if (!more) return {};
    }
  }

  // Scans with `scan(cursor)` at the window's front, reading more as long as that asks for it. The
  // cursor that is returned is valid in the window. kMore: the input ended first.
  template <class ScanFunction>
  Result<std::pair<Scan, const char*>> ScanRecord(const ScanFunction& scan) {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      const Scan result = scan(c);
      if (result != Scan::kMore) return std::pair(result, c.p);
      if (window_.size() > kMaxRecordBytes) return std::pair(Scan::kBad, c.p);
      FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
      if (!more) return std::pair(Scan::kMore, window_.end());
    }
  }

  Status ReadTopLevel() {
    for (;;) {
      FATHOM_TRY(SkipToValue());
      if (Peek() == ',') {
        window_.Consume(1);
        continue;
      }
      if (Peek() != '"') {
        if (Peek() != '}') Cut();
        return {};
      }
      Token key;
      FATHOM_ASSIGN_OR_RETURN(const auto scanned, ScanRecord([&](Cursor& c) {
                                ++c.p;
                                const Scan scan = ScanString(c, key);
                                if (scan != Scan::kOk) return scan;
                                SkipSpace(c);
                                if (c.p >= c.end) return Scan::kMore;
                                return *c.p++ == ':' ? Scan::kOk : Scan::kBad;
                              }));
      if (scanned.first != Scan::kOk) {
        Cut();
        return {};
      }
      const std::string name(key.view());
      window_.ConsumeTo(scanned.second);
      FATHOM_TRY(SkipToValue());
      if (name == "traceEvents" && Peek() == '[') {
        window_.Consume(1);
        FATHOM_TRY(ReadEvents());
        continue;
      }
      FATHOM_ASSIGN_OR_RETURN(const auto value, ScanRecord([](Cursor& c) { return SkipValue(c); }));
      if (value.first != Scan::kOk) {
        Cut();
        return {};
      }
      if (IsKinetoHeaderKey(name)) {
        const std::string_view text(window_.begin(),
                                    static_cast<size_t>(value.second - window_.begin()));
        ReadKinetoHeaderValue(name, text, header_, timeline_.sources[source_]);
      }
      window_.ConsumeTo(value.second);
    }
  }

  // The input ends too early: one fact, however many levels notice it.
  void Cut() {
    if (stats()[Defect::kTruncated].count == 0) {
      stats().Count(Defect::kTruncated, window_.offset());
    }
  }

  // The window is behind the array's bracket; afterwards behind its closing one, or at the end.
  Status ReadEvents() {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      while (c.p < c.end && (*c.p == ',' || json::EndsScalar(*c.p)) && *c.p != ']' && *c.p != '}') {
        ++c.p;
      }
      window_.ConsumeTo(c.p);
      if (c.p >= c.end) {
        FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
        if (more) continue;
        Cut();
        return {};
      }
      if (*c.p == ']') {
        window_.Consume(1);
        return {};
      }
      FATHOM_ASSIGN_OR_RETURN(const auto scanned, ScanRecord([&](Cursor& cursor) {
                                return *cursor.p == '{' ? ScanEvent(cursor, event_) : Scan::kBad;
                              }));
      if (scanned.first == Scan::kOk) {
        ++stats().records;
        out_.Add(event_, window_.offset());
        window_.ConsumeTo(scanned.second);
        continue;
      }
      FATHOM_ASSIGN_OR_RETURN(const bool go_on, Recover(scanned.first == Scan::kMore));
      if (!go_on) return {};
    }
  }

  // Keeps what it can of the broken event at the window's front and moves to the next one. False
  // when there is none.
  Result<bool> Recover(bool ended) {
    size_t boundary = FindEventBoundary(window_.text(), 1);
    bool more = true;
    while (boundary == std::string_view::npos && window_.size() <= kMaxRecordBytes) {
      // A boundary cut by the window's end is found when its rest is there.
      const size_t from =
          window_.size() > kMaxBoundaryBytes ? window_.size() - kMaxBoundaryBytes : 1;
      FATHOM_ASSIGN_OR_RETURN(more, window_.More());
      if (!more) break;
      boundary = FindEventBoundary(window_.text(), from);
    }
    const bool last = boundary == std::string_view::npos;
    const size_t length = last ? window_.size() : boundary;
    ++stats().records;
    RecoverEvent(window_.text().substr(0, length), event_);
    const uint64_t kept = stats().kept;
    const bool complete = event_.phase != 0 && event_.has_ts &&
                          (event_.phase != 'X' || (event_.has_dur && event_.name.begin != nullptr));
    if (complete) out_.Add(event_, window_.offset());
    if (last && ended) {
      Cut();
    } else {
      stats().Count(stats().kept > kept ? Defect::kRecovered : Defect::kMalformed,
                    window_.offset());
    }
    window_.Consume(length);
    return !last || more;
  }

  Input& input_;
  Window window_;
  Timeline& timeline_;
  const SourceId source_;
  ChromeTimelineWriter out_;
  KinetoHeader header_;
  ChromeEvent event_;
};

// Chrome traces start with a brace or bracket and soon name their events' keys.
int DetectKineto(std::string_view prefix) {
  const size_t start = prefix.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (start == std::string_view::npos) return 0;
  prefix.remove_prefix(start);
  const auto holds = [&](std::string_view text) {
    return prefix.find(text) != std::string_view::npos;
  };
  if (prefix[0] == '[') return holds("\"ph\"") && holds("\"ts\"") ? 80 : 0;
  if (prefix[0] != '{') return 0;
  if (holds("\"traceEvents\"")) return 100;
  // In front of the events a job of thousands of ranks lists the members of its process groups.
  const bool header = holds("\"schemaVersion\"") && holds("\"deviceProperties\"");
  return header || (holds("\"distributedInfo\"") && holds("\"pg_config\"")) ? 90 : 0;
}

Status ReadKineto(Input& input, Timeline& timeline, SourceId source) {
  return KinetoReader(input, timeline, source).Read();
}

}  // namespace

const Reader kKinetoReader = {"kineto", "PyTorch profiler (Kineto) or other Chrome trace JSON",
                              DetectKineto, ReadKineto};

}  // namespace fathom::diagnose
