#include "model/checkpoint.h"

#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/strings.h"
#include "model/json_reader.h"

namespace fathom::model {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

// Tensor name -> shard file name.
Result<std::map<std::string, std::string, std::less<>>> ReadIndex(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const simdjson::dom::object root,
                          ParseJsonObject(parser, file.text(), path));
  simdjson::dom::object weight_map;
  if (root["weight_map"].get_object().get(weight_map) != simdjson::SUCCESS) {
    return Err(Code::kDataLoss, "{}: expected an object 'weight_map'", path);
  }
  std::map<std::string, std::string, std::less<>> shards;
  for (const auto& [name, value] : weight_map) {
    std::string_view shard;
    // A shard lies beside its index: a path that leaves the directory is not a shard.
    if (value.get_string().get(shard) != simdjson::SUCCESS || shard.empty() || shard[0] == '.' ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      return Err(Code::kDataLoss, "{}: tensor {}: expected the name of a file beside the index",
                 path, name);
    }
    if (!shards.emplace(name, shard).second) {
      return Err(Code::kDataLoss, "{}: tensor {} is listed twice", path, name);
    }
  }
  return shards;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return Err(Code::kNotFound, "{}: expected a directory with config.json and {}", directory,
               kSingleName);
  }
  const std::string single = fmt::format("{}/{}", directory, kSingleName);
  const std::string index = fmt::format("{}/{}", directory, kIndexName);
  std::map<std::string, std::string, std::less<>> shard_of;
  std::set<std::string> paths;
  const bool sharded = !std::filesystem::exists(single, error);
  if (sharded) {
    if (!std::filesystem::exists(index, error)) {
      return Err(Code::kNotFound, "{}: expected {} or {}", directory, kSingleName, kIndexName);
    }
    FATHOM_ASSIGN_OR_RETURN(shard_of, ReadIndex(index));
    std::set<std::string> missing;
    for (const auto& [name, shard] : shard_of) {
      const std::string path = fmt::format("{}/{}", directory, shard);
      (std::filesystem::exists(path, error) ? paths : missing).insert(path);
    }
    if (!missing.empty()) {
      return Err(Code::kNotFound, "{}: {} of the {} shards named by {} are missing, first {}",
                 directory, missing.size(), missing.size() + paths.size(), kIndexName,
                 *missing.begin());
    }
  } else {
    paths.insert(single);
  }

  Checkpoint checkpoint;
  for (const std::string& path : paths) {
    FATHOM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    FATHOM_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, ParseSafetensors(file.bytes(), path));
    for (TensorInfo& info : tensors) {
      const std::string name = info.name;
      const auto [it, inserted] =
          checkpoint.tensors_.try_emplace(name, Tensor{std::move(info), checkpoint.files_.size()});
      if (!inserted) {
        return Err(Code::kDataLoss, "tensor {} is in both {} and {}", name,
                   checkpoint.FileOf(it->second), path);
      }
      if (!sharded) continue;
      const auto listed = shard_of.find(name);
      if (listed == shard_of.end() || fmt::format("{}/{}", directory, listed->second) != path) {
        return Err(Code::kDataLoss, "tensor {} is in {}, but {} puts it in {}", name, path, index,
                   listed == shard_of.end() ? "no shard" : listed->second);
      }
    }
    checkpoint.files_.push_back(std::move(file));
  }
  for (const auto& [name, shard] : shard_of) {
    if (checkpoint.Find(name) == nullptr) {
      return Err(Code::kDataLoss, "{}: tensor {} is not in {}", index, name, shard);
    }
  }
  return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<TensorView> Checkpoint::Get(std::string_view name, std::initializer_list<int64_t> shape,
                                   std::initializer_list<DType> dtypes) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    std::vector<std::string_view> names;
    for (const auto& [known, unused] : tensors_) names.push_back(known);
    const std::string_view near = Nearest(name, names);
    return Err(Code::kNotFound, "tensor {} is missing from the checkpoint{}", name,
               near.empty() ? "" : fmt::format("; the nearest name is {}", near));
  }
  const TensorInfo& info = tensor->info;
  if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end())) {
    return Err(Code::kInvalidArgument, "{}: tensor {} has shape {}, expected {} from config.json",
               FileOf(*tensor), name, ShapeText(info.shape),
               ShapeText({shape.begin(), shape.size()}));
  }
  if (std::find(dtypes.begin(), dtypes.end(), info.dtype) == dtypes.end()) {
    std::vector<std::string_view> legal;
    for (const DType dtype : dtypes) legal.push_back(NameOf(dtype));
    return Err(Code::kUnsupported, "{}: tensor {} is {}, expected {}", FileOf(*tensor), name,
               NameOf(info.dtype), fmt::join(legal, " or "));
  }
  if (info.offset % static_cast<uint64_t>(SizeOf(info.dtype)) != 0) {
    return Err(Code::kUnsupported,
               "{}: tensor {} begins at byte {}, which is not a multiple of its element size; "
               "write the file again with a current safetensors library",
               FileOf(*tensor), name, info.offset);
  }
  // Mapped read-only: a view has no const form, and nothing writes through one of a checkpoint.
  auto* data = const_cast<std::byte*>(files_[tensor->file].bytes().data() + info.offset);
  return TensorView::Contiguous(data, info.dtype, shape);
}

void Checkpoint::Drop(std::string_view name) const {
  const Tensor* tensor = Find(name);
  if (tensor != nullptr) files_[tensor->file].Drop(tensor->info.offset, tensor->info.bytes);
}

uint64_t Checkpoint::file_bytes() const {
  uint64_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes().size();
  return bytes;
}

}  // namespace fathom::model
