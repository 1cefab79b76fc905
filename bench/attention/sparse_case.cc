#include "sparse_case.h"

#include <algorithm>
#include <random>

#include "kernels/cuda/launch.h"
#include "ops/cuda/tile_lists.h"

namespace fathom::bench {
namespace {

using ops::sparse::HeadPolicy;
using ops::sparse::HeadRole;
using ops::sparse::kBlockTokens;

double KeptBy(const ops::sparse::Plan& plan, int32_t sequence, int32_t head, int32_t query) {
  const ops::sparse::Sequence& s = plan.sequences[static_cast<size_t>(sequence)];
  const int32_t position = s.keys - s.queries + query;
  const int32_t end = plan.policy.causal ? position + 1 : s.keys;
  const HeadPolicy& policy = plan.PolicyOf(head);
  switch (policy.role) {
    case HeadRole::kGlobal:
      return end;
    case HeadRole::kLocal: {
      const int32_t low = std::max(0, position - std::min(policy.window, s.keys));
      const int64_t high = std::min<int64_t>(end, int64_t{position} + policy.window + 1);
      double kept = static_cast<double>(high - low) + std::min(low, policy.first_anchors);
      for (const int32_t anchor : plan.AnchorsOf(sequence, head)) {
        kept += anchor >= policy.first_anchors && anchor < end && (anchor < low || anchor >= high);
      }
      return kept;
    }
    case HeadRole::kBlocks: {
      double kept = 0;
      for (int32_t key = 0; key < end; key += kBlockTokens) {
        if (plan.Sees(sequence, head, query, key)) kept += std::min(kBlockTokens, end - key);
      }
      return kept;
    }
    case HeadRole::kOff:
      break;
  }
  return 0;
}

std::vector<int32_t> Chosen(std::mt19937& random, int32_t below, uint32_t one_of) {
  std::vector<int32_t> chosen;
  for (int32_t i = 0; i < below; ++i) {
    if (random() % one_of == 0) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

std::vector<uint8_t> SeenKeys(const ops::sparse::Plan& plan, const std::vector<QueryRow>& rows,
                              int max_kv_tokens) {
  const auto stride = static_cast<size_t>(max_kv_tokens);
  std::vector<uint8_t> seen(rows.size() * stride);
  for (size_t i = 0; i < rows.size(); ++i) {
    const QueryRow& row = rows[i];
    const int32_t keys = plan.sequences[static_cast<size_t>(row.sequence)].keys;
    for (int32_t key = 0; key < keys; ++key) {
      seen[i * stride + static_cast<size_t>(key)] =
          plan.Sees(row.sequence, row.head, row.token, key) ? 1 : 0;
    }
  }
  return seen;
}

double KeptPairs(const ops::sparse::Plan& plan) {
  double pairs = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    for (const ops::sparse::HeadRun& run : plan.runs) {
      double of_head = 0;
      for (int32_t query = 0; query < plan.sequences[i].queries; ++query) {
        of_head += KeptBy(plan, static_cast<int32_t>(i), run.first_head, query);
      }
      if (plan.PolicyOf(run.first_head).role != HeadRole::kOff) {
        of_head += 1.0 * plan.sequences[i].queries * plan.policy.learned_rows;
      }
      pairs += of_head * run.num_heads;
    }
  }
  return pairs;
}

std::vector<ops::sparse::Sequence> SequencesOf(const std::vector<int32_t>& query_starts,
                                               const std::vector<int32_t>& kv_lengths) {
  std::vector<ops::sparse::Sequence> sequences;
  for (size_t i = 0; i < kv_lengths.size(); ++i) {
    sequences.push_back({query_starts[i + 1] - query_starts[i], kv_lengths[i]});
  }
  return sequences;
}

LearnedRows::LearnedRows(const ops::sparse::Plan& plan, int dim_qk, int dim_v, bool float16) {
  const ops::LearnedRowsCache cache = ops::MakeLearnedRowsCache(plan);
  num_pages_ = cache.num_pages;
  table_ = Buffer(cache.page_table);
  lengths_ = Buffer(cache.kv_lengths);
  const int dims[2] = {dim_qk, dim_v};
  for (int i = 0; i < 2; ++i) {
    head_bytes_[i] = int64_t{dims[i]} * 2;
    row_bytes_[i] = head_bytes_[i] * plan.shape.num_kv_heads;
    data_[i] = Buffer(row_bytes_[i] * num_pages_ * cache.kPageTokens);
    data_[i].Fill(0xff);
    FillRandom(data_[i].As<void>(), row_bytes_[i] / 2 * plan.policy.learned_rows, 1.f,
               static_cast<uint32_t>(31 + i), float16);
  }
}

kernels::cuda::PagedPlane LearnedRows::View(int plane) const {
  return {data_[plane].As<void>(), row_bytes_[plane] * ops::LearnedRowsCache::kPageTokens,
          row_bytes_[plane], head_bytes_[plane]};
}

Buffer SetSparse(const ops::sparse::Plan& plan, const LearnedRows* learned,
                 const std::vector<QueryRow>& rows, int max_kv_tokens, ReferenceInputs* in) {
  Buffer seen(SeenKeys(plan, rows, max_kv_tokens));
  in->seen = seen.As<uint8_t>();
  if (learned != nullptr) {
    in->learned_rows = plan.policy.learned_rows;
    for (int i = 0; i < 2; ++i) in->learned[i] = learned->data(i);
  }
  return seen;
}

void FoldLearned(const Buffer& learned_out, const Buffer& learned_lse, int64_t rows, int dim,
                 bool float16, const Buffer& out, const Buffer& lse, cudaStream_t stream) {
  kernels::cuda::MergeStatesParams merge;
  merge.states[0] = {learned_out.As<void>(), learned_lse.As<float>(), dim};
  merge.states[1] = {out.As<void>(), lse.As<float>(), dim};
  merge.num_states = 2;
  merge.dim = dim;
  merge.rows = rows;
  merge.float16 = float16;
  merge.out = out.As<void>();
  merge.out_row_stride = dim;
  merge.lse = lse.As<float>();
  CheckCuda(kernels::cuda::RunMergeStates(merge, stream), "RunMergeStates");
}

ops::sparse::Policy Local(int window, int anchors) {
  return {.heads = {{HeadRole::kLocal, window, anchors}}};
}

ops::sparse::Policy Roles(int heads, int kv_heads) {
  const int group = heads / kv_heads;
  ops::sparse::Policy policy;
  for (int h = 0; h < heads; ++h) {
    const int role = group == 1 ? h % 4 : h / group * 4 / kv_heads;
    policy.heads.push_back(role == 0   ? HeadPolicy{HeadRole::kGlobal}
                           : role == 3 ? HeadPolicy{HeadRole::kOff}
                                       : HeadPolicy{HeadRole::kLocal, 512, 32});
  }
  return policy;
}

ops::sparse::Policy Ranges(int heads, int kv_heads) {
  ops::sparse::Policy policy;
  for (int h = 0; h < heads; ++h) {
    const int keys = 1024 << std::min(h / (heads / kv_heads), 6);
    policy.heads.push_back({HeadRole::kLocal, keys - 1});
  }
  return policy;
}

ops::sparse::Policy RandomAnchors(int heads, const std::vector<ops::sparse::Sequence>& sequences,
                                  bool per_head) {
  std::mt19937 random(7);
  ops::sparse::Policy policy = Local(70, 5);
  for (const ops::sparse::Sequence& s : sequences) {
    for (int h = 0; h < (per_head ? heads : 1); ++h) {
      policy.anchors.Add(Chosen(random, s.keys, 100));
    }
  }
  return policy;
}

ops::sparse::Policy RandomBlocks(int heads, const std::vector<ops::sparse::Sequence>& sequences,
                                 bool per_head, int queries_per_list) {
  std::mt19937 random(11);
  ops::sparse::Policy policy{.heads = {{HeadRole::kBlocks}},
                             .blocks_per_head = per_head,
                             .queries_per_list = queries_per_list};
  for (const ops::sparse::Sequence& s : sequences) {
    const int lists = (s.queries + queries_per_list - 1) / queries_per_list;
    for (int i = 0; i < (per_head ? heads : 1) * lists; ++i) {
      policy.blocks.Add(Chosen(random, (s.keys + kBlockTokens - 1) / kBlockTokens, 4));
    }
  }
  return policy;
}

}  // namespace fathom::bench
