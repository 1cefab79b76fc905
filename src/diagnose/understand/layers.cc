#include "diagnose/understand/layers.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_map>

namespace fathom::diagnose {
namespace {

constexpr uint32_t kMinPeriod = 4;  // norm, projection, attention, projection at the least
constexpr uint32_t kMaxPeriod = 512;
// Of a period that must agree with the next one. Two layers never agree fully: the first has its
// rotation tables made, a compiler fuses its first norm with the embedding.
constexpr double kMinAgreement = 0.6;

// Compilers number their kernels: "triton_poi_fused_mul_silu_8" and "..._9" are the same code.
std::string_view WithoutNumber(std::string_view name) {
  size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) != 0) --end;
  if (end > 0 && end < name.size() && name[end - 1] == '_' && name.starts_with("triton_")) {
    return name.substr(0, end - 1);
  }
  return name;
}

}  // namespace

LayerMap FindLayers(const TraceIndex& index, const Steps& steps, const Step& step) {
  const Timeline& timeline = index.timeline();
  const std::span<const uint32_t> work = steps.WorkOf(step);
  std::unordered_map<std::string_view, uint32_t> ids;
  std::vector<uint32_t> sequence;
  sequence.reserve(work.size());
  for (const uint32_t s : work) {
    const std::string_view name = WithoutNumber(timeline.SliceName(s));
    sequence.push_back(ids.try_emplace(name, static_cast<uint32_t>(ids.size())).first->second);
  }
  const auto n = static_cast<uint32_t>(sequence.size());
  LayerMap best;
  double best_score = 0;
  for (uint32_t period = kMinPeriod; period <= std::min(kMaxPeriod, n / 2 + 1); ++period) {
    // The longest run of kernels that equal the one a period later, a rare mismatch allowed.
    uint32_t run_start = 0;
    uint32_t matches = 0;
    uint32_t misses = 0;
    for (uint32_t i = 0; i + period < n; ++i) {
      if (sequence[i] != sequence[i + period]) {
        ++misses;
        if (misses * 8 > matches) {
          run_start = i + 1;
          matches = misses = 0;
        }
        continue;
      }
      ++matches;
      if (matches < kMinAgreement * period) continue;
      // What the run covers, less a little for each kernel in a period: k layers are not one of k
      // times the length, also where every k-th layer has a kernel of its own (a sliding window's
      // attention beside full attention).
      const double score = static_cast<double>(matches + misses) + period - 0.05 * period;
      const bool same_run = period == best.period && run_start == best.first;
      if (score <= best_score * (same_run ? 1.0 : 1.02)) continue;
      best_score = score;
      best.period = period;
      best.first = run_start;
      best.match = static_cast<double>(matches) / (matches + misses);
      best.num_layers =
          static_cast<uint32_t>(static_cast<double>(matches + misses + period) / period + 0.5);
    }
  }
  return best;
}

}  // namespace fathom::diagnose
