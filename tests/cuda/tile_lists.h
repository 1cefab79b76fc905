#pragma once
// Tile lists and learned rows in host memory, for kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "harness.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/tile_lists.h"

namespace fathom::cuda_test {

inline ops::sparse::Lists MakeLists(const std::vector<std::vector<int32_t>>& lists) {
  ops::sparse::Lists made;
  for (const auto& list : lists) made.Add(list);
  return made;
}

// Eight heads of four kv heads: every role, kv heads with one and with two, and one that is off.
inline ops::sparse::Policy PolicyTable() {
  using ops::sparse::HeadRole;
  return {.heads = {{HeadRole::kGlobal},
                    {HeadRole::kGlobal},
                    {HeadRole::kLocal, 50, 3},
                    {HeadRole::kLocal, 200, 3},
                    {HeadRole::kOff},
                    {HeadRole::kLocal, 64},
                    {HeadRole::kOff},
                    {HeadRole::kOff}}};
}

inline std::vector<ops::sparse::Sequence> SequencesOf(const std::vector<int32_t>& kv_lengths,
                                                      const std::vector<int32_t>& starts) {
  std::vector<ops::sparse::Sequence> sequences;
  for (size_t b = 0; b < kv_lengths.size(); ++b) {
    sequences.push_back({starts[b + 1] - starts[b], kv_lengths[b]});
  }
  return sequences;
}

// Packed into aligned memory with room for more than there is.
template <class Lists>
class PackedLists {
 public:
  explicit PackedLists(Lists made) : made_(std::move(made)), room_(made_.Needs()) {
    room_.lists += 3;
    room_.tiles += 5;
    room_.masks += 1;
    const auto packed = ops::PackTileLists(made_, room_).value();
    memory_.resize(packed.size() + 256);
    const size_t offset = 256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256;
    aligned_ = memory_.data() + offset;
    std::copy(packed.begin(), packed.end(), aligned_);
  }
  template <class Params>
  void Bind(Params* params) const {
    ops::BindTileLists(room_, aligned_, params);
  }
  const Lists& made() const { return made_; }
  int32_t num_lists() const { return static_cast<int32_t>(room_.lists); }

 private:
  Lists made_;
  ops::TileListRoom room_;
  std::vector<std::byte> memory_;
  std::byte* aligned_ = nullptr;
};

// Learned keys and values, bf16 or float16 [rows filled up to 64, kv heads, dim]; what fills up is
// NaN.
struct LearnedRows {
  ops::LearnedRowsCache cache;
  std::vector<uint16_t> data[2];
  int kv_heads = 0;
  int dims[2] = {};
  bool float16 = false;

  LearnedRows(const ops::sparse::Plan& plan, int dim_qk, int dim_v, bool float16_, Noise& noise)
      : cache(ops::MakeLearnedRowsCache(plan)),
        kv_heads(plan.shape.num_kv_heads),
        dims{dim_qk, dim_v},
        float16(float16_) {
    for (int i = 0; i < 2; ++i) {
      const size_t row = static_cast<size_t>(kv_heads) * static_cast<size_t>(dims[i]);
      data[i] = noise.Elements(static_cast<size_t>(plan.policy.learned_rows) * row, 1, float16);
      data[i].resize(static_cast<size_t>(cache.num_pages) * 64 * row, 0xffff);
    }
  }
  double Value(int plane, int row, int head, int d) const {
    return bench::ElementToF32(
        data[plane][static_cast<size_t>((row * kv_heads + head) * dims[plane] + d)], float16);
  }
  kernels::cuda::PagedPlane View(int plane) const {
    const int64_t token = int64_t{kv_heads} * dims[plane] * 2;
    return {data[plane].data(), 64 * token, token, int64_t{dims[plane]} * 2};
  }
  // In place of the sequences' own keys.
  template <class Params>
  void Bind(Params* params) const {
    params->num_pages = cache.num_pages;
    params->page_tokens = 64;
    params->page_table = cache.page_table.data();
    params->page_table_stride = cache.num_pages;
    params->kv_lengths = cache.kv_lengths.data();
  }
};

// 256-byte aligned memory of a plan.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : memory_(static_cast<size_t>(bytes) + 256, 0xff) {}
  uint8_t* data() {
    return memory_.data() + (256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256);
  }

 private:
  std::vector<uint8_t> memory_;
};

// Folds the state over learned rows (first) into the one that `out` and `lse` hold.
inline void FoldLearned(const std::vector<uint16_t>& learned_out,
                        const std::vector<float>& learned_lse, int dim, bool float16,
                        std::vector<uint16_t>* out, std::vector<float>* lse) {
  kernels::cuda::MergeStatesParams merge;
  merge.states[0] = {learned_out.data(), learned_lse.data(), dim};
  merge.states[1] = {out->data(), lse->data(), dim};
  merge.num_states = 2;
  merge.dim = dim;
  merge.float16 = float16;
  merge.rows = static_cast<int64_t>(lse->size());
  merge.out = out->data();
  merge.out_row_stride = dim;
  merge.lse = lse->data();
  ASSERT_EQ(kernels::cuda::RunMergeStates(merge, nullptr), cudaSuccess);
}

}  // namespace fathom::cuda_test
