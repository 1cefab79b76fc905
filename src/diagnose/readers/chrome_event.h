#pragma once
// One event of a Chrome trace (the JSON that Kineto, and Fathom itself, write), scanned where it
// lies: the fields that the timeline needs, as views into the text.
// Format: "Trace Event Format" (Google, 2016) and Kineto's output_json.cpp.
#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>

#include "diagnose/readers/json_scan.h"
#include "diagnose/source.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

// Fields of an event and its args that are kept. Integers come first, then texts (strings, or
// arrays as written), then the two launch dimensions.
enum class EventField : uint8_t {
  // integers
  kCorrelation,
  kExternalId,
  kDevice,
  kStream,
  kContext,
  kRegisters,
  kSharedBytes,
  kBytes,
  kGraphId,
  kGraphNodeId,
  kPythonId,
  kPythonParent,
  kWaitOnStream,
  kWaitOnCorrelation,
  kInElements,
  kOutElements,
  kGroupSize,
  kSequence,
  kSrcRank,
  kDstRank,
  kCommId,
  kTotalReserved,
  kTotalAllocated,
  kMemoryBytes,
  kDeviceId,
  kDeviceType,
  kTokens,
  kPromptTokens,
  // texts
  kKind,
  kKernel,
  kInputDims,
  kInputTypes,
  kInputStrides,
  kCallStack,
  kModuleHierarchy,
  kKernelHash,
  kKernelFile,
  kSyncKind,
  kCollectiveName,
  kDtype,
  kGroupName,
  kGroupDescription,
  kGroupRanks,
  kArgName,
  kArgLabels,
  // dimensions
  kGrid,
  kBlock,
  kIgnored,
};
inline constexpr size_t kNumEventInts = static_cast<size_t>(EventField::kPromptTokens) + 1;
inline constexpr size_t kNumEventTexts =
    static_cast<size_t>(EventField::kArgLabels) + 1 - kNumEventInts;
inline constexpr size_t kNumEventFields = static_cast<size_t>(EventField::kIgnored);

struct ChromeEvent {
  char phase = 0;
  bool has_ts = false;
  bool has_dur = false;
  bool bad_time = false;  // ts or dur is there and no readable time
  int64_t ts_ns = 0;      // without the trace's base time
  int64_t dur_ns = 0;
  json::Token name;
  json::Token category;
  json::Token id;  // digits or the inside of a string
  json::Token pid;
  json::Token tid;
  json::Token args;                  // the whole object, for counters
  std::bitset<kNumDefects> defects;  // odd numbers, control bytes: for the caller to count
  std::bitset<kNumEventFields> present;
  std::array<int64_t, kNumEventInts> ints;
  std::array<json::Token, kNumEventTexts> texts;
  Dim3 grid;
  Dim3 block;

  bool has(EventField field) const { return present[static_cast<size_t>(field)]; }
  int64_t Int(EventField field, int64_t absent) const {
    return has(field) ? ints[static_cast<size_t>(field)] : absent;
  }
  json::Token Text(EventField field) const {
    return has(field) ? texts[static_cast<size_t>(field) - kNumEventInts] : json::Token{};
  }
};

// Calls use(key, value, quoted) for each member of an args object; a string comes without its
// quotes, anything else as written.
template <class Use>
void ForEachArg(const json::Token& args, Use&& use) {
  if (args.begin == nullptr) return;
  json::Cursor c{args.begin + 1, args.end};
  for (;;) {
    while (c.p < c.end && *c.p != '"' && *c.p != '}') ++c.p;
    if (c.p >= c.end || *c.p == '}') return;
    ++c.p;
    json::Token key;
    if (ScanString(c, key) != json::Scan::kOk) return;
    SkipSpace(c);
    if (c.p < c.end && *c.p == ':') ++c.p;
    SkipSpace(c);
    const char* const begin = c.p;
    if (SkipValue(c) != json::Scan::kOk) return;
    const bool quoted = *begin == '"';
    use(key.view(), std::string_view(begin + quoted, static_cast<size_t>(c.p - begin) - 2 * quoted),
        quoted);
  }
}

// Scans the object at c.p (on its brace), leaving c.p behind it. On kBad or kMore c.p and `event`
// are unspecified.
json::Scan ScanEvent(json::Cursor& c, ChromeEvent& event);

// What can be read of an event with broken syntax, key by key: a string ends at the quote that a
// comma or bracket follows, or, where its quote is missing, at the next key. Bytes behind `text`
// must be readable as for a Cursor.
void RecoverEvent(std::string_view text, ChromeEvent& event);

// Where the event after a broken one starts, or the array ends: the offset in `text`, at `from` or
// later, of a brace that opens an event ("{", then a key of events), or of the bracket that closes
// the array. npos when `text` holds neither.
size_t FindEventBoundary(std::string_view text, size_t from);

}  // namespace fathom::diagnose
