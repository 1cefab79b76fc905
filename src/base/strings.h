#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom {

// "24.0 MiB", "1.2 GiB": binary units, three significant digits.
std::string HumanBytes(uint64_t bytes);
// "853 ns", "12.3 us", "4.56 ms", "1.23 s".
std::string HumanNs(int64_t ns);
// "512M", "8GiB", "1073741824": what --max-memory takes. K, M, G, T are binary.
Result<uint64_t> ParseBytes(std::string_view text);

std::vector<std::string_view> Split(std::string_view text, char separator);
std::string_view Trim(std::string_view text);  // ASCII white space

// The nearest of `known` by edit distance, for "did you mean"; empty when nothing is near.
std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& known);

// Stable 64-bit content hash (FNV-1a finished with an avalanche); chain by passing the last value.
uint64_t Hash64(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325u);

}  // namespace fathom
