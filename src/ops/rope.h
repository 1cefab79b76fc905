#pragma once
// Rotary position embedding (Su et al. 2021): the scalings in use and the tables made from them.
//
// inv_freq_i = theta^(-2i/dim), i < dim/2, changed by the scaling:
//   none     as is
//   linear   inv_freq / factor
//   dynamic  theta' = theta * ((factor * L / original) - (factor - 1))^(dim / (dim - 2)), for the
//            length L > original that the sequence may reach, fixed at its admission
//   yarn     inv_freq * (1 - ramp) + inv_freq / factor * ramp (Peng et al. 2023); cos and sin are
//            multiplied by the attention factor
//   llama3   wavelengths above original / low_freq_factor are divided by factor, below
//            original / high_freq_factor kept, between them interpolated
// Frequencies and angles are computed in f32, as the models were trained and as transformers does:
// a table in f64 would differ from it by 2^-24 of the position.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::ops {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };

std::string_view NameOf(RopeScaling scaling);
std::optional<RopeScaling> RopeScalingFromName(std::string_view name);  // "yarn", "llama3", ...

struct RopeSpec {
  int32_t dim = 0;  // rotated elements of a head, even
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int64_t original_positions = 0;  // original_max_position_embeddings
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::optional<double> attention_factor;
  bool truncate = true;  // round the ramp's ends outwards to whole dimensions
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
};

// [dim / 2]. `length` matters to kDynamic only: the tokens the sequence may hold.
std::vector<float> RopeInverseFrequencies(const RopeSpec& spec, int64_t length);
// What cos and sin are multiplied by: 1 but for yarn.
double RopeAttentionFactor(const RopeSpec& spec);
// m(mscale_all_dim)^2 with m(s) = 0.1 s ln(factor) + 1: DeepSeek multiplies its softmax scale by
// this under yarn; 1 otherwise.
double YarnSoftmaxFactor(const RopeSpec& spec);

// Checks ranges: dim even and positive, theta > 0, factor >= 1, original_positions where needed.
Status ValidateRope(const RopeSpec& spec);

// The tables of a model, addressed by StepInputs::rope_rows. Tables are added between steps (a
// dynamic scaling adds one for each length class) and stay for the life of the object; kernels
// read them as [positions][dim]: cos of dim/2 frequencies, then sin.
class RopeTables {
 public:
  RopeTables() = default;

  // Adds a table of `positions` rows; returns its row index. Not while a step runs.
  Result<int32_t> Add(const RopeSpec& spec, int64_t positions, int64_t length);

  int32_t size() const { return static_cast<int32_t>(tables_.size()); }
  int32_t dim() const { return dim_; }
  int64_t positions(int32_t row) const { return positions_[static_cast<size_t>(row)]; }
  // One pointer a table; valid until the next Add.
  const float* const* data() const { return pointers_.data(); }
  size_t Bytes() const;
  static size_t BytesFor(int32_t dim, int64_t positions) {
    return static_cast<size_t>(dim * positions) * sizeof(float);
  }

 private:
  int32_t dim_ = 0;
  std::vector<std::unique_ptr<float[]>> tables_;
  std::vector<const float*> pointers_;
  std::vector<int64_t> positions_;
};

}  // namespace fathom::ops
