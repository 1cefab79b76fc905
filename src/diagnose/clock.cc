#include "diagnose/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 86400 * kSecond;
// Clocks that follow NTP agree about this well, and so do a trace's conversions to UTC.
constexpr int64_t kUtcErrorNs = 1'000'000;
// Pairs that scatter more than this do not show the same moments.
constexpr int64_t kMaxScatterNs = 5'000'000;
// Recordings of one run are not further apart than this in UTC.
constexpr int64_t kMaxUtcCorrectionNs = 10 * kSecond;
constexpr size_t kMinPairs = 3;

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return b > 0 ? INT64_MAX : INT64_MIN + 1;
  return sum;
}

void Shift(int64_t& t_ns, int64_t offset_ns) {
  if (t_ns != kNoTime) t_ns = SaturatingAdd(t_ns, offset_ns);
}

// Adds each source's pending offset to its rows.
void ShiftRows(Timeline& t, const std::vector<int64_t>& offsets) {
  if (std::all_of(offsets.begin(), offsets.end(), [](int64_t offset) { return offset == 0; })) {
    return;
  }
  for (size_t i = 0; i < t.slices.size(); ++i) {
    Shift(t.slices.start_ns[i], offsets[t.tracks[t.slices.track[i]].source]);
  }
  for (size_t i = 0; i < t.samples.size(); ++i) {
    Shift(t.samples.t_ns[i], offsets[t.series[t.samples.series[i]].source]);
  }
  for (LogLine& row : t.log_lines) Shift(row.t_ns, offsets[row.source]);
  for (StackSample& row : t.stack_samples) Shift(row.t_ns, offsets[row.source]);
  for (Request& row : t.requests) Shift(row.arrival_ns, offsets[row.source]);
  for (CollectiveCall& row : t.collective_calls) Shift(row.t_ns, offsets[row.source]);
  for (ExpertLoad& row : t.expert_loads) Shift(row.t_ns, offsets[row.source]);
  for (AccessEvent& row : t.access_events) Shift(row.t_ns, offsets[row.source]);
  for (Span& row : t.spans) {
    Shift(row.start_ns, offsets[row.source]);
    Shift(row.end_ns, offsets[row.source]);
  }
  for (ScheduleInterval& row : t.schedule) {
    Shift(row.start_ns, offsets[row.source]);
    Shift(row.end_ns, offsets[row.source]);
  }
}

// The same moments in two sources: key -> time, only where the key is met once.
template <class Key>
class Moments {
 public:
  void Add(const Key& key, int64_t t_ns) {
    const auto [entry, added] = times_.try_emplace(key, t_ns);
    if (!added) entry->second = kNoTime;  // not unique
  }
  // `other`'s time minus ours, for each key that both have once.
  std::vector<int64_t> Differences(const Moments& other) const {
    std::vector<int64_t> differences;
    for (const auto& [key, t_ns] : times_) {
      const auto match = other.times_.find(key);
      if (match == other.times_.end() || t_ns == kNoTime || match->second == kNoTime) continue;
      differences.push_back(match->second - t_ns);
    }
    return differences;
  }

 private:
  std::map<Key, int64_t> times_;
};

struct Estimate {
  int64_t offset_ns = 0;  // what to add to the second source
  int64_t error_ns = 0;
  size_t pairs = 0;
};

// The median of the differences and how far 95 % of them are from it.
std::optional<Estimate> EstimateFrom(std::vector<int64_t> differences) {
  if (differences.size() < kMinPairs) return std::nullopt;
  const auto middle = differences.begin() + static_cast<ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  Estimate estimate{-*middle, 0, differences.size()};
  const int64_t median = *middle;
  for (int64_t& difference : differences) {
    difference = difference > median ? difference - median : median - difference;
  }
  const size_t rank = differences.size() * 95 / 100;
  const auto high = differences.begin() + static_cast<ptrdiff_t>(rank);
  std::nth_element(differences.begin(), high, differences.end());
  estimate.error_ns = std::max<int64_t>(*high, 1);
  if (estimate.error_ns > kMaxScatterNs) return std::nullopt;
  return estimate;
}

