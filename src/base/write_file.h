#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace fathom {

// Writes a whole file, or standard output for "-". The file appears complete or not at all: a full
// disk or a crash leaves what was there before. Errors name the path and the system's reason.
Status WriteFile(const std::string& path, std::string_view text);

// The same for a text that is made piece by piece: `produce` calls its argument with each.
using WritePiece = std::function<Status(std::string_view)>;
Status WriteFileInPieces(const std::string& path,
                         const std::function<Status(const WritePiece& write)>& produce);

}  // namespace fathom
