#include "model/weight_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/strings.h"
#include "ops/onednn.h"

namespace fathom::model {
namespace {

using ops::linear::WeightSource;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

float ToF32(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return tensor.As<float>()[i];
    case DType::kF16:
      return F16ToF32(tensor.As<uint16_t>()[i]);
    default:
      return Bf16ToF32(tensor.As<uint16_t>()[i]);
  }
}

}  // namespace

std::string_view NameOf(WeightGroup group) {
  constexpr std::array<std::string_view, static_cast<size_t>(WeightGroup::kCount)> kNames = {
      "embedding",      "attention", "dense MLP", "router",   "experts",
      "shared experts", "norms",     "head",      "MTP layer"};
  return kNames[static_cast<size_t>(group)];
}

WeightStore::WeightStore(const Checkpoint& checkpoint, const std::optional<Fp8Config>& fp8,
                         ops::Precision precision, ops::Gemm gemm)
    : checkpoint_(&checkpoint), fp8_(fp8), precision_(precision), gemm_(gemm) {}

WeightStore::WeightStore(const Checkpoint& checkpoint, const std::optional<Fp8Config>& fp8,
                         ops::Precision precision, ops::Gemm gemm, ops::Device& device,
                         const kernels::cpu::KernelTable& cpu, Progress progress)
    : checkpoint_(&checkpoint),
      fp8_(fp8),
      precision_(precision),
      gemm_(gemm),
      device_(&device),
      cpu_(&cpu),
      progress_(std::move(progress)) {
  for (const auto& [name, tensor] : checkpoint.tensors()) source_bytes_ += tensor.info.bytes;
}

Result<TensorView> WeightStore::Get(std::string_view name, std::initializer_list<int64_t> shape,
                                    std::initializer_list<DType> dtypes) {
  FATHOM_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Get(name, shape, dtypes));
  const bool first = read_.emplace(name).second;  // tied weights are read twice
  if (!planning() && first) {
    constexpr size_t kSample = 64;
    const auto bytes = static_cast<size_t>(view.NumBytes());
    const auto* data = static_cast<const char*>(view.data);
    const size_t sample = std::min(bytes, kSample);
    content_hash_ = Hash64(name, content_hash_);
    for (const size_t offset : {size_t{0}, (bytes - sample) / 2, bytes - sample}) {
      content_hash_ = Hash64({data + offset, sample}, content_hash_);
    }
  }
  return view;
}

Result<WeightSource> WeightStore::Source(std::string_view name, int64_t rows, int64_t cols) {
  const std::string weight = fmt::format("{}.weight", name);
  const std::string scale = fmt::format("{}.weight_scale_inv", name);
  WeightSource source;
  FATHOM_ASSIGN_OR_RETURN(
      source.weight,
      Get(weight, {rows, cols}, {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3}));
  const bool quantised = source.weight.dtype == DType::kF8E4M3;
  if (quantised && !fp8_) {
    return Err(Code::kInvalidArgument,
               "tensor {} is F8_E4M3, but config.json has no quantization_config that says how its "
               "scales divide it",
               weight);
  }
  if (!quantised) {
    if (checkpoint_->Find(scale) != nullptr) {
      return Err(Code::kInvalidArgument, "tensor {} is {}, but it has scales ({})", weight,
                 NameOf(source.weight.dtype), scale);
    }
    return source;
  }
  FATHOM_ASSIGN_OR_RETURN(
      const TensorView scales,
      Get(scale, {CeilDiv(rows, fp8_->block_rows), CeilDiv(cols, fp8_->block_columns)},
          {DType::kF32}));
  source.scales = ops::linear::BlockScales{.scales = scales.As<float>(),
                                           .block_rows = fp8_->block_rows,
                                           .block_cols = fp8_->block_columns};
  return source;
}

void WeightStore::Done(std::string_view weight) {
  for (const std::string& name : {std::string(weight), fmt::format("{}_scale_inv", weight)}) {
    const Checkpoint::Tensor* tensor = checkpoint_->Find(name);
    if (tensor == nullptr) continue;
    checkpoint_->Drop(name);
    done_bytes_ += tensor->info.bytes;
  }
  if (progress_) progress_(std::min(done_bytes_, source_bytes_), source_bytes_);
}