// (group, ranks, name, sequence number or ordinal) of a collective.
using CollectiveKey = std::tuple<StringId, StringId, StringId, int64_t>;

// The rows of each source that may show shared moments.
struct SharedRows {
  uint64_t slices = 0;  // of any kind
  std::vector<uint32_t> collectives;
  std::vector<uint32_t> annotations;
};

std::vector<SharedRows> FindSharedRows(const Timeline& t) {
  std::vector<bool> nccl_name(t.strings.size());
  for (StringId id = 0; id < t.strings.size(); ++id) nccl_name[id] = t.Name(id).starts_with("nccl");
  std::vector<SharedRows> rows(t.sources.size());
  for (uint32_t i = 0; i < t.slices.size(); ++i) {
    SharedRows& own = rows[t.SliceTrack(i).source];
    ++own.slices;
    if (t.slices.category[i] == Category::kKernel) {
      const uint32_t detail = t.slices.detail[i];
      const bool described = detail != kNone && t.kernels[detail].collective != kNone;
      if (described || nccl_name[t.slices.name[i]]) own.collectives.push_back(i);
    } else if (t.slices.category[i] == Category::kAnnotation ||
               t.slices.category[i] == Category::kNvtx) {
      own.annotations.push_back(i);
    }
  }
  return rows;
}

Moments<CollectiveKey> CollectiveEnds(const Timeline& t, std::vector<uint32_t> rows) {
  std::sort(rows.begin(), rows.end(),
            [&](uint32_t a, uint32_t b) { return t.slices.start_ns[a] < t.slices.start_ns[b]; });
  Moments<CollectiveKey> moments;
  std::map<std::tuple<StringId, StringId, StringId>, int64_t> ordinals;
  for (const uint32_t i : rows) {
    const uint32_t detail = t.slices.detail[i];
    const uint32_t row = detail == kNone ? kNone : t.kernels[detail].collective;
    CollectiveDetail collective;
    if (row != kNone) collective = t.collectives[row];
    const StringId name = row == kNone ? t.slices.name[i] : collective.name;
    const int64_t ordinal = ordinals[{collective.group_name, collective.group_ranks, name}]++;
    moments.Add({collective.group_name, collective.group_ranks, name,
                 collective.sequence >= 0 ? collective.sequence : ordinal},
                t.slices.end_ns(i));
  }
  return moments;
}

Moments<StringId> AnnotationStarts(const Timeline& t, const std::vector<uint32_t>& rows) {
  Moments<StringId> moments;
  for (const uint32_t i : rows) moments.Add(t.slices.name[i], t.slices.start_ns[i]);
  return moments;
}

// A log's offset to UTC: year and zone such that it overlaps [first_ns, last_ns].
struct CalendarFit {
  int64_t offset_ns = 0;
  int64_t zone_s = 0;  // east of UTC
};

// What turns times of the year kYearNotStated into times of `year`.
int64_t YearOffset(int64_t t_ns, int year) {
  using std::chrono::days;
  using std::chrono::floor;
  using std::chrono::sys_days;
  const sys_days day(days(t_ns / kDay - (t_ns % kDay < 0)));
  const std::chrono::year_month_day stated(day);
  std::chrono::year_month_day moved(std::chrono::year(year), stated.month(), stated.day());
  if (!moved.ok()) moved = std::chrono::year_month_day(sys_days(moved));  // 29 February
  return (sys_days(moved) - day).count() * kDay;
}

int YearOf(int64_t t_ns) {
  const std::chrono::sys_days day(std::chrono::days(t_ns / kDay));
  return static_cast<int>(std::chrono::year_month_day(day).year());
}

bool HasNoYear(const Source& source) {
  return source.clock == ClockDomain::kWallLocal && YearOf(source.first_ns) <= kYearNotStated + 1;
}

