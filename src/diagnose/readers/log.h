#pragma once
// Logs of inference servers: vLLM (V0 and V1), SGLang, and the NCCL lines that both print when
// NCCL_DEBUG is set. One process's output mixes them, so one reader takes all three and the source
// is named after the kind that has the most lines.
#include <string_view>

#include "diagnose/readers/reader.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

extern const Reader kLogReader;

// Collects the numbers of one line. Add ignores what is absent.
class LogLineBuilder {
 public:
  LogLineBuilder(Timeline& timeline, LogLine line) : timeline_(timeline), line_(line) {
    line_.first_value = static_cast<uint32_t>(timeline.log_values.size());
  }
  void Add(LogField field, std::optional<double> value, double scale = 1) {
    if (value) timeline_.log_values.push_back({field, *value * scale});
  }
  LogLine& line() { return line_; }
  // Appends the line; a statement without a number or text is none.
  bool Commit();

 private:
  Timeline& timeline_;
  LogLine line_;
};

// Whether a line holds the settings that SGLang starts with: directly behind its prefix, where text
// that a client sent and the server logs cannot stand.
bool HoldsSglangSettings(std::string_view line);

// Adds the kModelFact of a model's path: what follows the last '/'. The path itself is not kept.
void AddModelFact(Timeline& timeline, SourceId source, std::string_view path);

// Each takes one line, its prefix with the time already parsed into `line`, and says whether it was
// one of its own.
bool ReadVllmLine(std::string_view text, const LogLine& line, Timeline& timeline);
bool ReadSglangLine(std::string_view text, const LogLine& line, Timeline& timeline);
bool ReadNcclLine(std::string_view text, const LogLine& line, Timeline& timeline);

}  // namespace fathom::diagnose
