#include "cost/memory_plan.h"

#include <algorithm>

#include "base/strings.h"

namespace fathom::cost {

uint64_t MemoryPlan::FixedBytes() const {
  uint64_t bytes = 0;
  for (const MemoryLine& line : lines) bytes += line.bytes;
  return bytes;
}

std::string MemoryPlan::Table() const {
  std::string table;
  const auto row = [&](std::string_view name, uint64_t bytes, std::string_view detail) {
    table += fmt::format("  {:<16} {:>10}  {}\n", name, HumanBytes(bytes), detail);
  };
  for (const MemoryLine& line : lines) row(line.name, line.bytes, line.detail);
  row("KV pages", KvBytes(),
      fmt::format("{} pages of {} tokens, {} a token: {} tokens of all sequences together, memory "
                  "taken as they fill; {} pages would fit",
                  num_pages, page_tokens,
                  HumanBytes(page_tokens > 0 ? page_bytes / static_cast<uint64_t>(page_tokens) : 0),
                  num_pages * page_tokens, max_pages));
  row("total", TotalBytes(), fmt::format("of {} ({})", HumanBytes(budget.bytes), budget.source));
  return table;
}

Result<MemoryPlan> SolveMemoryPlan(std::vector<MemoryLine> lines, const MemoryBudget& budget,
                                   const KvRequest& kv) {
  MemoryPlan plan;
  plan.budget = budget;
  plan.lines = std::move(lines);
  plan.page_tokens = kv.page_tokens;
  plan.page_bytes = kv.page_bytes;
  const auto pages_of = [&](int64_t tokens) {
    return (tokens + kv.page_tokens - 1) / kv.page_tokens;
  };
  const uint64_t fixed = plan.FixedBytes();
  const uint64_t left = budget.bytes > fixed ? budget.bytes - fixed : 0;
  plan.max_pages = static_cast<int64_t>(left / kv.page_bytes);
  const auto shared = static_cast<int64_t>(static_cast<double>(plan.max_pages) * kv.share);
  const int64_t wanted = std::max(pages_of(kv.sequence_tokens), std::min(kv.max_pages, shared));
  plan.num_pages = std::max(std::min(wanted, plan.max_pages), pages_of(kv.min_sequence_tokens));
  plan.sequence_tokens = std::min(kv.sequence_tokens, plan.num_pages * kv.page_tokens);
  if (plan.TotalBytes() > budget.bytes) {
    return Err(Code::kResourceExhausted,
               "the model does not fit: {} are needed, of them {} for one sequence of {} tokens, "
               "but {} are available ({}); {} are missing\n{}",
               HumanBytes(plan.TotalBytes()), HumanBytes(plan.KvBytes()), kv.min_sequence_tokens,
               HumanBytes(budget.bytes), budget.source,
               HumanBytes(plan.TotalBytes() - budget.bytes), plan.Table());
  }
  return plan;
}

}  // namespace fathom::cost
