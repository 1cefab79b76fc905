#pragma once
// Memory-access events: {token_id, emit_ts, hbm_addr, latency}, times in ns (emit_ts_us and
// latency_us are microseconds), addresses decimal or 0x-hexadecimal.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kAccessReader;

}  // namespace fathom::diagnose
