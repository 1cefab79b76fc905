#pragma once
// Two diagnoses side by side, bucket by bucket: what became slower or faster beyond noise, where
// the difference lies, which findings went away.
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/diagnosis.h"

namespace fathom::diagnose {

// A difference of medians counts when it exceeds this many standard errors of their difference.
inline constexpr double kSignificantErrors = 3;

enum class Verdict : uint8_t { kSame, kFaster, kSlower, kTooFew };
std::string_view VerdictName(Verdict verdict);  // "same", "faster", "slower", "too-few"

// Busy time of a class or idle time of a cause, medians over the bucket's counted steps.
struct PartChange {
  std::string_view name;  // KernelClassName or GapCauseName
  bool idle = false;
  double before_ms = 0, after_ms = 0;
};

struct BucketChange {
  Phase phase = Phase::kUnknown;
  double batch = 0;  // NaN: not stated
  size_t steps_before = 0, steps_after = 0;
  double before_ms = 0, after_ms = 0;  // medians of wall time
  double error_ms = 0;  // standard error of the difference, from both MADs; NaN: one step on a side
  Verdict verdict = Verdict::kSame;
  std::vector<PartChange> parts;  // the largest differences first

  double share() const { return before_ms > 0 ? after_ms / before_ms - 1 : 0; }
};

enum class Fate : uint8_t {
  kGone,         // found before; the rule had its evidence and found nothing
  kUndecidable,  // found before; the rule abstained after
  kNew,
  kStayed,
};
std::string_view FateName(Fate fate);  // "gone", "undecidable", "new", "stayed"

struct FindingChange {
  std::string_view id;
  Phase phase = Phase::kUnknown;
  Fate fate = Fate::kStayed;
  Severity before = Severity::kInfo, after = Severity::kInfo;
  double before_saving_ms = 0, after_saving_ms = 0;  // NaN: not estimated or not there
};

struct Comparison {
  std::vector<BucketChange> buckets;
  std::vector<FindingChange> findings;
  size_t unmatched_before = 0, unmatched_after = 0;  // buckets that the other side lacks

  // The largest slowdown beyond noise, as a share; 0 when nothing became slower.
  double WorstSlowdown() const;
  // Whether some bucket has enough steps on both sides to tell.
  bool CanTell() const;
};

Comparison Compare(const Diagnosis& before, const Diagnosis& after);

}  // namespace fathom::diagnose
