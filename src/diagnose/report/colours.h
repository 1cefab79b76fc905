#pragma once
// One colour a kernel class, gap cause and phase, on the page and in the pictures.
#include <string_view>

#include "diagnose/understand/accounting.h"
#include "diagnose/understand/classify.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

// "#rrggbb", readable on white and on near black.
std::string_view ColourOf(KernelClass kind);
std::string_view ColourOf(GapCause cause);
std::string_view ColourOf(Phase phase);

}  // namespace fathom::diagnose
