#include "run.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "backward_case.h"
#include "base/write_file.h"
#include "cost/hardware.h"
#include "decode_cases.h"
#include "device.h"
#include "kernels/cuda/cublas_gemm.h"
#include "merge_case.h"
#include "micro.h"
#include "mla_prefill_case.h"
#include "prefill_case.h"
#include "tolerances.h"
#include "writer_case.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::json;

constexpr double kReadCeiling = 4360;  // GB/s, a float32 reduction under the same cold L2

template <class Case>
double Tolerance(const Case& c) {
  return c.float16 ? kToleranceF16 : kTolerance;
}

double Tolerance(const BackwardCase& c) {
  return c.float16 ? kGradientTolerance / 8 : kGradientTolerance;
}

constexpr const char* kCopies = "copies alone";  // among the variants of decode

struct Variant {
  const char* name;
  ops::DecodeAttentionOptions options;
};

constexpr Variant kVariants[] = {
    {"balanced", {ops::Reduction::kBalanced}},
    {"batch-invariant", {ops::Reduction::kBatchInvariant}},
    {"spans", {ops::Reduction::kSpans}},
    {"warpgroups", {ops::Reduction::kBalanced, ops::DecodeKernel::kWarpgroups}},
    {"free warps", {ops::Reduction::kBalanced, ops::DecodeKernel::kWarps}},
    {"portable", {.portable = true}},
};

// Rows of a kv head, as the tuning table counts them.
int RowsOf(const DecodeCase& c) {
  const int queries =
      c.query_tokens.empty() ? 1 : *std::max_element(c.query_tokens.begin(), c.query_tokens.end());
  return queries * (c.num_heads / c.num_kv_heads);
}

// Which cases are asked for.
struct Filter {
  std::string name;    // part of it; empty: all
  bool small = false;  // those that a sanitizer gets through

  bool Wants(const std::string& case_name, int64_t tokens) const {
    constexpr int64_t kSmallTokens = 5500;
    return case_name.find(name) != std::string::npos && (!small || tokens <= kSmallTokens);
  }
};

