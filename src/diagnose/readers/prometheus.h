#pragma once
// Prometheus text exposition (and OpenMetrics), one scrape or several in a row: vLLM, SGLang,
// DCGM's exporter, Fathom's own /metrics.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kPrometheusReader;

}  // namespace fathom::diagnose
