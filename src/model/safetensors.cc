#include "model/safetensors.h"

#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/strings.h"
#include "model/json_reader.h"

namespace fathom::model {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;

// Byte ranges in the file are relative to `data_begin`, the end of the header.
Result<TensorInfo> ParseTensor(std::string_view name, simdjson::dom::element value,
                               uint64_t data_begin, uint64_t data_bytes) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) {
    return Err(Code::kDataLoss, "expected an object with dtype, shape and data_offsets");
  }
  JsonReader json("", object);
  TensorInfo tensor;
  tensor.name = name;
  const std::string dtype = json.String("dtype");
  tensor.shape = json.OptionalInts("shape", 0, INT64_MAX);
  const std::vector<int64_t> range = json.OptionalInts("data_offsets", 0, INT64_MAX);
  if (!json.ok() || !json.Finish({}) || !json.Has("shape")) {
    return Err(Code::kDataLoss, "expected dtype, shape and data_offsets, each once: {}",
               simdjson::minify(value));
  }
  const std::optional<DType> known = DTypeFromName(dtype);
  if (!known) {
    return Err(Code::kUnsupported,
               "dtype {}: supported are F32, F16, BF16, F8_E4M3, I64, I32, I8, U8, BOOL", dtype);
  }
  tensor.dtype = *known;
  if (tensor.shape.size() > kMaxRank) {
    return Err(Code::kUnsupported, "{} dimensions: at most {} are supported", tensor.shape.size(),
               kMaxRank);
  }
  uint64_t bytes = static_cast<uint64_t>(SizeOf(tensor.dtype));
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
      return Err(Code::kDataLoss, "shape {} overflows", ShapeText(tensor.shape));
    }
  }
  if (range.size() != 2 || range[0] > range[1] || static_cast<uint64_t>(range[1]) > data_bytes) {
    return Err(Code::kDataLoss, "data_offsets [{}] are not a range inside the file's {} data bytes",
               fmt::join(range, ", "), data_bytes);
  }
  tensor.offset = data_begin + static_cast<uint64_t>(range[0]);
  tensor.bytes = static_cast<uint64_t>(range[1] - range[0]);
  if (tensor.bytes != bytes) {
    return Err(Code::kDataLoss, "shape {} of {} takes {} bytes, data_offsets hold {}",
               ShapeText(tensor.shape), dtype, bytes, tensor.bytes);
  }
  return tensor;
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::vector<TensorInfo>> ParseSafetensors(std::span<const std::byte> file,
                                                 std::string_view where) {
  if (file.size() < kLengthBytes) {
    return Err(Code::kDataLoss, "{}: {} bytes are too few for a safetensors file", where,
               file.size());
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
  }
  constexpr std::string_view kPointer = "version https://git-lfs";
  if (file.size() >= kPointer.size() &&
      std::memcmp(file.data(), kPointer.data(), kPointer.size()) == 0) {
    return Err(Code::kDataLoss, "{}: a Git LFS pointer, not the file itself: run git lfs pull",
               where);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return Err(Code::kDataLoss,
               "{}: the header claims {} bytes, but the file has {} and the format allows {}",
               where, header_bytes, file.size(), kMaxHeaderBytes);
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                static_cast<size_t>(header_bytes));
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const simdjson::dom::object root,
                          ParseJsonObject(parser, header, fmt::format("{}: header", where)));

  const uint64_t data_begin = kLengthBytes + header_bytes;
  const uint64_t data_bytes = file.size() - data_begin;
  std::vector<TensorInfo> tensors;
  std::unordered_set<std::string_view> names;
  for (const auto& [name, value] : root) {
    if (!names.insert(name).second) {
      return Err(Code::kDataLoss, "{}: tensor {} is listed twice", where, name);
    }
    if (name == "__metadata__") continue;
    Result<TensorInfo> tensor = ParseTensor(name, value, data_begin, data_bytes);
    if (!tensor) {
      return tl::unexpected<Error>(
          WithContext(std::move(tensor.error()), fmt::format("{}: tensor {}", where, name)));
    }
    tensors.push_back(std::move(*tensor));
  }

  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t end = data_begin;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != end) {
      return Err(Code::kDataLoss,
                 "{}: tensor {} begins at byte {}, but the one before it ends at {}: tensors must "
                 "follow each other without holes or overlaps",
                 where, tensor.name, tensor.offset, end);
    }
    end += tensor.bytes;
  }
  if (end != file.size()) {
    return Err(Code::kDataLoss, "{}: the header describes {} bytes, the file has {}", where, end,
               file.size());
  }
  return tensors;
}

}  // namespace fathom::model
