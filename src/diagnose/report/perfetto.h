#pragma once
// The fused timeline as a Chrome trace that ui.perfetto.dev opens: every input's threads and
// streams on one clock, steps and idle time by cause as tracks, and a track for each finding with
// its evidence.
#include <string>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

std::string PerfettoTrace(const Diagnosis& diagnosis, Language language);

}  // namespace fathom::diagnose
