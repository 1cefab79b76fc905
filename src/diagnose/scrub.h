#pragma once
// fathom scrub: a copy of an artifact that may be shown to strangers (scrub_text.h says what goes).
// Text formats are streamed twice: once to learn the names, once to write. An Nsight Systems export
// is copied, its environment and capture tables are emptied, strings that no event refers to are
// blanked, the others scrubbed, and the file is rebuilt so that no freed page keeps anything.
#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "diagnose/scrub_text.h"

namespace fathom::diagnose {

struct ScrubSummary {
  std::string format;
  std::array<uint64_t, kNumSecrets> replaced{};
  uint64_t names_learned = 0;
  uint64_t lines_removed = 0;  // of program output around an Nsight Compute table
  uint64_t bytes_written = 0;
};

// Writes `output` (plain, whatever the input's compression) and reads it back: a name that is still
// there is an error and leaves no file. An existing output is an error.
Result<ScrubSummary> ScrubFile(const std::string& input, const std::string& output);

}  // namespace fathom::diagnose
