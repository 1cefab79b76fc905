#pragma once
// Linux perf as text: `perf script` (samples with stacks, and memory samples with their data
// source), and the summary of `perf c2c report --stdio`.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kPerfScriptReader;
extern const Reader kPerfC2cReader;

}  // namespace fathom::diagnose
