#pragma once
// The handbook's claims about attention kernels, each with how it is checked and the figure that
// the check gives: computed on the host, or read from kept measurements.
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace fathom::ops {

// Measurements that some checks need; what is missing leaves its claim open.
struct ClaimEvidence {
  std::map<std::string, double> fathom_us;     // by shape (AttentionCase::Name)
  std::map<std::string, double> best_peer_us;  // by shape
  std::map<std::string, double> rope_ns;       // a token, by benchmark name
  // Of `fathom bench attention --op micro`: reads by pattern, clocks of a warp's shared-memory
  // load.
  std::map<std::string, double> gather_gb_per_s;
  std::map<std::string, double> stride_clocks;
  std::string attention_source;  // file, GPU and date
  std::string rope_source;
};

enum class ClaimState { kHolds, kHoldsInPart, kFails, kOpen };
const char* NameOf(ClaimState state);

struct ClaimRow {
  std::string id;
  std::string claim;
  std::string verdict;  // sound, plausible, folklore: before checking
  std::string check;    // how
  ClaimState state = ClaimState::kOpen;
  std::string figure;
  std::string source;  // "computed" or the measurement's file
};

Result<std::vector<ClaimRow>> CheckClaims(const ClaimEvidence& evidence);

}  // namespace fathom::ops
