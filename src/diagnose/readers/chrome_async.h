#pragma once
// Asynchronous events of a Chrome trace (phases b, e, n): spans of things that are on no thread.
// Fathom's own trace tells of its requests so ("request" with its stages inside, tokens as
// instants): those become requests too.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/readers/chrome_event.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

class ChromeAsyncReader {
 public:
  ChromeAsyncReader(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}

  // Takes one event of phase b, e or n, whose time is readable.
  void Add(const ChromeEvent& event, uint64_t offset);
  // Counts the begins that never ended.
  void Finish();

 private:
  struct Open {
    uint32_t span;
    uint64_t offset;
  };

  uint32_t AddSpan(const ChromeEvent& event);
  void Begin(const ChromeEvent& event, uint64_t offset);
  void End(const ChromeEvent& event, uint64_t offset);
  // What a span or instant says of its request; `request` is a row.
  void Tell(Request& request, const Span& span);

  Timeline& timeline_;
  const SourceId source_;
  std::map<std::pair<std::string, std::string>, std::vector<Open>> open_;  // by id and name
  std::map<std::string, uint32_t> requests_;                               // by id; open ones
};

}  // namespace fathom::diagnose
