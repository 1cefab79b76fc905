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

}  // namespace fathom::cli
