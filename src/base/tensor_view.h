#pragma once
// A non-owning strided view. Where one is passed, a comment states its shape: // [num_tokens, dim].
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "base/dtype.h"

namespace fathom {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape = {};
  std::array<int64_t, kMaxRank> stride = {};  // in elements; the last is 1 when contiguous

  static TensorView Contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    FATHOM_CHECK(shape.size() <= kMaxRank);
    TensorView view{data, dtype, static_cast<int>(shape.size())};
    int i = 0;
    for (int64_t extent : shape) view.shape[i++] = extent;
    int64_t step = 1;
    for (i = view.rank - 1; i >= 0; --i) {
      view.stride[i] = step;
      step *= view.shape[i];
    }
    return view;
  }

  int64_t NumElements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t NumBytes() const { return NumElements() * SizeOf(dtype); }

  template <class T>
  T* As() const {
    FATHOM_DCHECK(sizeof(T) == static_cast<size_t>(SizeOf(dtype)));
    return static_cast<T*>(data);
  }
};

}  // namespace fathom