Result<ops::linear::PackedWeight> WeightStore::Pack(WeightGroup group, std::span<const Part> parts,
                                                    int64_t cols, ops::Precision precision,
                                                    ops::Gemm gemm) {
  std::vector<WeightSource> sources;
  int64_t rows = 0;
  for (const Part& part : parts) {
    FATHOM_ASSIGN_OR_RETURN(sources.emplace_back(), Source(part.name, part.rows, cols));
    rows += part.rows;
  }
  if (planning()) {
    // A fused weight is kept in the widest type of its parts.
    uint64_t bytes = 0;
    for (const WeightSource& source : sources) {
      bytes = std::max<uint64_t>(
          bytes, ops::linear::PackedBytes(source.weight.dtype, rows, cols, precision));
    }
    if (gemm == ops::Gemm::kOneDnn) {
      FATHOM_ASSIGN_OR_RETURN(const size_t copy, ops::onednn::PackedBytes(precision, rows, cols));
      bytes += copy;
    }
    Count(group, bytes);
    return PackedWeight();
  }
  FATHOM_ASSIGN_OR_RETURN(PackedWeight packed,
                          ops::linear::Pack(sources, precision, *device_, *cpu_));
  for (const Part& part : parts) Done(part.name + ".weight");
  if (gemm == ops::Gemm::kOneDnn) FATHOM_TRY(ops::linear::AddOneDnn(packed));
  Count(group, packed.Bytes());
  return packed;
}

Result<const ops::linear::PackedWeight*> WeightStore::Keep(Result<PackedWeight> weight) {
  if (!weight) return tl::unexpected<Error>(std::move(weight.error()));
  if (planning()) return nullptr;
  linears_.push_back(std::move(*weight));
  return &linears_.back();
}

Result<const ops::linear::PackedWeight*> WeightStore::Linear(WeightGroup group,
                                                             std::span<const Part> parts,
                                                             int64_t cols) {
  return Keep(Pack(group, parts, cols, precision_,
                   group == WeightGroup::kHead ? ops::Gemm::kNative : gemm_));
}

Result<const ops::linear::PackedWeight*> WeightStore::Linear(WeightGroup group,
                                                             std::string_view name, int64_t rows,
                                                             int64_t cols) {
  const Part part{std::string(name), rows};
  return Linear(group, {&part, 1}, cols);
}

Result<const ops::linear::PackedWeight*> WeightStore::LinearF32(WeightGroup group,
                                                                std::string_view name, int64_t rows,
                                                                int64_t cols) {
  const Part part{std::string(name), rows};
  return Keep(Pack(group, {&part, 1}, cols, ops::Precision::kF32, ops::Gemm::kNative));
}

Result<MlpWeights> WeightStore::Mlp(WeightGroup group, std::string_view prefix, int64_t hidden,
                                    int64_t intermediate) {
  const std::array<Part, 2> gate_up = {Part{fmt::format("{}.gate_proj", prefix), intermediate},
                                       Part{fmt::format("{}.up_proj", prefix), intermediate}};
  MlpWeights mlp;
  FATHOM_ASSIGN_OR_RETURN(mlp.gate_up, Linear(group, gate_up, hidden));
  FATHOM_ASSIGN_OR_RETURN(mlp.down,
                          Linear(group, fmt::format("{}.down_proj", prefix), hidden, intermediate));
  return mlp;
}

