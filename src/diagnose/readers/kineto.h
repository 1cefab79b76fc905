#pragma once
// PyTorch profiler traces (Kineto's Chrome trace JSON, CUDA and ROCm), and Chrome traces in
// general.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kKinetoReader;

}  // namespace fathom::diagnose
