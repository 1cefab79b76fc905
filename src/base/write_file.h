#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace fathom {

// Writes a whole file, or standard output for "-". The file appears complete or not at all: a full
// disk or a crash leaves what was there before. Errors name the path and the system's reason.
Status WriteFile(const std::string& path, std::string_view text);

}  // namespace fathom
