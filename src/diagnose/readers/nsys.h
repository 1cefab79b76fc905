#pragma once
// Nsight Systems' SQLite export (`nsys export --type sqlite`), schemas 3.x. Tables and columns are
// probed, since nsys creates them lazily. The export embeds the profiled process's environment
// (TARGET_INFO_SYSTEM_ENV, META_DATA_CAPTURE): it is never read into the timeline.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kNsysReader;

}  // namespace fathom::diagnose
