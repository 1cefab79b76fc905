#pragma once
// How much memory this process may still take.
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "cost/memory_plan.h"

namespace fathom::model {

// The smallest of --max-memory (when given), what the control groups of this process leave (v1 and
// v2, every level up to the root; reclaimable page cache does not count as used), and the kernel's
// MemAvailable. `root` stands before /proc and /sys.
Result<cost::MemoryBudget> AvailableMemory(std::optional<uint64_t> max_memory,
                                           const std::string& root = "");

}  // namespace fathom::model
