#pragma once
// A model's safetensors, mapped: one file, or shards with model.safetensors.index.json.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/tensor_view.h"
#include "model/safetensors.h"

namespace fathom::model {

class Checkpoint {
 public:
  // `directory` holds model.safetensors, or an index and the shards that it names. Every header is
  // validated; every tensor of the index must be in its shard and every tensor of a shard in the
  // index.
  static Result<Checkpoint> Open(const std::string& directory);

  struct Tensor {
    TensorInfo info;
    size_t file = 0;
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  const Tensors& tensors() const { return tensors_; }
  const Tensor* Find(std::string_view name) const;
  const std::string& FileOf(const Tensor& tensor) const { return files_[tensor.file].path(); }

  // The tensor `name`, which must exist, have this shape and one of the dtypes.
  Result<TensorView> Get(std::string_view name, std::initializer_list<int64_t> shape,
                         std::initializer_list<DType> dtypes) const;

  // The bytes of this tensor will not be read again.
  void Drop(std::string_view name) const;

  uint64_t file_bytes() const;

 private:
  std::vector<MappedFile> files_;
  Tensors tensors_;
};

}  // namespace fathom::model