int64_t Sum(const std::vector<int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// Quantised caches have one kind of kernel, free warps take no latent ones.
bool Applies(const Variant& variant, const DecodeCase& shape) {
  const bool any_shape =
      variant.options.kernel == ops::DecodeKernel::kAuto && !variant.options.portable;
  if (shape.sparse()) return any_shape && variant.options.reduction == ops::Reduction::kBalanced;
  return any_shape || (shape.code == kernels::cuda::CacheCode::kBf16 &&
                       (shape.dim_qk == shape.dim_v || variant.options.portable));
}

// Every case in every variant, against float32 on the GPU (and float64 on the host where small),
// twice for equal bits.
int CheckDecode(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  int failures = 0;
  for (const DecodeCase& shape : DecodeCheckCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    double worst = 0;
    double worst_lse = 0;
    std::string wrong;
    for (const Variant& variant : kVariants) {
      if (!Applies(variant, shape)) continue;
      DecodeRun run(shape, variant.options, gpu);
      run.Prepare();
      run.Run();
      const auto first = run.Output();
      std::vector<AttentionErrors> errors{run.CompareFloat32()};
      // What the host's reference reads, and is worth its time: that both references agree where
      // weights are far apart is seen by tests/cuda/bench_case_test.cc.
      const bool plain = shape.code == kernels::cuda::CacheCode::kBf16 && !shape.sparse() &&
                         shape.weights == Weights::kRandom;
      if (run.Flops() < 3e8 && plain) {
        errors.push_back(run.CompareFloat64());
      }
      for (const AttentionErrors& e : errors) {
        worst = std::max(worst, e.out);
        worst_lse = std::max(worst_lse, e.lse);
        if (!e.finite || !(e.out <= Tolerance(shape)) || !(e.lse <= kLseTolerance)) {
          wrong += fmt::format(" [{}: error {:.2e}, lse {:.2e}{}]", variant.name, e.out, e.lse,
                               e.finite ? "" : ", not finite");
        }
      }
      if (!run.ScheduleMatchesHost()) wrong += fmt::format(" [{}: schedule]", variant.name);
      run.Run();
      if (run.Output() != first) wrong += fmt::format(" [{}: bits differ]", variant.name);
    }
    failures += wrong.empty() ? 0 : 1;
    fmt::print("{:<44} {:>9.2e} {:>9.2e} {}\n", shape.name, worst, worst_lse,
               wrong.empty() ? "ok" : "FAILED" + wrong);
    json["checks"].push_back(
        {{"case", shape.name}, {"error", worst}, {"lse_error", worst_lse}, {"ok", wrong.empty()}});
  }
  if (!filter.name.empty() || filter.small) return failures;
  // A sequence's bits may not depend on its batch: alone and among others.
  for (const ops::Reduction reduction : {ops::Reduction::kBatchInvariant, ops::Reduction::kSpans}) {
    for (const bool latent : {false, true}) {
      DecodeCase many{.name = "batch",
                      .num_heads = latent ? 16 : 32,
                      .num_kv_heads = latent ? 1 : 8,
                      .dim_qk = latent ? 576 : 128,
                      .dim_v = latent ? 512 : 128};
      many.kv_lengths = {3000, 17, 9000, 256, 1025};
      DecodeCase one = many;
      one.kv_lengths = {3000};
      DecodeRun a(many, {.reduction = reduction}, gpu);
      DecodeRun b(one, {.reduction = reduction}, gpu);
      a.Prepare();
      b.Prepare();
      a.Run();
      b.Run();
      auto batch = a.Output();
      const auto alone = b.Output();
      batch.resize(alone.size());
      const bool same = batch == alone;
      failures += same ? 0 : 1;
      fmt::print("{:<44} {}\n",
                 fmt::format("bits alone = in a batch, {}, {}",
                             reduction == ops::Reduction::kSpans ? "spans" : "batch-invariant",
                             latent ? "MLA" : "GQA"),
                 same ? "ok" : "FAILED");
    }
  }
  return failures;
}

constexpr struct {
  const char* name;
  ops::PrefillAttentionOptions options;
} kPrefillVariants[] = {{"", {}}, {", portable", {.portable = true}}};

// Prints a case of prefill and adds it to the checks: 1 where it fails. `same`: a second run gave
// equal bits.
int PrefillFails(const std::string& name, const AttentionErrors& errors, double tolerance,
                 double lse_tolerance, bool same, Json& json) {
  const bool ok = errors.finite && errors.out <= tolerance && errors.lse <= lse_tolerance && same;
  fmt::print("{:<66} {:>9.2e} {:>9.2e} {}{}\n", name, errors.out, errors.lse, ok ? "ok" : "FAILED",
             same ? "" : ", bits differ");
  json["checks"].push_back(
      {{"case", name}, {"error", errors.out}, {"lse_error", errors.lse}, {"ok", ok}});
  return ok ? 0 : 1;
}

int CheckPrefill(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  int failures = 0;
  for (const PrefillCase& shape : PrefillCheckCases()) {
    for (const auto& variant : kPrefillVariants) {
      if (shape.policy && variant.options.portable) continue;  // no tile lists
      const std::string name = "prefill " + shape.name + variant.name;
      if (!filter.Wants(name, 2 * Sum(shape.kv_lengths))) continue;
      PrefillRun run(shape, variant.options, gpu);
      run.Run();
      const auto first = run.Output();
      const AttentionErrors errors = run.CompareFloat32(4096);
      run.Run();
      failures +=
          PrefillFails(name, errors, Tolerance(shape), kLseTolerance, run.Output() == first, json);
    }
  }
  return failures;
}

void TimePrefill(const ops::GpuLimits& gpu, const ops::TuningTable& tuning, int repeats,
                 const Filter& filter, Json& json) {
  fmt::print("{:<56} {:>9} {:>8} {:>9}\n", "prefill shape", "us", "TFLOP/s", "error");
  for (const PrefillCase& shape : PrefillTimeCases()) {
    for (const auto& variant : kPrefillVariants) {
      if (shape.policy && variant.options.portable) continue;  // no tile lists
      const std::string name = shape.name + variant.name;
      if (!filter.Wants(name, Sum(shape.kv_lengths))) continue;
      ops::PrefillAttentionOptions options = variant.options;
      options.tuning = tuning.Prefill(shape.dim_qk, shape.dim_v);
      PrefillRun run(shape, options, gpu);
      run.Run();
      const AttentionErrors errors = run.CompareFloat32(512);
      if (!errors.finite || !(errors.out <= Tolerance(shape))) {
        fmt::print("{:<56} wrong: error {:.2e}\n", name, errors.out);
        continue;
      }
      const double us = run.TimeUs(repeats, L2::kDirty);
      const double tflops = run.Flops() / us * 1e-6;
      fmt::print("{:<56} {:>9.1f} {:>8.1f} {:>9.2e}\n", name, us, tflops, errors.out);
      json["prefill"].push_back({{"shape", shape.name},
                                 {"variant", variant.options.portable ? "portable" : "balanced"},
                                 {"us", us},
                                 {"tflops", tflops},
                                 {"error", errors.out},
                                 {"plan", run.plan().Describe()}});
    }
  }
}

// cuBLAS is asked for here first; without it, MLA prefill is neither checked nor timed.
Result<kernels::cuda::GemmFunction> MakeGemm() {
  FATHOM_ASSIGN_OR_RETURN(const auto cublas, kernels::cuda::CublasGemm::Create());
  return kernels::cuda::GemmFunction(
      [cublas](const kernels::cuda::GemmParams& params, cudaStream_t stream) {
        return cublas->Multiply(params, stream);
      });
}

int CheckMlaPrefill(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  const auto gemm = MakeGemm();
  int failures = 0;
  for (const MlaPrefillCase& shape : MlaPrefillCheckCases()) {
    for (const auto& variant : kPrefillVariants) {
      const std::string name = "prefill " + shape.name + variant.name;
      if (!filter.Wants(name, shape.num_heads * Sum(shape.kv_lengths))) continue;
      if (!gemm) {
        fmt::print("{:<66} {}\n", name, gemm.error().message);
        return failures + 1;
      }
      MlaPrefillRun run(shape, {.portable = variant.options.portable}, gpu, *gemm);
      run.Run();
      const auto first = run.Output();
      const AttentionErrors errors = run.CompareFloat64(48);
      run.Run();
      failures += PrefillFails(name, errors, Tolerance(shape),
                               shape.float16 ? kMlaLseToleranceF16 : kMlaLseTolerance,
                               run.Output() == first, json);
    }
  }
  return failures;
}

// Beside the same attention over keys and values that are there: the difference is what it takes to
// expand latents and to merge parts. The floor: both products at the data sheet's rate.
void TimeMlaPrefill(const ops::GpuLimits& gpu, const cost::Hardware* hardware,
                    const ops::TuningTable& tuning, int repeats, const Filter& filter, Json& json) {
  const auto gemm = MakeGemm();
  fmt::print("{:<40} {:>9} {:>12} {:>8} {:>9} {:>6} {:>9} {:>10}\n", "prefill from latents", "us",
             "ready K/V us", "TFLOP/s", "floor us", "parts", "MiB", "error");
  for (const MlaPrefillCase& shape : MlaPrefillTimeCases()) {
    for (const auto& variant : kPrefillVariants) {
      const std::string name = shape.name + variant.name;
      if (!filter.Wants(name, Sum(shape.kv_lengths))) continue;
      if (!gemm) {
        fmt::print("{:<40} {}\n", name, gemm.error().message);
        return;
      }
      const bool portable = variant.options.portable;
      MlaPrefillRun run(shape, {.portable = portable, .tuning = tuning.Prefill(192, 128)}, gpu,
                        *gemm);
      run.Run();
      const AttentionErrors errors = run.CompareFloat64(8);
      if (!errors.finite || !(errors.out <= Tolerance(shape))) {
        fmt::print("{:<40} wrong: error {:.2e}\n", name, errors.out);
        continue;
      }
      const double us = run.TimeUs(repeats, L2::kDirty);
      PrefillRun ready({.num_heads = shape.num_heads,
                        .num_kv_heads = shape.num_heads,
                        .dim_qk = 192,
                        .dim_v = 128,
                        .kv_lengths = shape.kv_lengths,
                        .query_tokens = shape.query_tokens,
                        .float16 = shape.float16},
                       {.portable = portable, .tuning = tuning.Prefill(192, 128)}, gpu);
      ready.Run();
      const double ready_us = ready.TimeUs(repeats, L2::kDirty);
      const double flops = run.AttentionFlops() + run.ExpansionFlops();
      const double floor_us = hardware == nullptr ? 0 : flops / hardware->bf16_flops_per_s * 1e6;
      const ops::MlaPrefillPlan& plan = run.plan();
      fmt::print("{:<40} {:>9.1f} {:>12.1f} {:>8.1f} {:>9.1f} {:>6} {:>9.1f} {:>10.2e}\n", name, us,
                 ready_us, flops / us * 1e-6, floor_us, plan.num_parts,
                 static_cast<double>(plan.workspace_bytes) / (1 << 20), errors.out);
      json["mla_prefill"].push_back({{"shape", shape.name},
                                     {"variant", portable ? "portable" : "balanced"},
                                     {"us", us},
                                     {"ready_us", ready_us},
                                     {"floor_us", floor_us},
                                     {"tflops", flops / us * 1e-6},
                                     {"workspace_bytes", plan.workspace_bytes},
                                     {"error", errors.out},
                                     {"plan", plan.Describe()}});
    }
  }
}

int CheckWriter(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  int failures = 0;
  for (const WriterCase& shape : WriterCheckCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    WriterRun run(shape, gpu);
    run.Run();
    const WriterErrors errors = run.Compare();
    const bool ok = errors.worst <= 1 && errors.stray == 0;
    failures += ok ? 0 : 1;
    fmt::print("{:<66} {:>9.3f} of its bound, {} stray bytes {}\n", shape.name, errors.worst,
               errors.stray, ok ? "ok" : "FAILED");
    json["checks"].push_back(
        {{"case", shape.name}, {"error_over_bound", errors.worst}, {"ok", ok}});
  }
  return failures;
}

void TimeWriter(const ops::GpuLimits& gpu, int repeats, const Filter& filter, Json& json) {
  fmt::print("{:<56} {:>9} {:>8}\n", "cache write", "us", "GB/s");
  for (const WriterCase& shape : WriterTimeCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    WriterRun run(shape, gpu);
    run.Run();
    const WriterErrors errors = run.Compare();
    if (!(errors.worst <= 1) || errors.stray != 0) {
      fmt::print("{:<56} wrong: {:.2f} of the bound, {} stray bytes\n", shape.name, errors.worst,
                 errors.stray);
      continue;
    }
    const double us = run.TimeUs(repeats, L2::kDirty);
    const double gbs = run.Bytes() / us * 1e-3;
    fmt::print("{:<56} {:>9.1f} {:>8.0f}\n", shape.name, us, gbs);
    json["write"].push_back({{"shape", shape.name}, {"us", us}, {"gb_per_s", gbs}});
  }
}

int CheckBackward(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  int failures = 0;
  for (const BackwardCase& shape : BackwardCheckCases()) {
    if (!filter.Wants(shape.name, int64_t{25} * shape.batch * shape.length)) continue;
    BackwardRun run(shape, gpu);
    run.Run();
    const auto first = run.Output();
    const GradientErrors errors = run.Compare(200);
    run.Run();
    const bool same = run.Output() == first;
    const bool ok = errors.Worst() <= Tolerance(shape) && same;
    failures += ok ? 0 : 1;
    fmt::print("{:<66} dq {:>9.2e} dk {:>9.2e} dv {:>9.2e} {}{}\n", shape.name, errors.d_q,
               errors.d_k, errors.d_v, ok ? "ok" : "FAILED", same ? "" : ", bits differ");
    json["checks"].push_back({{"case", shape.name}, {"error", errors.Worst()}, {"ok", ok}});
  }
  return failures;
}

void TimeBackward(const ops::GpuLimits& gpu, int repeats, const Filter& filter, Json& json) {
  fmt::print("{:<56} {:>9} {:>8} {:>9}\n", "backward shape", "us", "TFLOP/s", "error");
  for (const BackwardCase& shape : BackwardTimeCases()) {
    if (!filter.Wants(shape.name, int64_t{25} * shape.batch * shape.length)) continue;
    BackwardRun run(shape, gpu);
    run.Run();
    const GradientErrors errors = run.Compare(4);
    if (!(errors.Worst() <= Tolerance(shape))) {
      fmt::print("{:<56} wrong: error {:.2e}\n", shape.name, errors.Worst());
      continue;
    }
    const double us = run.TimeUs(repeats, L2::kDirty);
    const double tflops = run.Flops() / us * 1e-6;
    fmt::print("{:<56} {:>9.1f} {:>8.1f} {:>9.2e}\n", shape.name, us, tflops, errors.Worst());
    json["backward"].push_back(
        {{"shape", shape.name}, {"us", us}, {"tflops", tflops}, {"error", errors.Worst()}});
  }
}

int CheckMerge(const ops::GpuLimits& gpu, const Filter& filter, Json& json) {
  int failures = 0;
  for (const MergeCase& shape : MergeCheckCases()) {
    if (!filter.Wants(shape.name, shape.rows)) continue;
    MergeRun run(shape, gpu);
    run.Run();
    const MergeRun::Errors errors = run.Compare();
    const bool ok = errors.out <= MergeTolerance(shape) && errors.lse <= 1e-4;
    failures += ok ? 0 : 1;
    fmt::print("{:<66} {:>9.2e} {:>9.2e} {}\n", shape.name, errors.out, errors.lse,
               ok ? "ok" : "FAILED");
    json["checks"].push_back(
        {{"case", shape.name}, {"error", errors.out}, {"lse_error", errors.lse}, {"ok", ok}});
  }
  return failures;
}

void TimeMerge(const ops::GpuLimits& gpu, int repeats, const Filter& filter, Json& json) {
  fmt::print("{:<56} {:>9} {:>8}\n", "merge of states", "us", "GB/s");
  for (const MergeCase& shape : MergeTimeCases()) {
    if (!filter.Wants(shape.name, shape.rows)) continue;
    MergeRun run(shape, gpu);
    const double us = run.TimeUs(repeats, L2::kDirty);
    const double gbs = run.Bytes() / us * 1e-3;
    fmt::print("{:<56} {:>9.1f} {:>8.0f}\n", shape.name, us, gbs);
    json["merge"].push_back({{"shape", shape.name}, {"us", us}, {"gb_per_s", gbs}});
  }
}

void TimeDecode(const ops::GpuLimits& gpu, const ops::TuningTable& tuning, int repeats,
                const Filter& filter, Json& json) {
  fmt::print("{:<50} {:<16} {:>9} {:>9} {:>8} {:>6} {:>8} {:>9}\n", "shape", "variant", "us",
             "us clean", "GB/s", "% read", "TFLOP/s", "error");
  for (const DecodeCase& shape : DecodeTimeCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    for (const Variant& variant : kVariants) {
      if (!Applies(variant, shape)) continue;
      ops::DecodeAttentionOptions options = variant.options;
      options.tuning = tuning.Decode(shape.dim_qk, shape.dim_v, RowsOf(shape));
      DecodeRun run(shape, options, gpu);
      run.Prepare();
      run.Run();
      const AttentionErrors errors = run.CompareFloat32();
      if (!errors.finite || !(errors.out <= Tolerance(shape))) {
        fmt::print("{:<50} {:<16} wrong: error {:.2e}\n", shape.name, variant.name, errors.out);
        continue;
      }
      const double us = run.TimeUs(repeats, L2::kDirty);
      const double clean_us = run.TimeUs(repeats, L2::kClean);
      const double gbs = run.CacheBytes() / us * 1e-3;
      const double tflops = run.Flops() / us * 1e-6;
      fmt::print("{:<50} {:<16} {:>9.1f} {:>9.1f} {:>8.0f} {:>6.1f} {:>8.1f} {:>9.2e}\n",
                 shape.name, variant.name, us, clean_us, gbs, gbs / kReadCeiling * 100, tflops,
                 errors.out);
      json["decode"].push_back({{"shape", shape.name},
                                {"variant", variant.name},
                                {"us", us},
                                {"us_clean_l2", clean_us},
                                {"gb_per_s", gbs},
                                {"tflops", tflops},
                                {"error", errors.out},
                                {"plan", run.plan().Describe()}});
      if (&variant != kVariants) continue;
      // What the default variant cannot be much faster than, on the same memory.
      if (const auto copies = run.TimeCopiesUs(repeats, L2::kDirty)) {
        const double copies_clean = run.TimeCopiesUs(repeats, L2::kClean).value();
        const double copies_gbs = run.CacheBytes() / *copies * 1e-3;
        fmt::print("{:<50} {:<16} {:>9.1f} {:>9.1f} {:>8.0f} {:>6.1f}\n", shape.name, kCopies,
                   *copies, copies_clean, copies_gbs, copies_gbs / kReadCeiling * 100);
        json["decode"].push_back({{"shape", shape.name},
                                  {"variant", kCopies},
                                  {"us", *copies},
                                  {"us_clean_l2", copies_clean},
                                  {"gb_per_s", copies_gbs}});
      }
    }
  }
  fmt::print("an empty kernel: {:.1f} us, {:.1f} us clean\n",
             TimeCold(&LaunchEmpty, repeats, L2::kDirty),
             TimeCold(&LaunchEmpty, repeats, L2::kClean));
}

void TimeMemory(int repeats, Json& json) {
  fmt::print("{:<50} {:>10} {:>11}\n", "shared memory, a warp's load", "clocks", "wavefronts");
  for (const StrideRow& row : MeasureStrides()) {
    fmt::print("{:<50} {:>10.2f} {:>11}\n", row.what, row.clocks, row.wavefronts);
    json["strides"].push_back(
        {{"access", row.what}, {"clocks", row.clocks}, {"wavefronts", row.wavefronts}});
  }
  fmt::print("{:<50} {:>10} {:>8} {:>9}\n", "256 MiB read from 1 GiB", "run bytes", "GB/s",
             "of first");
  double first = 0;
  for (const GatherRow& row : MeasureGathers(repeats)) {
    if (first == 0) first = row.gb_per_s;
    fmt::print("{:<50} {:>10} {:>8.0f} {:>7.1f} %\n", row.what, row.run_bytes, row.gb_per_s,
               100 * row.gb_per_s / first);
    json["gathers"].push_back({{"pattern", row.what},
                               {"run_bytes", row.run_bytes},
                               {"us", row.us},
                               {"gb_per_s", row.gb_per_s}});
  }
}

// For each family of shapes the candidate whose times, relative to the default's, have the smallest
// geometric mean over the benchmark's shapes.
template <class Tuning>
struct Search {
  explicit Search(std::vector<Tuning> tried)
      : candidates(std::move(tried)), log_ratio(candidates.size()) {}
  std::vector<Tuning> candidates;
  std::vector<double> log_ratio;

  void Add(const std::vector<double>& us) {
    for (size_t i = 0; i < us.size(); ++i) log_ratio[i] += std::log(us[i] / us[0]);
  }
  const Tuning& Best() const {
    const auto best = std::min_element(log_ratio.begin(), log_ratio.end());
    return candidates[static_cast<size_t>(best - log_ratio.begin())];
  }
};

void TuneDecode(const ops::GpuLimits& gpu, int repeats, const Filter& filter,
                ops::TuningTable* table) {
  struct Family {
    int dim_qk, dim_v, rows;
    Search<ops::DecodeTuning> search;
  };
  std::vector<Family> families;
  for (const DecodeCase& shape : DecodeTimeCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    const auto same = [&shape](const Family& f) {
      return f.dim_qk == shape.dim_qk && f.dim_v == shape.dim_v && f.rows == RowsOf(shape);
    };
    auto family = std::find_if(families.begin(), families.end(), same);
    if (family == families.end()) {
      const DecodeRun run(shape, {}, gpu);
      families.push_back({shape.dim_qk, shape.dim_v, RowsOf(shape),
                          Search(ops::DecodeCandidates(run.plan().kernel.blocks_per_sm,
                                                       !run.plan().merge_inside))});
      family = families.end() - 1;
    }
    std::vector<double> us;
    for (const ops::DecodeTuning& tuning : family->search.candidates) {
      DecodeRun run(shape, {.tuning = tuning}, gpu);
      run.Prepare();
      run.Run();
      us.push_back(run.TimeUs(repeats, L2::kDirty));
    }
    family->search.Add(us);
    fmt::print("tuned {:<50} default {:>8.1f} us, best {:>8.1f} us\n", shape.name, us[0],
               *std::min_element(us.begin(), us.end()));
  }
  std::sort(families.begin(), families.end(),
            [](const Family& a, const Family& b) { return a.rows < b.rows; });
  for (const Family& f : families) {
    table->entries.push_back({.decode = true,
                              .head_dim_qk = f.dim_qk,
                              .head_dim_v = f.dim_v,
                              .max_rows = f.rows,
                              .decode_tuning = f.search.Best()});
  }
}

void TunePrefill(const ops::GpuLimits& gpu, int repeats, const Filter& filter,
                 ops::TuningTable* table) {
  struct Family {
    int dim_qk, dim_v;
    Search<ops::PrefillTuning> search;
  };
  std::vector<Family> families;
  for (const PrefillCase& shape : PrefillTimeCases()) {
    if (!filter.Wants(shape.name, Sum(shape.kv_lengths))) continue;
    auto family = std::find_if(families.begin(), families.end(), [&shape](const Family& f) {
      return f.dim_qk == shape.dim_qk && f.dim_v == shape.dim_v;
    });
    if (family == families.end()) {
      families.push_back({shape.dim_qk, shape.dim_v, Search(ops::PrefillCandidates(gpu.l2_bytes))});
      family = families.end() - 1;
    }
    std::vector<double> us;
    for (const ops::PrefillTuning& tuning : family->search.candidates) {
      PrefillRun run(shape, {.tuning = tuning}, gpu);
      run.Run();
      us.push_back(run.TimeUs(repeats, L2::kDirty));
    }
    family->search.Add(us);
    fmt::print("tuned {:<50} default {:>8.1f} us, best {:>8.1f} us\n", shape.name, us[0],
               *std::min_element(us.begin(), us.end()));
  }
  for (const Family& f : families) {
    table->entries.push_back({.decode = false,
                              .head_dim_qk = f.dim_qk,
                              .head_dim_v = f.dim_v,
                              .prefill_tuning = f.search.Best()});
  }
}

}  // namespace

