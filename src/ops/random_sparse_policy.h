#pragma once
// Random sparse policies for tests.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "ops/sparse_plan.h"

namespace fathom::ops::sparse {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(engine_); }
  int OneOf(const std::vector<int>& values) {
    return values[static_cast<size_t>(Below(static_cast<int>(values.size())))];
  }
  std::vector<int32_t> Sorted(int below, int at_most) {
    std::set<int32_t> values;
    for (int i = Below(at_most + 1); i > 0; --i) values.insert(Below(below));
    return {values.begin(), values.end()};
  }

 private:
  std::mt19937 engine_;
};

// Up to three sequences of up to max_queries queries.
inline std::vector<Sequence> RandomSequences(Random& random, int max_queries) {
  std::vector<Sequence> sequences;
  for (int i = 1 + random.Below(3); i > 0; --i) {
    const int keys = random.OneOf({0, 1, 63, 64, 65, 200, 257, 400});
    const int most = std::min(keys, max_queries);
    sequences.push_back({random.Below(2) == 0 ? std::min(most, 2) : random.Below(most + 1), keys});
  }
  return sequences;
}

inline Policy RandomPolicy(Random& random, const Shape& shape,
                           const std::vector<Sequence>& sequences) {
  Policy policy;
  policy.causal = random.Below(3) != 0;
  const bool per_head = random.Below(2) == 0;
  bool blocks = false;
  for (int h = 0; h < (per_head ? shape.num_heads : 1); ++h) {
    HeadPolicy head{static_cast<HeadRole>(random.Below(4)), random.Below(150), random.Below(90)};
    if (random.Below(4) == 0) head.window = 2147483647;
    blocks = blocks || head.role == HeadRole::kBlocks;
    policy.heads.push_back(head);
  }
  const int anchor_kind = random.Below(3);
  for (const Sequence& s : sequences) {
    for (int h = 0; anchor_kind > 0 && h < (anchor_kind == 2 ? shape.num_heads : 1); ++h) {
      policy.anchors.Add(random.Sorted(s.keys + 10, 5));  // some past the end
    }
  }
  policy.blocks_per_head = random.Below(2) == 0;
  policy.queries_per_list = random.OneOf({1, 2, 64});
  for (const Sequence& s : sequences) {
    for (int h = 0; blocks && h < (policy.blocks_per_head ? shape.num_heads : 1); ++h) {
      for (int q = 0; q < s.queries; q += policy.queries_per_list) {
        policy.blocks.Add(random.Sorted(s.keys / 64 + 2, 4));
      }
    }
  }
  return policy;
}

}  // namespace fathom::ops::sparse