// The zones (a quarter of an hour apart) that make the source overlap; UTC is preferred, since
// containers run on it. Nothing when no zone does, or when several do and UTC does not.
std::optional<CalendarFit> FitCalendar(const Source& source, int64_t first_ns, int64_t last_ns) {
  std::vector<int64_t> year_offsets = {0};
  if (HasNoYear(source)) {
    year_offsets.clear();
    for (const int year : {YearOf(first_ns) - 1, YearOf(first_ns), YearOf(first_ns) + 1}) {
      year_offsets.push_back(YearOffset(source.first_ns, year));
    }
  }
  constexpr int64_t kQuarter = 900;
  std::vector<CalendarFit> fits;
  for (const int64_t year_offset : year_offsets) {
    for (int64_t zone_s = -12 * 3600; zone_s <= 14 * 3600; zone_s += kQuarter) {
      const int64_t offset = year_offset - zone_s * kSecond;
      const bool overlaps =
          SaturatingAdd(source.first_ns, offset) <= SaturatingAdd(last_ns, source.resolution_ns) &&
          SaturatingAdd(source.last_ns, offset) >= SaturatingAdd(first_ns, -source.resolution_ns);
      if (!overlaps) continue;
      if (zone_s == 0) return CalendarFit{offset, 0};
      fits.push_back({offset, zone_s});
    }
  }
  if (fits.size() == 1) return fits[0];
  return std::nullopt;
}

