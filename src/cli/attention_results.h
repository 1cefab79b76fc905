#pragma once
// Rows of attention benchmark results: files that `fathom bench attention --json` and
// bench/attention/peers.py wrote, and the kept ones in bench/results.
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace fathom::cli {

struct AttentionRow {
  std::string shape;  // as AttentionCase::Name
  std::string who;    // "fathom", "fathom spans", "cuDNN", "torch FA2"
  bool decode = true;
  double us = 0;
  double gb_per_s = 0;  // 0: not stated
  double tflops = 0;
  double error = 0;  // relative, 0: not stated
};

struct AttentionResults {
  std::string gpu;
  std::vector<AttentionRow> rows;
  std::map<std::string, std::string> versions;    // of peers
  std::map<std::string, double> gather_gb_per_s;  // by pattern
  std::map<std::string, double> stride_clocks;    // by access

  const AttentionRow* Find(const std::string& shape, const std::string& who) const;
};

// Adds the rows of a file. Errors name the file and the schemas that it may have.
Status LoadAttentionResults(const std::string& path, AttentionResults* results);

// A line a shape: Fathom, each peer, the ratio to the best peer, percent of the roof that binds
// more. `bytes_per_s`, `flops_per_s`: the roofs.
std::string CompareTable(const AttentionResults& results, double bytes_per_s, double flops_per_s);

}  // namespace fathom::cli
