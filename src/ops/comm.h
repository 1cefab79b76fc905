#pragma once
// Communication between the ranks of a tensor- or expert-parallel model. One rank needs none: the
// calls below do nothing, and forward passes are written against them from the start.
#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/device.h"

namespace fathom::ops {

// How a linear layer's weight is divided over ranks.
enum class Partition : uint8_t { kReplicated, kColumn, kRow };

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  // Sums `tensor` over all ranks in place, in stream order.
  virtual Status AllReduce(TensorView /*tensor*/, StreamId /*stream*/) { return {}; }
};

}  // namespace fathom::ops
