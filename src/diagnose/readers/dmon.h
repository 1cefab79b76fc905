#pragma once
// nvidia-smi dmon: a table of samples under two '#' lines (names, units); the columns depend on -s,
// -o DT adds date and time.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kDmonReader;

}  // namespace fathom::diagnose
