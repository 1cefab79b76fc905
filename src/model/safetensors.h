#pragma once
// The safetensors file format: an 8-byte little-endian header length, a JSON header naming each
// tensor's dtype, shape and byte range, then the bytes. A header is trusted with nothing: every
// length, product and range in it is checked before it is used.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace fathom::model {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t bytes = 0;
};

std::string ShapeText(std::span<const int64_t> shape);  // "[576, 7168]"

// The tensors of a file, in the order of their bytes, which they fill without holes or overlaps.
// `where` names the file in messages. Only the header's bytes are read.
Result<std::vector<TensorInfo>> ParseSafetensors(std::span<const std::byte> file,
                                                 std::string_view where);

}  // namespace fathom::model