Result<AttentionBenchResult> RunAttentionBench(const AttentionBenchOptions& options) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a killed run has printed what it did
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess) {
    return Err(Code::kUnsupported,
               "bench attention: needs an NVIDIA GPU: {}; --explain works without one",
               cudaGetErrorString(status));
  }
  const ops::GpuLimits gpu = QueryGpu();
  if (gpu.compute_major < 8) {
    return Err(Code::kUnsupported,
               "bench attention: every kernel needs compute capability 8.0, this GPU has {}.{}",
               gpu.compute_major, gpu.compute_minor);
  }
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int runtime = 0;
  CheckCuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  ops::TuningTable tuning;
  if (!options.tuning_path.empty()) {
    FATHOM_ASSIGN_OR_RETURN(tuning, ops::LoadTuningTable(options.tuning_path, properties.name));
  }
  AttentionBenchResult result;
  result.json = {{"schema", "fathom.bench.attention/1"},
                 {"gpu", properties.name},
                 {"sms", gpu.num_sms},
                 {"cuda_runtime", runtime},
                 {"flush_bytes", 256 << 20},
                 {"repeats", options.repeats}};
  fmt::print("{}, {} SMs, CUDA {}\n", properties.name, gpu.num_sms, runtime);
  const Filter filter{options.only, options.small};
  if (!options.autotune_path.empty()) {
    ops::TuningTable found{.gpu = properties.name};
    if (options.decode) TuneDecode(gpu, options.repeats, filter, &found);
    if (options.prefill) TunePrefill(gpu, options.repeats, filter, &found);
    FATHOM_TRY(WriteFile(options.autotune_path, found.ToJson()));
    fmt::print("wrote {}\n", options.autotune_path);
    tuning = std::move(found);
  }
  int& failures = result.failures;
  Json& json = result.json;
  if (options.check) {
    if (options.decode) failures += CheckDecode(gpu, filter, json);
    if (options.prefill) failures += CheckPrefill(gpu, filter, json);
    if (options.prefill) failures += CheckMlaPrefill(gpu, filter, json);
    if (options.write) failures += CheckWriter(gpu, filter, json);
    if (options.backward) failures += CheckBackward(gpu, filter, json);
    if (options.merge) failures += CheckMerge(gpu, filter, json);
  }
  if (options.time) {
    if (options.decode) TimeDecode(gpu, tuning, options.repeats, filter, json);
    if (options.prefill) TimePrefill(gpu, tuning, options.repeats, filter, json);
    if (options.prefill) {
      TimeMlaPrefill(gpu, cost::FindHardware(properties.name), tuning, options.repeats, filter,
                     json);
    }
    if (options.write) TimeWriter(gpu, options.repeats, filter, json);
    if (options.backward) TimeBackward(gpu, options.repeats, filter, json);
    if (options.merge) TimeMerge(gpu, options.repeats, filter, json);
    if (options.micro) TimeMemory(options.repeats, json);
  }
  if (failures > 0) fmt::print("{} checks FAILED\n", failures);
  return result;
}

}  // namespace fathom::bench
