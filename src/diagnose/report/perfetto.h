#pragma once
// The fused timeline as a Chrome trace that ui.perfetto.dev opens: every input's threads and
// streams on one clock, steps and idle time by cause as tracks, and a track for each finding with
// its evidence.
#include <functional>
#include <string_view>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// Hands the trace on in pieces: it is nearly as large as its inputs. Fails as `write` does.
Status WritePerfettoTrace(const Diagnosis& diagnosis, Language language,
                          const std::function<Status(std::string_view)>& write);

}  // namespace fathom::diagnose
