#pragma once
// One clock for all inputs. Each source keeps its own; what ties them together is found here, with
// how well it does so:
//   - times that are UTC already, or an anchor that says what UTC a source's zero was;
//   - a log's calendar time, whose zone (and year) is taken from the overlap with those;
//   - the monotonic clock, where an Nsight Systems session states both it and UTC;
//   - collectives: all ranks of a group leave one together, so their ends give the offset between
//     two ranks' traces, and their scatter its error;
//   - annotations that two recordings of one process share.
#include <cstdint>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

// Puts every source that can be aligned on one clock, shifting its rows, and fills in
// Source::{aligned, offset_ns, error_ns, alignment}. The clock is UTC when any source
// knows it, else that of the source with the most records.
void AlignClocks(Timeline& timeline);

// How far off times of `a` and `b` may be from each other: 0 within one source, INT64_MAX when
// nothing ties them together. A join of things that happen closer than this says nothing.
int64_t JoinErrorNs(const Timeline& timeline, SourceId a, SourceId b);

}  // namespace fathom::diagnose
