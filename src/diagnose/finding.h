#pragma once
// What a diagnosis says, as data: rules make it, reports turn it into prose, pictures or JSON.
// Texts are keys of the catalogue (report/catalogue.h) with named arguments, so that every report
// can be written in every language.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/timeline.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

struct Text {
  std::string_view key;  // of the catalogue
  std::vector<std::pair<std::string_view, std::string>> args;
};

enum class Severity : uint8_t { kInfo, kWarn, kSevere };
std::string_view SeverityName(Severity severity);  // "info", "warn", "severe"

// One thing that was seen. `slice` leads to an example in the timeline.
struct Evidence {
  Text text;
  uint32_t slice = kNone;
  double value = 0;
  std::string_view unit;  // "ms", "bytes", "share", "count", ...; empty: value is not used
  // Of a kernel that was profiled alone, outside any step: what one launch would gain at most.
  double saving_ms_per_launch = std::numeric_limits<double>::quiet_NaN();
};

// The limit that decided, with where it comes from and where it is known to be wrong.
struct UsedThreshold {
  std::string name;
  double value = 0;
  double default_value = 0;
  std::string unit;
  std::string source;
  std::string counter_example;
};

struct Finding {
  std::string_view id;  // "kv-copy"
  Phase phase = Phase::kUnknown;
  Severity severity = Severity::kInfo;
  double confidence = 0;  // 0..1
  Text title;
  std::vector<Evidence> evidence;
  double saving_ms_per_step = 0;  // NaN: cannot be estimated
  std::vector<UsedThreshold> thresholds;
  Text change, risk, undo;  // what to do about it
};

// A rule that could not decide, and what would let it.
struct Abstention {
  std::string_view id;
  Text why;
};

struct Findings {
  std::vector<Finding> findings;
  std::vector<Abstention> abstained;
  // Rules that had what they need and found nothing.
  std::vector<std::string_view> clean;
};

}  // namespace fathom::diagnose
