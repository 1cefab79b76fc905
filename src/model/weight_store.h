#pragma once
// Owns every form of a model's weights: packed products, absorbed halves of kv_b_proj, f32 norms
// and biases, the embedding table. One description of a model (its Load functions) drives it twice:
// a planning store checks names, shapes and dtypes against the file headers and counts bytes; a
// loading store packs, and gives the source pages back as it goes.
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/moe.h"

namespace fathom::model {

enum class WeightGroup : uint8_t {
  kEmbedding,
  kAttention,
  kDenseMlp,
  kGate,
  kExperts,
  kSharedExperts,
  kNorms,
  kHead,
  kMtp,
  kCount,
};

std::string_view NameOf(WeightGroup group);  // "embedding", "attention", ...

using MlpWeights = ops::mlp::Weights;

class WeightStore {
 public:
  using PackedWeight = ops::linear::PackedWeight;

  // Bytes of the checkpoint that have been read, of all that will be.
  using Progress = std::function<void(uint64_t done, uint64_t total)>;

  // A planning store. `fp8` is the checkpoint's quantization_config. The checkpoint must outlive
  // the store's loading, not the store.
  WeightStore(const Checkpoint& checkpoint, const std::optional<Fp8Config>& fp8,
              ops::Precision precision, ops::Gemm gemm = ops::Gemm::kNative);
  // A loading store.
  WeightStore(const Checkpoint& checkpoint, const std::optional<Fp8Config>& fp8,
              ops::Precision precision, ops::Gemm gemm, ops::Device& device,
              const kernels::cpu::KernelTable& cpu, Progress progress);
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // A tensor `name`.weight of this many rows.
  struct Part {
    std::string name;
    int64_t rows = 0;
  };

  // Each of these returns what it made, or null (an empty view) from a planning store. Pointers
  // stay valid for the life of the store.

  // The parts one below the other: [sum of rows, cols]. The store's Gemm multiplies them, except
  // the head, of which a step wants few rows.
  Result<const PackedWeight*> Linear(WeightGroup group, std::span<const Part> parts, int64_t cols);
  Result<const PackedWeight*> Linear(WeightGroup group, std::string_view name, int64_t rows,
                                     int64_t cols);
  // Multiplied in f32 whatever the model's precision: the router, whose near-ties rounding decides.
  Result<const PackedWeight*> LinearF32(WeightGroup group, std::string_view name, int64_t rows,
                                        int64_t cols);
  // `prefix`.{gate,up,down}_proj
  Result<MlpWeights> Mlp(WeightGroup group, std::string_view prefix, int64_t hidden,
                         int64_t intermediate);
  // `prefix`.E.{gate,up,down}_proj for each expert: [num_experts].
  Result<const ops::moe::ExpertWeights*> Experts(WeightGroup group, std::string_view prefix,
                                                 const ops::moe::ExpertsShape& shape);
  Result<const ops::attention::MlaWeights*> Mla(WeightGroup group, std::string_view name,
                                                const ops::attention::MlaShape& shape);
  // Tensors (full names) as f32, one after the other: norms, biases.
  Result<const float*> Vector(WeightGroup group, std::span<const Part> tensors);
  Result<const float*> Vector(WeightGroup group, std::string_view tensor, int64_t size);
  // [rows, cols] in the type it is stored in.
  Result<TensorView> Table(WeightGroup group, std::string_view name, int64_t rows, int64_t cols);

  // Everything was asked for. A tensor that nobody read, unless `ignorable`, means that the
  // checkpoint computes something that this program does not.
  Status Finish(const std::function<bool(std::string_view name)>& ignorable) const;

  bool planning() const { return device_ == nullptr; }
  ops::Precision precision() const { return precision_; }
  uint64_t bytes(WeightGroup group) const { return bytes_[static_cast<size_t>(group)]; }
  uint64_t total_bytes() const;
  // Of samples of every tensor that was loaded: tells checkpoints of one shape apart.
  uint64_t content_hash() const { return content_hash_; }

 private:
  Result<ops::linear::WeightSource> Source(std::string_view name, int64_t rows, int64_t cols);
  Result<TensorView> Get(std::string_view name, std::initializer_list<int64_t> shape,
                         std::initializer_list<DType> dtypes);
  // Returns the pages of these weights (with their scales) and reports progress.
  void Done(std::string_view weight);
  Result<PackedWeight> Pack(WeightGroup group, std::span<const Part> parts, int64_t cols,
                            ops::Precision precision, ops::Gemm gemm);
  Result<const PackedWeight*> Keep(Result<PackedWeight> weight);
  void Count(WeightGroup group, uint64_t bytes) { bytes_[static_cast<size_t>(group)] += bytes; }

  const Checkpoint* checkpoint_;
  std::optional<Fp8Config> fp8_;
  ops::Precision precision_;
  ops::Gemm gemm_;
  ops::Device* device_ = nullptr;
  const kernels::cpu::KernelTable* cpu_ = nullptr;
  Progress progress_;

  std::unordered_set<std::string> read_;
  uint64_t source_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t content_hash_ = 0;
  std::array<uint64_t, static_cast<size_t>(WeightGroup::kCount)> bytes_ = {};

  std::deque<PackedWeight> linears_;
  std::deque<ops::attention::MlaWeights> mla_;
  std::deque<std::vector<ops::moe::ExpertWeights>> experts_;
  std::deque<std::vector<float>> vectors_;
  std::deque<std::vector<std::byte>> tables_;
};

}  // namespace fathom::model
