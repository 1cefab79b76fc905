#pragma once
// A scheduler's log, one record an interval: {seq_id, phase, start_us, end_us, graph_id}.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kScheduleReader;

}  // namespace fathom::diagnose
