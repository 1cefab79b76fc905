#include "diagnose/readers/gauges.h"

#include <cmath>
#include <optional>

#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {

void Gauges::Add(std::string_view name, std::string_view unit, int32_t device, int64_t t_ns,
                 std::string_view field, uint64_t offset) {
  ReadStats& stats = timeline_.sources[source_].stats;
  if (field == "-" || field == "N/A") {
    stats.Count(Defect::kBlankValue, offset);
    return;
  }
  const std::optional<double> value = WholeNumber(field);
  if (value && std::isfinite(*value)) {
    timeline_.AddSample(SeriesOf(name, unit, device), t_ns, *value);
  } else {
    stats.Count(value ? Defect::kNonFinite : Defect::kMalformed, offset);
  }
}

uint32_t Gauges::SeriesOf(std::string_view name, std::string_view unit, int32_t device) {
  const auto [entry, added] = series_.try_emplace({std::string(name), device}, 0);
  if (added) {
    entry->second = timeline_.AddSeries({.source = source_,
                                         .kind = SeriesKind::kGauge,
                                         .name = timeline_.strings.Intern(name),
                                         .unit = timeline_.strings.Intern(unit),
                                         .device = device});
  }
  return entry->second;
}

}  // namespace fathom::diagnose
