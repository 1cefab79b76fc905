#include "cost/shared_banks.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace fathom::cost {
namespace {

constexpr uint32_t kBanks = 32;
constexpr uint32_t kWordBytes = 4;
constexpr size_t kWarp = 32;

}  // namespace

Wavefronts CountWavefronts(std::span<const uint32_t> addresses, int bytes) {
  FATHOM_CHECK(bytes == 4 || bytes == 8 || bytes == 16, "{} bytes a thread", bytes);
  FATHOM_CHECK(addresses.size() <= kWarp, "{} threads in a warp", addresses.size());
  const size_t together = kWarp * kWordBytes / static_cast<size_t>(bytes);  // threads of a phase
  Wavefronts total;
  for (size_t first = 0; first < addresses.size(); first += together) {
    std::vector<uint32_t> words;
    for (size_t i = first; i < std::min(first + together, addresses.size()); ++i) {
      FATHOM_CHECK(addresses[i] % static_cast<uint32_t>(bytes) == 0, "address {} of {} bytes",
                   addresses[i], bytes);
      for (uint32_t byte = 0; byte < static_cast<uint32_t>(bytes); byte += kWordBytes) {
        words.push_back((addresses[i] + byte) / kWordBytes);
      }
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    std::array<int64_t, kBanks> load{};
    for (const uint32_t word : words) ++load[word % kBanks];
    total.count += *std::max_element(load.begin(), load.end());
    total.ideal += static_cast<int64_t>((words.size() + kBanks - 1) / kBanks);
  }
  return total;
}

Wavefronts StridedWavefronts(uint32_t stride_bytes, int bytes) {
  std::array<uint32_t, kWarp> addresses{};
  for (uint32_t i = 0; i < kWarp; ++i) addresses[i] = i * stride_bytes;
  return CountWavefronts(addresses, bytes);
}

}  // namespace fathom::cost
