#include "ops/sparse_plan.h"

#include <algorithm>
#include <cstdlib>

namespace fathom::ops::sparse {
namespace {

constexpr int32_t kMaxKeys = 1 << 30;  // so that sums of two positions fit

int32_t CeilDiv(int32_t a, int32_t b) { return (a + b - 1) / b; }

bool Contains(std::span<const int32_t> sorted, int32_t value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

Status CheckLists(const Lists& lists, const char* what) {
  for (int64_t i = 0; i < lists.size(); ++i) {
    const std::span<const int32_t> list = lists.At(i);
    for (size_t k = 0; k < list.size(); ++k) {
      if (list[k] >= 0 && (k == 0 || list[k] > list[k - 1])) continue;
      return Err(Code::kInvalidArgument,
                 "sparse attention: {} list {} holds {} at place {}: expected increasing numbers "
                 "from 0 on",
                 what, i, list[k], k);
    }
  }
  return {};
}

Status CheckShape(const Shape& s) {
  if (s.num_kv_heads < 1 || s.num_heads < 1 || s.num_heads % s.num_kv_heads != 0) {
    return Err(Code::kInvalidArgument,
               "sparse attention of {} heads over {} key-value heads: expected a multiple",
               s.num_heads, s.num_kv_heads);
  }
  if (s.tile_queries < 1) {
    return Err(Code::kInvalidArgument, "sparse attention: tiles of {} queries: expected at least 1",
               s.tile_queries);
  }
  if (s.tile_keys != 64 && s.tile_keys != 128 && s.tile_keys != 256) {
    return Err(Code::kInvalidArgument,
               "sparse attention: tiles of {} keys: expected 64, 128 or 256", s.tile_keys);
  }
  return {};
}

Status CheckPolicy(const Shape& shape, const Policy& policy,
                   const std::vector<Sequence>& sequences) {
  const size_t heads = policy.heads.size();
  if (heads != 1 && heads != static_cast<size_t>(shape.num_heads)) {
    return Err(Code::kInvalidArgument,
               "sparse attention: policies of {} heads: expected 1 for all or {}", heads,
               shape.num_heads);
  }
  bool blocks = false;
  for (size_t h = 0; h < heads; ++h) {
    const HeadPolicy& head = policy.heads[h];
    blocks = blocks || head.role == HeadRole::kBlocks;
    if (head.window < 0 || head.first_anchors < 0) {
      return Err(Code::kInvalidArgument,
                 "sparse attention: head {} has window {} and {} first anchors: expected 0 or more",
                 h, head.window, head.first_anchors);
    }
  }
  if (policy.learned_rows < 0 || policy.learned_rows > kMaxLearnedRows) {
    return Err(Code::kInvalidArgument, "sparse attention: {} learned rows: expected 0 to {}",
               policy.learned_rows, kMaxLearnedRows);
  }
  if (policy.queries_per_list < 1) {
    return Err(Code::kInvalidArgument,
               "sparse attention: {} queries a block list: expected at least 1",
               policy.queries_per_list);
  }
  const auto count = static_cast<int64_t>(sequences.size());
  const int64_t anchors = policy.anchors.size();
  if (anchors != 0 && anchors != count && anchors != count * shape.num_heads) {
    return Err(Code::kInvalidArgument,
               "sparse attention: {} anchor lists: expected none, {} (one a sequence) or {} (one a "
               "sequence and head)",
               anchors, count, count * shape.num_heads);
  }
  int64_t lists = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    if (s.queries < 0 || s.keys < s.queries || s.keys > kMaxKeys) {
      return Err(Code::kInvalidArgument,
                 "sparse attention: sequence {} has {} queries and {} keys: expected at least as "
                 "many keys, and at most {}",
                 i, s.queries, s.keys, kMaxKeys);
    }
    lists += CeilDiv(s.queries, policy.queries_per_list) *
             int64_t{policy.blocks_per_head ? shape.num_heads : 1};
  }
  if (policy.blocks.size() != (blocks ? lists : 0)) {
    return Err(Code::kInvalidArgument, "sparse attention: {} block lists: expected {}",
               policy.blocks.size(), blocks ? lists : 0);
  }
  FATHOM_TRY(CheckLists(policy.anchors, "anchor"));
  return CheckLists(policy.blocks, "block");
}

std::vector<HeadRun> MakeRuns(const Shape& shape, const Policy& policy,
                              const std::vector<Sequence>& sequences) {
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  const auto of = [&policy](int32_t head) {
    return policy.heads[policy.heads.size() == 1 ? 0 : static_cast<size_t>(head)];
  };
  const bool own_anchors = policy.anchors.size() > static_cast<int64_t>(sequences.size());
  std::vector<HeadRun> runs;
  for (int32_t head = 0; head < shape.num_heads; ++head) {
    const HeadPolicy mine = of(head);
    const bool own = (mine.role == HeadRole::kLocal && own_anchors) ||
                     (mine.role == HeadRole::kBlocks && policy.blocks_per_head);
    if (head % group != 0 && !own && of(head - 1) == mine) {
      ++runs.back().num_heads;
    } else {
      runs.push_back({head / group, head, 1});
    }
  }
  return runs;
}

std::span<const int32_t> BlocksOf(const Plan& plan, int32_t sequence, int32_t head, int32_t query) {
  const auto at = static_cast<size_t>(sequence);
  const int64_t lists = CeilDiv(plan.sequences[at].queries, plan.policy.queries_per_list);
  return plan.policy.blocks.At(plan.first_block_list[at] +
                               (plan.policy.blocks_per_head ? head * lists : 0) +
                               query / plan.policy.queries_per_list);
}

// Whether every query of the row sees every key of the tile at first_key.
bool SeesAll(const Plan& plan, const TileRow& row, int32_t first_key) {
  const Sequence& s = plan.sequences[static_cast<size_t>(row.sequence)];
  const int32_t first = s.keys - s.queries + row.first_query;
  const int32_t last = first + row.num_queries - 1;
  const int32_t last_key = first_key + plan.shape.tile_keys - 1;
  if (last_key >= s.keys || (plan.policy.causal && last_key > first)) return false;
  const int32_t head = plan.runs[static_cast<size_t>(row.run)].first_head;
  const HeadPolicy& mine = plan.PolicyOf(head);
  if (mine.role == HeadRole::kGlobal) return true;
  if (mine.role == HeadRole::kLocal) {
    const std::span<const int32_t> anchors = plan.AnchorsOf(row.sequence, head);
    for (int32_t key = first_key; key <= last_key; ++key) {
      const bool near = last - key <= mine.window && key - first <= mine.window;
      if (!near && key >= mine.first_anchors && !Contains(anchors, key)) return false;
    }
    return true;
  }
  for (int32_t q = row.first_query; q < row.first_query + row.num_queries; ++q) {
    for (int32_t key = first_key; key <= last_key; key += kBlockTokens) {
      if (!Contains(BlocksOf(plan, row.sequence, head, q), key / kBlockTokens)) return false;
    }
  }
  return true;
}

// Lists the tiles of a row: no pair is looked at one by one.
void AddRow(Plan& plan, const TileRow& row) {
  const Sequence& s = plan.sequences[static_cast<size_t>(row.sequence)];
  const int32_t first = s.keys - s.queries + row.first_query;
  const int32_t last = first + row.num_queries - 1;
  const int32_t end = plan.policy.causal ? last + 1 : s.keys;  // keys that a causal mask leaves
  const int32_t head = plan.runs[static_cast<size_t>(row.run)].first_head;
  const HeadPolicy& mine = plan.PolicyOf(head);
  std::vector<int32_t> found;                         // tile numbers
  const auto range = [&](int32_t from, int32_t to) {  // keys [from, to)
    from = std::max(from, 0);
    to = std::min(to, end);
    for (int32_t t = from / plan.shape.tile_keys; from < to && t * plan.shape.tile_keys < to; ++t) {
      found.push_back(t);
    }
  };
  const int32_t window = std::min(mine.window, s.keys);
  switch (mine.role) {
    case HeadRole::kGlobal:
      range(0, end);
      break;
    case HeadRole::kLocal:
      range(0, mine.first_anchors);
      for (const int32_t anchor : plan.AnchorsOf(row.sequence, head)) {
        if (anchor < end) found.push_back(anchor / plan.shape.tile_keys);
      }
      range(first - window, last + window + 1);
      break;
    case HeadRole::kBlocks:
      for (int32_t q = row.first_query; q < row.first_query + row.num_queries; ++q) {
        const int32_t limit = plan.policy.causal ? first + (q - row.first_query) + 1 : s.keys;
        for (const int32_t block : BlocksOf(plan, row.sequence, head, q)) {
          if (block > (limit - 1) / kBlockTokens) break;
          found.push_back(block / (plan.shape.tile_keys / kBlockTokens));
        }
      }
      break;
    case HeadRole::kOff:
      break;
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  TileRow added = row;
  added.begin = static_cast<int64_t>(plan.tiles.size());
  for (const int32_t t : found) {
    plan.tiles.push_back({t * plan.shape.tile_keys, !SeesAll(plan, row, t * plan.shape.tile_keys)});
  }
  added.end = static_cast<int64_t>(plan.tiles.size());
  plan.rows.push_back(added);
}

}  // namespace

void Lists::Add(std::span<const int32_t> list) {
  values.insert(values.end(), list.begin(), list.end());
  starts.push_back(static_cast<int64_t>(values.size()));
}

std::span<const int32_t> Lists::At(int64_t i) const {
  const auto at = static_cast<size_t>(i);
  return std::span(values).subspan(static_cast<size_t>(starts[at]),
                                   static_cast<size_t>(starts[at + 1] - starts[at]));
}

std::span<const Tile> Plan::TilesOf(const TileRow& row) const {
  return std::span(tiles).subspan(static_cast<size_t>(row.begin),
                                  static_cast<size_t>(row.end - row.begin));
}

const HeadPolicy& Plan::PolicyOf(int32_t head) const {
  return policy.heads[policy.heads.size() == 1 ? 0 : static_cast<size_t>(head)];
}

std::span<const int32_t> Plan::AnchorsOf(int32_t sequence, int32_t head) const {
  if (policy.anchors.size() == 0) return {};
  const bool per_head = policy.anchors.size() > static_cast<int64_t>(sequences.size());
  return policy.anchors.At(per_head ? int64_t{sequence} * shape.num_heads + head : sequence);
}

bool Plan::Sees(int32_t sequence, int32_t head, int32_t query, int32_t key) const {
  const Sequence& s = sequences[static_cast<size_t>(sequence)];
  const int32_t position = s.keys - s.queries + query;
  if (key >= s.keys || (policy.causal && key > position)) return false;
  const HeadPolicy& mine = PolicyOf(head);
  switch (mine.role) {
    case HeadRole::kGlobal:
      return true;
    case HeadRole::kLocal:
      return std::abs(position - key) <= mine.window || key < mine.first_anchors ||
             Contains(AnchorsOf(sequence, head), key);
    case HeadRole::kBlocks:
      return Contains(BlocksOf(*this, sequence, head, query), key / kBlockTokens);
    case HeadRole::kOff:
      return false;
  }
  return false;
}

int64_t Plan::NumPartial() const {
  return std::count_if(tiles.begin(), tiles.end(), [](const Tile& t) { return t.partial; });
}

int64_t Plan::DenseTiles() const {
  int64_t total = 0;
  for (const TileRow& row : rows) {
    const Sequence& s = sequences[static_cast<size_t>(row.sequence)];
    const int32_t last = s.keys - s.queries + row.first_query + row.num_queries;
    total += CeilDiv(policy.causal ? last : s.keys, shape.tile_keys);
  }
  return total;
}

Result<Plan> MakePlan(const Shape& shape, Policy policy, std::vector<Sequence> sequences) {
  FATHOM_TRY(CheckShape(shape));
  FATHOM_TRY(CheckPolicy(shape, policy, sequences));
  Plan plan;
  plan.shape = shape;
  plan.policy = std::move(policy);
  plan.sequences = std::move(sequences);
  plan.runs = MakeRuns(shape, plan.policy, plan.sequences);
  int64_t lists = 0;
  for (const Sequence& s : plan.sequences) {
    plan.first_block_list.push_back(lists);
    lists += CeilDiv(s.queries, plan.policy.queries_per_list) *
             int64_t{plan.policy.blocks_per_head ? shape.num_heads : 1};
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const int32_t queries = plan.sequences[i].queries;
    for (size_t run = 0; run < plan.runs.size(); ++run) {
      for (int32_t q = 0; q < queries; q += shape.tile_queries) {
        AddRow(plan, {.sequence = static_cast<int32_t>(i),
                      .run = static_cast<int32_t>(run),
                      .first_query = q,
                      .num_queries = std::min(shape.tile_queries, queries - q)});
      }
    }
  }
  return plan;
}

}  // namespace fathom::ops::sparse
