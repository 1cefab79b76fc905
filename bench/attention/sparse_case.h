#pragma once
// Sparse policies of the benchmark's cases: which pairs they keep, for the reference and for rates,
// and learned rows on the device.
#include <string>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "device.h"
#include "ops/sparse_plan.h"

namespace fathom::bench {

// What a plan or list is when the case's shape is legal.
template <class T>
T Checked(Result<T> result) {
  FATHOM_CHECK(result.has_value(), "{}", result.error().message);
  return std::move(*result);
}

// Whether row i sees key k, [rows, max_kv_tokens].
std::vector<uint8_t> SeenKeys(const ops::sparse::Plan& plan, const std::vector<QueryRow>& rows,
                              int max_kv_tokens);

// (query, key) pairs of all heads that are not masked, learned rows included.
double KeptPairs(const ops::sparse::Plan& plan);

std::vector<ops::sparse::Sequence> SequencesOf(const std::vector<int32_t>& query_starts,
                                               const std::vector<int32_t>& kv_lengths);

// Keys and values that belong to a layer, random in the rows that there are, NaN in those that fill
// the last page.
class LearnedRows {
 public:
  LearnedRows(const ops::sparse::Plan& plan, int dim_qk, int dim_v, bool float16);

  kernels::cuda::PagedPlane View(int plane) const;  // 0: keys, 1: values
  const void* data(int plane) const { return data_[plane].As<void>(); }
  // In place of the sequences' own keys.
  template <class Params>
  void Bind(Params* params) const {
    params->num_pages = num_pages_;
    params->page_tokens = 64;
    params->page_table = table_.As<int32_t>();
    params->page_table_stride = num_pages_;
    params->kv_lengths = lengths_.As<int32_t>();
  }

 private:
  Buffer data_[2], table_, lengths_;
  int64_t row_bytes_[2] = {};
  int64_t head_bytes_[2] = {};
  int num_pages_ = 0;
};

// Has the reference see what the plan keeps, and the learned rows where there are any. The result
// holds what `in` points to.
Buffer SetSparse(const ops::sparse::Plan& plan, const LearnedRows* learned,
                 const std::vector<QueryRow>& rows, int max_kv_tokens, ReferenceInputs* in);

// Folds the state over learned rows into the one of the sequences' own keys, which the result
// replaces. Rows of bf16 or float16 [dim].
void FoldLearned(const Buffer& learned_out, const Buffer& learned_lse, int64_t rows, int dim,
                 bool float16, const Buffer& out, const Buffer& lse, cudaStream_t stream);

// The policies of the cases.
// Every head local.
ops::sparse::Policy Local(int window, int anchors);
// A quarter of the heads global, half local (512 + 32), a quarter off; one after the other, or kv
// head by kv head.
ops::sparse::Policy Roles(int heads, int kv_heads);
// kv head i sees the last 1k 2^i keys, at most 64k.
ops::sparse::Policy Ranges(int heads, int kv_heads);
// Anchor positions for each sequence (and head), blocks for each run of queries (and head), by a
// seed.
ops::sparse::Policy RandomAnchors(int heads, const std::vector<ops::sparse::Sequence>& sequences,
                                  bool per_head);
ops::sparse::Policy RandomBlocks(int heads, const std::vector<ops::sparse::Sequence>& sequences,
                                 bool per_head, int queries_per_list);

}  // namespace fathom::bench
