#pragma once
// Helpers of this layer's tests.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

inline std::string DataPath(std::string_view name) {
  return std::string(FATHOM_SOURCE_DIR "/tests/data/diagnose/").append(name);
}

// Reads one artifact that must be readable.
inline Timeline MustRead(Result<Input> input) {
  Timeline timeline;
  if (!input) {
    ADD_FAILURE() << input.error().message;
    return timeline;
  }
  const Result<SourceId> source = ReadArtifact(*input, timeline);
  if (!source) ADD_FAILURE() << source.error().message;
  if (timeline.sources.empty()) timeline.AddSource("unreadable", "none");
  return timeline;
}
inline Timeline ReadFile(std::string_view name) { return MustRead(Input::Open(DataPath(name))); }
inline Timeline ReadText(std::string text) {
  return MustRead(Input::FromMemory("text", std::move(text)));
}

inline size_t CountCategory(const Timeline& timeline, Category category) {
  size_t count = 0;
  for (const Category c : timeline.slices.category) count += c == category;
  return count;
}

inline uint64_t DefectCountOf(const Timeline& timeline, Defect defect) {
  return timeline.sources[0].stats[defect].count;
}

// The first slice named `name`, or kNone.
inline size_t FindSlice(const Timeline& timeline, std::string_view name) {
  for (size_t i = 0; i < timeline.slices.size(); ++i) {
    if (timeline.SliceName(i) == name) return i;
  }
  return kNone;
}

}  // namespace fathom::diagnose
