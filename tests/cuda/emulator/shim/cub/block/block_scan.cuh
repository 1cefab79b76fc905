#pragma once
#include "cuda_runtime_api.h"

namespace cub {
template <class T, int kThreads>
struct BlockScan {
  struct TempStorage {};
  explicit BlockScan(TempStorage&) {}
  void ExclusiveSum(T in, T& out, T& total) {
    T all[kThreads];
    fathom::simt::GatherBlock(&in, sizeof(T), all);
    T sum = 0;
    total = 0;
    for (int i = 0; i < kThreads; ++i) {
      if (i == static_cast<int>(threadIdx.x)) sum = total;
      total += all[i];
    }
    out = sum;
  }
  template <int kEach>
  void ExclusiveSum(T (&in)[kEach], T (&out)[kEach], T& total) {
    T mine = 0, before = 0;
    for (int i = 0; i < kEach; ++i) mine += in[i];
    ExclusiveSum(mine, before, total);
    for (int i = 0; i < kEach; ++i) {
      const T value = in[i];
      out[i] = before;
      before += value;
    }
  }
};
}  // namespace cub
