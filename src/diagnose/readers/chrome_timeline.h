#pragma once
// Puts the events of one Chrome trace into the timeline: categories, tracks, details, names.
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "diagnose/readers/chrome_async.h"
#include "diagnose/readers/chrome_event.h"
#include "diagnose/readers/kineto_header.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

class ChromeTimelineWriter {
 public:
  ChromeTimelineWriter(Timeline& timeline, SourceId source);

  // Takes one event that stood at `offset`; its views are only read during the call.
  void Add(const ChromeEvent& event, uint64_t offset);
  // When the last event has been added: shifts times by the header's base, names the tracks, and
  // fills in the source's clock and extent.
  void Finish(const KinetoHeader& header);

 private:
  struct OpenSlice {
    Category category;
    StringId name;
    int64_t start_ns;
    uint64_t offset;
  };
  struct TrackCacheEntry {
    uint64_t hash = 0;
    TrackId track = kNone;
  };

  ReadStats& stats() { return timeline_.sources[source_].stats; }
  void Count(Defect defect) { stats().Count(defect, offset_); }

  void AddSlice(const ChromeEvent& event, Category category, int64_t start_ns, int64_t dur_ns);
  void AddCounter(const ChromeEvent& event);
  void AddMemory(const ChromeEvent& event);
  void AddMetadata(const ChromeEvent& event);
  void BeginOrEnd(const ChromeEvent& event);

  uint32_t AddDetail(const ChromeEvent& event, Category category);
  uint32_t AddCollective(const ChromeEvent& event);
  StringId Text(const json::Token& token);
  StringId NameOf(const ChromeEvent& event);
  StringId List(const json::Token& token);  // a JSON array without its spaces
  TrackId TrackOf(const ChromeEvent& event, Category category);
  TrackId MakeTrack(const ChromeEvent& event, Category category);
  uint32_t SeriesOf(std::string_view name, std::string_view labels, int32_t device);
  void NameTracks();
  void NumberOnlyDevice();

  Timeline& timeline_;
  const SourceId source_;
  // Rows that were there before this source's.
  const size_t first_slice_;
  const size_t first_sample_;
  const size_t first_python_;
  const size_t first_span_;
  const size_t first_request_;
  const StringId unknown_;
  uint64_t offset_ = 0;  // of the event being added

  std::map<std::tuple<bool, std::string, std::string>, TrackId> tracks_;  // GPU?, pid, tid
  TrackCacheEntry track_cache_[64];
  std::unordered_map<TrackId, std::vector<OpenSlice>> open_;  // phases B and E
  ChromeAsyncReader async_;                                   // phases b, e and n
  std::map<std::tuple<std::string, std::string, int32_t>, uint32_t> series_;
  std::map<std::string, StringId> process_names_;                         // by pid
  std::map<std::pair<std::string, std::string>, StringId> thread_names_;  // by pid, tid
  StringTable raw_lists_;              // argument lists as written...
  std::vector<StringId> list_ids_{0};  // ...and the id of each without its spaces
};

}  // namespace fathom::diagnose
