#pragma once
// The single pictures as SVG: heat map, roofline, flame graph, memory-address map. A picture
// without data says what it would need.
#include <string>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/understand/address_map.h"

namespace fathom::diagnose {

// GPU time of decode steps by layer, and by kernel class.
std::string HeatMapSvg(const Diagnosis& diagnosis, Language language);
// Attention calls and matrix products under the GPU's roofs, with a table of them.
std::string RooflineSvg(const Diagnosis& diagnosis, Language language);
// CPU stacks, callers above.
std::string FlameSvg(const Diagnosis& diagnosis, Language language);
// Accesses or bytes by token, channel and bank.
std::string AddressMapSvg(const AddressHeatMap& map, Language language);

}  // namespace fathom::diagnose