std::string ZoneName(int64_t zone_s) {
  const int64_t minutes = (zone_s < 0 ? -zone_s : zone_s) / 60;
  return fmt::format("UTC{}{:02}:{:02}", zone_s < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

class Aligner {
 public:
  explicit Aligner(Timeline& timeline) : t_(timeline), pending_(timeline.sources.size(), 0) {}

  void Run() {
    AlignByUtc();
    AlignMonotonic();
    AlignCalendars();
    ChooseReference();
    ShiftRows(t_, pending_);
    std::fill(pending_.begin(), pending_.end(), 0);
    Refine();
    ShiftRows(t_, pending_);
  }

 private:
  static bool HasTimes(const Source& source) { return source.first_ns != kNoTime; }

  using Arguments = std::vector<std::pair<std::string_view, std::string>>;
  void Align(size_t source, int64_t offset_ns, int64_t error_ns, std::string_view how,
             Arguments arguments = {}) {
    Source& entry = t_.sources[source];
    entry.aligned = true;
    entry.offset_ns = SaturatingAdd(entry.offset_ns, offset_ns);
    entry.error_ns = error_ns;
    entry.alignment = how;
    entry.alignment_args = std::move(arguments);
    Shift(entry.first_ns, offset_ns);
    Shift(entry.last_ns, offset_ns);
    pending_[source] = SaturatingAdd(pending_[source], offset_ns);
  }

  void AlignByUtc() {
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      const Source& source = t_.sources[i];
      if (!HasTimes(source) || source.utc_anchor_ns == kNoTime) continue;
      Align(i, source.utc_anchor_ns, std::max(kUtcErrorNs, source.resolution_ns),
            source.clock == ClockDomain::kUnix ? "aligned.utc" : "aligned.utc_start");
      has_utc_ = true;
    }
  }

  // An Nsight Systems session says what the monotonic clock was at its start.
  void AlignMonotonic() {
    std::optional<int64_t> monotonic_to_utc;
    for (const Fact& fact : t_.facts) {
      const Source& source = t_.sources[fact.source];
      if (t_.Name(fact.key) == "nsys.system_clock_ns" && source.aligned && fact.number >= 0 &&
          fact.number < 9e18) {
        monotonic_to_utc = source.offset_ns - static_cast<int64_t>(fact.number);
      }
    }
    if (!monotonic_to_utc) return;
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      const Source& source = t_.sources[i];
      if (source.aligned || !HasTimes(source) || source.clock != ClockDomain::kMonotonic) continue;
      Align(i, *monotonic_to_utc, kUtcErrorNs, "aligned.monotonic");
    }
  }

  void AlignCalendars() {
    int64_t first = INT64_MAX;
    int64_t last = INT64_MIN;
    for (const Source& source : t_.sources) {
      if (!source.aligned) continue;
      first = std::min(first, source.first_ns);
      last = std::max(last, source.last_ns);
    }
    if (first > last) return;
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      const Source& source = t_.sources[i];
      if (source.aligned || !HasTimes(source) || source.clock != ClockDomain::kWallLocal) continue;
      const std::optional<CalendarFit> fit = FitCalendar(source, first, last);
      if (!fit) continue;
      Align(i, fit->offset_ns, source.resolution_ns,
            fit->zone_s == 0 ? "aligned.calendar_utc" : "aligned.calendar_zone",
            {{"zone", ZoneName(fit->zone_s)}});
    }
  }

  // Without UTC anywhere the largest source's clock is everybody's. Calendars without UTC are taken
  // to be of one zone.
  void ChooseReference() {
    if (has_utc_) return;
    size_t reference = t_.sources.size();
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      if (!HasTimes(t_.sources[i])) continue;
      if (reference == t_.sources.size() ||
          t_.sources[i].stats.kept > t_.sources[reference].stats.kept) {
        reference = i;
      }
    }
    if (reference == t_.sources.size()) return;
    Align(reference, 0, 0, "aligned.reference");
    const Source& chosen = t_.sources[reference];
    if (chosen.clock != ClockDomain::kWallLocal) return;
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      const Source& source = t_.sources[i];
      if (source.aligned || !HasTimes(source) || source.clock != ClockDomain::kWallLocal) continue;
      if (HasNoYear(source) != HasNoYear(chosen)) continue;
      Align(i, 0, std::max(source.resolution_ns, chosen.resolution_ns), "aligned.calendar_same");
    }
  }

  // Moments that two sources share beat what their clocks claim.
  void Refine() {
    const std::vector<SharedRows> rows = FindSharedRows(t_);
    size_t reference = t_.sources.size();
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      if (!t_.sources[i].aligned || rows[i].slices == 0) continue;
      if (reference == t_.sources.size() || rows[i].slices > rows[reference].slices) reference = i;
    }
    if (reference == t_.sources.size()) return;
    t_.sources[reference].error_ns = 0;
    const auto collectives = CollectiveEnds(t_, rows[reference].collectives);
    const auto annotations = AnnotationStarts(t_, rows[reference].annotations);
    for (size_t i = 0; i < t_.sources.size(); ++i) {
      if (i == reference || rows[i].slices == 0) continue;
      const bool other_rank = t_.sources[i].rank >= 0 && t_.sources[reference].rank >= 0 &&
                              t_.sources[i].rank != t_.sources[reference].rank;
      std::string_view how = "aligned.collectives";
      std::optional<Estimate> estimate =
          EstimateFrom(collectives.Differences(CollectiveEnds(t_, rows[i].collectives)));
      if (!estimate && !other_rank) {
        // Other ranks do the same things a little earlier or later: no moment is shared.
        how = "aligned.annotations";
        estimate = EstimateFrom(annotations.Differences(AnnotationStarts(t_, rows[i].annotations)));
      }
      if (!estimate) continue;
      const bool far =
          estimate->offset_ns > kMaxUtcCorrectionNs || estimate->offset_ns < -kMaxUtcCorrectionNs;
      if (t_.sources[i].aligned && far) continue;  // another run
      Align(i, estimate->offset_ns, estimate->error_ns, how,
            {{"n", std::to_string(estimate->pairs)}, {"other", t_.sources[reference].path}});
    }
  }

  Timeline& t_;
  std::vector<int64_t> pending_;
  bool has_utc_ = false;
};

}  // namespace

void AlignClocks(Timeline& timeline) { Aligner(timeline).Run(); }

int64_t JoinErrorNs(const Timeline& timeline, SourceId a, SourceId b) {
  if (a == b) return 0;
  const Source& first = timeline.sources[a];
  const Source& second = timeline.sources[b];
  if (!first.aligned || !second.aligned) return INT64_MAX;
  return SaturatingAdd(first.error_ns, second.error_ns);
}

}  // namespace fathom::diagnose
