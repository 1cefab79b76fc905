#include "diagnose/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kShownParts = 6;
// Of a normal distribution: standard deviation over MAD, and the median's error over the mean's.
constexpr double kSigmaOfMad = 1.4826;
constexpr double kMedianError = 1.2533;

std::vector<double> WallMs(const Diagnosis& d, const Bucket& bucket) {
  std::vector<double> ms;
  for (const uint32_t s : bucket.counted) {
    ms.push_back(static_cast<double>(d.accounts[s].wall_ns) / 1e6);
  }
  return ms;
}

// NaN for a single value, which shows no spread.
double StandardError(const std::vector<double>& values) {
  if (values.size() < 2) return kNaN;
  const double median = Median(values);
  std::vector<double> distance;
  for (const double v : values) distance.push_back(std::fabs(v - median));
  return kMedianError * kSigmaOfMad * Median(distance) /
         std::sqrt(static_cast<double>(values.size()));
}

bool SameKind(const Bucket& a, const Bucket& b) {
  const bool batch = a.batch == b.batch || (std::isnan(a.batch) && std::isnan(b.batch));
  return a.phase == b.phase && batch;
}

double PartMs(const Diagnosis& d, const Bucket& bucket, size_t part) {
  return MedianOver(bucket, [&](uint32_t s) {
    const StepAccount& a = d.accounts[s];
    const int64_t ns = part < kNumKernelClasses ? a.busy_by_class[part]
                                                : a.idle_by_cause[part - kNumKernelClasses];
    return static_cast<double>(ns) / 1e6;
  });
}

BucketChange CompareBuckets(const Diagnosis& before, const Bucket& a, const Diagnosis& after,
                            const Bucket& b) {
  const std::vector<double> x = WallMs(before, a);
  const std::vector<double> y = WallMs(after, b);
  BucketChange change{.phase = a.phase,
                      .batch = a.batch,
                      .steps_before = x.size(),
                      .steps_after = y.size(),
                      .before_ms = Median(x),
                      .after_ms = Median(y)};
  change.error_ms = std::hypot(StandardError(x), StandardError(y));
  const double difference = change.after_ms - change.before_ms;
  if (x.size() < kMinSteps || y.size() < kMinSteps) {
    change.verdict = Verdict::kTooFew;
  } else if (std::fabs(difference) <= kSignificantErrors * change.error_ms || difference == 0) {
    change.verdict = Verdict::kSame;
  } else {
    change.verdict = difference > 0 ? Verdict::kSlower : Verdict::kFaster;
  }
  for (size_t part = 0; part < kNumKernelClasses + kNumGapCauses; ++part) {
    const bool idle = part >= kNumKernelClasses;
    PartChange p{.name = idle ? GapCauseName(static_cast<GapCause>(part - kNumKernelClasses))
                              : KernelClassName(static_cast<KernelClass>(part)),
                 .idle = idle,
                 .before_ms = PartMs(before, a, part),
                 .after_ms = PartMs(after, b, part)};
    if (p.before_ms != p.after_ms) change.parts.push_back(p);
  }
  std::stable_sort(
      change.parts.begin(), change.parts.end(), [](const PartChange& p, const PartChange& q) {
        return std::fabs(p.after_ms - p.before_ms) > std::fabs(q.after_ms - q.before_ms);
      });
  if (change.parts.size() > kShownParts) change.parts.resize(kShownParts);
  return change;
}

const Finding* Find(const Diagnosis& d, const Finding& like) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == like.id && f.phase == like.phase) return &f;
  }
  return nullptr;
}

bool Abstained(const Diagnosis& d, std::string_view id) {
  return std::any_of(d.findings.abstained.begin(), d.findings.abstained.end(),
                     [&](const Abstention& a) { return a.id == id; });
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  static constexpr std::array<std::string_view, 4> kNames = {"same", "faster", "slower", "too-few"};
  return kNames[static_cast<size_t>(verdict)];
}

std::string_view FateName(Fate fate) {
  static constexpr std::array<std::string_view, 4> kNames = {"gone", "undecidable", "new",
                                                             "stayed"};
  return kNames[static_cast<size_t>(fate)];
}

double Comparison::WorstSlowdown() const {
  double worst = 0;
  for (const BucketChange& b : buckets) {
    if (b.verdict == Verdict::kSlower) worst = std::max(worst, b.share());
  }
  return worst;
}

bool Comparison::CanTell() const {
  return std::any_of(buckets.begin(), buckets.end(),
                     [](const BucketChange& b) { return b.verdict != Verdict::kTooFew; });
}

Comparison Compare(const Diagnosis& before, const Diagnosis& after) {
  Comparison result;
  std::vector<bool> taken(after.steps.buckets.size(), false);
  for (const Bucket& a : before.steps.buckets) {
    // Of several candidates (GPUs, prompt lengths) the first that is left, in order of time.
    size_t match = 0;
    while (match < taken.size() && (taken[match] || !SameKind(a, after.steps.buckets[match]))) {
      ++match;
    }
    if (match == taken.size()) {
      ++result.unmatched_before;
      continue;
    }
    taken[match] = true;
    result.buckets.push_back(CompareBuckets(before, a, after, after.steps.buckets[match]));
  }
  result.unmatched_after = static_cast<size_t>(std::count(taken.begin(), taken.end(), false));

  for (const Finding& f : before.findings.findings) {
    const Finding* other = Find(after, f);
    FindingChange change{.id = f.id,
                         .phase = f.phase,
                         .before = f.severity,
                         .before_saving_ms = f.saving_ms_per_step,
                         .after_saving_ms = kNaN};
    if (other != nullptr) {
      change.after = other->severity;
      change.after_saving_ms = other->saving_ms_per_step;
    } else {
      change.fate = Abstained(after, f.id) ? Fate::kUndecidable : Fate::kGone;
    }
    result.findings.push_back(change);
  }
  for (const Finding& f : after.findings.findings) {
    if (Find(before, f) != nullptr) continue;
    result.findings.push_back({.id = f.id,
                               .phase = f.phase,
                               .fate = Fate::kNew,
                               .after = f.severity,
                               .before_saving_ms = kNaN,
                               .after_saving_ms = f.saving_ms_per_step});
  }
  return result;
}

}  // namespace fathom::diagnose
