#include "merge_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/check.h"
#include "element.h"
#include "kernels/cuda/launch.h"

namespace fathom::bench {

struct MergeRun::State {
  MergeCase shape;
  kernels::cuda::MergeStatesParams params;
  std::vector<std::vector<float>> out;  // of each state, as stored
  std::vector<std::vector<float>> lse;
  std::vector<Buffer> buffers;
  Buffer result, result_lse;

  Buffer Upload(const std::vector<float>& values) const {
    if (shape.float32) return Buffer(values);
    std::vector<uint16_t> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(),
                   [this](float x) { return F32ToElement(x, shape.float16); });
    return Buffer(narrow);
  }
};

MergeRun::MergeRun(MergeCase shape, const ops::GpuLimits& gpu) : state_(new State) {
  State& s = *state_;
  s.shape = std::move(shape);
  const MergeCase& c = s.shape;
  const int64_t elements = c.rows * c.dim;
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> unit(-1, 1);
  kernels::cuda::MergeStatesParams& p = s.params;
  p.num_states = c.num_states;
  p.dim = c.dim;
  p.rows = c.rows;
  for (int i = 0; i < c.num_states; ++i) {
    std::vector<float>& out = s.out.emplace_back(static_cast<size_t>(elements));
    std::vector<float>& lse = s.lse.emplace_back(static_cast<size_t>(c.rows));
    for (float& x : out) {
      x = unit(engine);
      if (!c.float32) x = ElementToF32(F32ToElement(x, c.float16), c.float16);
    }
    for (int64_t row = 0; row < c.rows; ++row) {
      lse[static_cast<size_t>(row)] = unit(engine) * c.lse_range;
      if (std::abs(unit(engine)) >= static_cast<float>(c.empty_share)) continue;
      lse[static_cast<size_t>(row)] = -std::numeric_limits<float>::infinity();
      std::fill_n(out.begin() + row * c.dim, c.dim, std::numeric_limits<float>::quiet_NaN());
    }
    const Buffer& rows = s.buffers.emplace_back(s.Upload(out));
    p.states[i] = {.out = rows.As<void>(), .row_stride = c.dim, .float32 = c.float32};
    p.states[i].lse = s.buffers.emplace_back(lse).As<float>();
  }
  s.result = Buffer(elements * (c.float32 ? 4 : 2));
  s.result_lse = Buffer(c.rows * 4);
  s.result.Fill(0xff);
  s.result_lse.Fill(0xff);
  p.out = s.result.As<void>();
  p.out_row_stride = c.dim;
  p.out_float32 = c.float32;
  p.float16 = c.float16;
  p.lse = s.result_lse.As<float>();
  const Status legal = ops::CheckMergeStatesParams(p, gpu);
  FATHOM_CHECK(legal, "{}", legal.error().message);
}

MergeRun::~MergeRun() = default;

void MergeRun::Run() {
  CheckCuda(kernels::cuda::RunMergeStates(state_->params, nullptr), "merge of states");
  CheckCuda(cudaDeviceSynchronize(), "merge of states");
}

MergeRun::Errors MergeRun::Compare() const {
  const State& s = *state_;
  const MergeCase& c = s.shape;
  std::vector<float> out;
  if (c.float32) {
    out = s.result.Read<float>();
  } else {
    for (const uint16_t x : s.result.Read<uint16_t>()) {
      out.push_back(ElementToF32(x, c.float16));
    }
  }
  const std::vector<float> lse = s.result_lse.Read<float>();
  Errors errors;
  double difference = 0;
  double norm = 0;
  std::vector<double> want(static_cast<size_t>(c.dim));
  for (size_t row = 0; row < static_cast<size_t>(c.rows); ++row) {
    double sum = 0;
    std::fill(want.begin(), want.end(), 0.0);
    for (size_t i = 0; i < s.out.size(); ++i) {
      const double weight = std::exp(double{s.lse[i][row]});
      if (weight == 0) continue;
      sum += weight;
      for (size_t d = 0; d < want.size(); ++d) want[d] += weight * s.out[i][row * want.size() + d];
    }
    for (size_t d = 0; d < want.size(); ++d) {
      const double exact = sum > 0 ? want[d] / sum : 0;
      const double error = out[row * want.size() + d] - exact;
      difference += std::isfinite(error) ? error * error : std::numeric_limits<double>::infinity();
      norm += exact * exact;
    }
    if (sum == 0) {
      if (!(std::isinf(lse[row]) && lse[row] < 0)) errors.lse = HUGE_VAL;
    } else {
      errors.lse = std::max(errors.lse, std::abs(lse[row] - std::log(sum)));
    }
  }
  errors.out = std::sqrt(norm > 0 ? difference / norm : difference);
  return errors;
}

double MergeRun::TimeUs(int repeats, L2 l2) {
  return TimeCold(
      [this](cudaStream_t stream) {
        CheckCuda(kernels::cuda::RunMergeStates(state_->params, stream), "merge of states");
      },
      repeats, l2);
}

double MergeRun::Bytes() const {
  const MergeCase& c = state_->shape;
  const double rows = static_cast<double>(c.rows) * (c.dim * (c.float32 ? 4 : 2) + 4);
  return rows * (c.num_states + 1);
}

namespace {

MergeCase Make(int states, int64_t rows, int dim, bool float32) {
  return {.name = fmt::format("merge {} states of {} rows of {} {}", states, rows, dim,
                              float32 ? "f32" : "bf16"),
          .num_states = states,
          .rows = rows,
          .dim = dim,
          .float32 = float32};
}

}  // namespace

std::vector<MergeCase> MergeCheckCases() {
  std::vector<MergeCase> cases;
  for (const bool float32 : {false, true}) {
    for (const int dim : {64, 128, 512, 4, 36}) cases.push_back(Make(3, 37, dim, float32));
    cases.push_back(Make(1, 9, 128, float32));
    cases.push_back(Make(kernels::cuda::kMaxMergeStates, 65, 128, float32));
  }
  for (const int dim : {128, 36}) {
    cases.push_back(Make(3, 37, dim, false));
    cases.back().float16 = true;
    cases.back().name += ", float16";
  }
  cases.push_back(Make(2, 50, 128, false));
  cases.back().name += ", nothing seen";
  cases.back().empty_share = 1;
  return cases;
}

std::vector<MergeCase> MergeTimeCases() {
  return {Make(2, 4096 * 32, 128, false), Make(8, 64 * 32, 128, true),
          Make(8, 64 * 128, 512, true)};
}

}  // namespace fathom::bench
