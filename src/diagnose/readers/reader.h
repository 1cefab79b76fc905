#pragma once
// The readers by content: which formats there are, and how an input finds its reader.
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "diagnose/input.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

struct Reader {
  std::string_view format;    // Source::format
  std::string_view artifact;  // what a person calls it: "PyTorch profiler (Kineto) trace"
  // How sure the reader is that `prefix` (the first bytes, uncompressed) is its format: 0 not at
  // all, 100 certain. The surest reader gets the input.
  int (*detect)(std::string_view prefix);
  // Appends what the input says to the timeline, on the input's own clock, and fills in
  // timeline.sources[source]. Damaged records are counted there; an error means that nothing
  // useful could be read and nothing was appended.
  Status (*read)(Input& input, Timeline& timeline, SourceId source);
};

// All readers.
std::span<const Reader> Readers();

// The reader that the content of `input` asks for. Recordings that need their producer's own tool
// (.nsys-rep, .ncu-rep, perf.data, Perfetto protobuf) are errors with the export command; other
// content is an error that lists what was looked for.
Result<const Reader*> FindReader(const Input& input);

// Reads one input with the reader that its content asks for.
Result<SourceId> ReadArtifact(Input& input, Timeline& timeline);

// Reads every path (files, directories, "-" for stdin), in order, and aligns their clocks. What a
// directory holds beside artifacts that can be read goes to Timeline::skipped; a named file that is
// no artifact, is damaged, or is a recording that was read before, is an error.
// `progress`, if given, is called with the path and the share read, 0..1; `open` opens a file.
Result<Timeline> ReadArtifacts(
    std::span<const std::string> paths,
    const std::function<void(std::string_view, double)>& progress = {},
    const std::function<Result<Input>(const std::string&)>& open = Input::Open);

}  // namespace fathom::diagnose
