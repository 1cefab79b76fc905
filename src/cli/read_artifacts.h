#pragma once
// Reading for the commands that diagnose, with a line on a terminal that shows how far it is.
#include <string>
#include <vector>

#include "base/result.h"
#include "diagnose/timeline.h"

namespace fathom::cli {

// `scrape_seconds`: how long http:// inputs are scraped, once a second; 0 takes one scrape.
Result<diagnose::Timeline> ReadArtifacts(const std::vector<std::string>& paths,
                                         int scrape_seconds = 0);

// The files that a timeline was read from, and the recordings beside them that were left out.
std::vector<std::string> PathsOf(const diagnose::Timeline& timeline);

// Whether a command may write its files: "-" once at most, no file twice, no input. Empty names are
// forms and inputs that nobody asked for.
Status CheckOutputs(const std::vector<std::string>& outputs,
                    const std::vector<std::string>& inputs);

}  // namespace fathom::cli
