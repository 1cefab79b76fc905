#pragma once
#include <vector>

#include "decode_case.h"

namespace fathom::bench {

std::vector<DecodeCase> DecodeCheckCases();  // odd lengths, edges, ratios, page sizes
std::vector<DecodeCase> DecodeTimeCases();   // the rows of the benchmark table

}  // namespace fathom::bench
