// Any bytes as a safetensors file: an error, or tensors that lie inside it and fill it.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto tensors = fathom::model::ParseSafetensors(file, "file");
  if (!tensors) {
    FATHOM_CHECK(!tensors.error().message.empty());
    return 0;
  }
  uint64_t end = tensors->empty() ? size : tensors->front().offset;
  for (const auto& tensor : *tensors) {
    uint64_t bytes = static_cast<uint64_t>(fathom::SizeOf(tensor.dtype));
    for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    FATHOM_CHECK(bytes == tensor.bytes && tensor.offset == end);
    end += tensor.bytes;
  }
  FATHOM_CHECK(end == size);
  return 0;
}