Result<const ops::moe::ExpertWeights*> WeightStore::Experts(WeightGroup group,
                                                            std::string_view prefix,
                                                            const ops::moe::ExpertsShape& shape) {
  std::vector<ops::moe::ExpertWeights> experts(planning() ? 0
                                                          : static_cast<size_t>(shape.num_experts));
  for (int32_t e = 0; e < shape.num_experts; ++e) {
    const std::string name = fmt::format("{}.{}", prefix, e);
    const std::array<Part, 2> gate_up = {Part{name + ".gate_proj", shape.intermediate},
                                         Part{name + ".up_proj", shape.intermediate}};
    const Part down{name + ".down_proj", shape.hidden};
    FATHOM_ASSIGN_OR_RETURN(PackedWeight packed_gate_up,
                            Pack(group, gate_up, shape.hidden, precision_, ops::Gemm::kNative));
    FATHOM_ASSIGN_OR_RETURN(PackedWeight packed_down, Pack(group, {&down, 1}, shape.intermediate,
                                                           precision_, ops::Gemm::kNative));
    if (planning()) continue;
    experts[static_cast<size_t>(e)] = {std::move(packed_gate_up), std::move(packed_down)};
  }
  if (planning()) return nullptr;
  experts_.push_back(std::move(experts));
  return experts_.back().data();
}

Result<const ops::attention::MlaWeights*> WeightStore::Mla(WeightGroup group, std::string_view name,
                                                           const ops::attention::MlaShape& shape) {
  const int64_t rows = int64_t{shape.num_heads} * (shape.nope_dim + shape.v_dim);
  FATHOM_ASSIGN_OR_RETURN(const WeightSource source, Source(name, rows, shape.kv_lora_rank));
  if (planning()) {
    Count(group, ops::attention::PackedMlaBytes(source.weight.dtype, shape));
    return nullptr;
  }
  FATHOM_ASSIGN_OR_RETURN(ops::attention::MlaWeights weights,
                          ops::attention::PackMlaWeights(source, shape, *device_, *cpu_));
  Done(fmt::format("{}.weight", name));
  Count(group, weights.Bytes());
  mla_.push_back(std::move(weights));
  return &mla_.back();
}

Result<const float*> WeightStore::Vector(WeightGroup group, std::span<const Part> tensors) {
  std::vector<float> values;
  int64_t size = 0;
  for (const Part& part : tensors) {
    FATHOM_ASSIGN_OR_RETURN(const TensorView tensor,
                            Get(part.name, {part.rows}, {DType::kBF16, DType::kF16, DType::kF32}));
    size += part.rows;
    if (planning()) continue;
    for (int64_t i = 0; i < part.rows; ++i) values.push_back(ToF32(tensor, i));
    Done(part.name);
  }
  Count(group, static_cast<uint64_t>(size) * sizeof(float));
  if (planning()) return nullptr;
  vectors_.push_back(std::move(values));
  return vectors_.back().data();
}

Result<const float*> WeightStore::Vector(WeightGroup group, std::string_view tensor, int64_t size) {
  const Part part{std::string(tensor), size};
  return Vector(group, {&part, 1});
}

Result<TensorView> WeightStore::Table(WeightGroup group, std::string_view name, int64_t rows,
                                      int64_t cols) {
  const std::string weight = fmt::format("{}.weight", name);
  FATHOM_ASSIGN_OR_RETURN(TensorView table,
                          Get(weight, {rows, cols}, {DType::kBF16, DType::kF16, DType::kF32}));
  const auto bytes = static_cast<size_t>(table.NumBytes());
  Count(group, bytes);
  if (planning()) return TensorView{};
  const auto* data = static_cast<const std::byte*>(table.data);
  tables_.emplace_back(data, data + bytes);
  table.data = tables_.back().data();
  Done(weight);
  return table;
}

Status WeightStore::Finish(const std::function<bool(std::string_view)>& ignorable) const {
  std::vector<std::string_view> unread;
  size_t count = 0;
  for (const auto& [name, tensor] : checkpoint_->tensors()) {
    if (read_.contains(name) || ignorable(name)) continue;
    constexpr size_t kShown = 5;
    if (++count <= kShown) unread.push_back(name);
  }
  if (count == 0) return {};
  return Err(Code::kUnsupported,
             "the checkpoint has {} tensors that config.json does not explain, so the model would "
             "not be what was trained: {}{}",
             count, fmt::join(unread, ", "), count > unread.size() ? ", ..." : "");
}

uint64_t WeightStore::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t bytes : bytes_) total += bytes;
  return total;
}

}  // namespace fathom::model
