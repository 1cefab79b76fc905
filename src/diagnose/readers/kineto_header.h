#pragma once
// The keys of a Kineto trace beside traceEvents.
#include <string_view>

#include "diagnose/source.h"

namespace fathom::diagnose {

struct KinetoHeader {
  int64_t base_ns = 0;     // baseTimeNanoseconds; 0: not stated
  bool is_fathom = false;  // written by Fathom's own trace writer
};

// Takes over one top-level value: `json` is its text. Values of unknown keys, and known ones that
// are not what they should be, change nothing.
void ReadKinetoHeaderValue(std::string_view key, std::string_view json, KinetoHeader& header,
                           Source& source);

// Whether ReadKinetoHeaderValue has a use for `key`.
bool IsKinetoHeaderKey(std::string_view key);

}  // namespace fathom::diagnose
