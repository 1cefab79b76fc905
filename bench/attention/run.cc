#include "run.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/write_file.h"
#include "decode_cases.h"
#include "device.h"
#include "prefill_case.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 5e-3;     // bf16 output and probabilities, relative in norm
constexpr double kLseTolerance = 1e-3;  // float32 sums of bf16 products
constexpr double kReadCeiling = 4360;   // GB/s, a float32 reduction under the same cold L2

struct Variant {
  const char* name;
  ops::DecodeAttentionOptions options;
};

const Variant kVariants[] = {
    {"balanced", {ops::Reduction::kBalanced, {}}},
    {"batch-invariant", {ops::Reduction::kBatchInvariant, {}}},
    {"spans", {ops::Reduction::kSpans, {}}},
};

// Rows of a kv head, as the tuning table counts them.
int RowsOf(const DecodeCase& c) {
  const int queries =
      c.query_tokens.empty() ? 1 : *std::max_element(c.query_tokens.begin(), c.query_tokens.end());
  return queries * (c.num_heads / c.num_kv_heads);
}

bool Wanted(const std::string& name, const std::string& only) {
  return only.empty() || name.find(only) != std::string::npos;
}

// Every case in every variant, against float32 on the GPU (and float64 on the host where small),
// twice for equal bits.
int CheckDecode(const ops::GpuLimits& gpu, const std::string& only, Json& json) {
  int failures = 0;
  for (const DecodeCase& shape : DecodeCheckCases()) {
    if (!Wanted(shape.name, only)) continue;
    double worst = 0;
    double worst_lse = 0;
    std::string wrong;
    for (const Variant& variant : kVariants) {
      DecodeRun run(shape, variant.options, gpu);
      run.Prepare();
      run.Run();
      const auto first = run.Output();
      std::vector<AttentionErrors> errors{run.CompareFloat32()};
      if (run.Flops() < 3e8) errors.push_back(run.CompareFloat64());
      for (const AttentionErrors& e : errors) {
        worst = std::max(worst, e.out);
        worst_lse = std::max(worst_lse, e.lse);
        if (!e.finite || !(e.out <= kTolerance) || !(e.lse <= kLseTolerance)) {
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
  if (!only.empty()) return failures;
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

int CheckPrefill(const ops::GpuLimits& gpu, const std::string& only, Json& json) {
  int failures = 0;
  for (const PrefillCase& shape : PrefillCheckCases()) {
    if (!Wanted(shape.name, only)) continue;
    PrefillRun run(shape, {}, gpu);
    run.Run();
    const auto first = run.Output();
    const AttentionErrors errors = run.CompareFloat32(4096);
    run.Run();
    const bool same = run.Output() == first;
    const bool ok =
        errors.finite && errors.out <= kTolerance && errors.lse <= kLseTolerance && same;
    failures += ok ? 0 : 1;
    fmt::print("prefill {:<44} {:>9.2e} {:>9.2e} {}{}\n", shape.name, errors.out, errors.lse,
               ok ? "ok" : "FAILED", same ? "" : ", bits differ");
    json["checks"].push_back({{"case", "prefill " + shape.name},
                              {"error", errors.out},
                              {"lse_error", errors.lse},
                              {"ok", ok}});
  }
  return failures;
}

void TimePrefill(const ops::GpuLimits& gpu, const ops::TuningTable& tuning, int repeats,
                 const std::string& only, Json& json) {
  fmt::print("{:<40} {:>9} {:>8} {:>9}\n", "prefill shape", "us", "TFLOP/s", "error");
  for (const PrefillCase& shape : PrefillTimeCases()) {
    if (!Wanted(shape.name, only)) continue;
    PrefillRun run(shape, tuning.Prefill(shape.dim_qk, shape.dim_v), gpu);
    run.Run();
    const AttentionErrors errors = run.CompareFloat32(512);
    if (!errors.finite || !(errors.out <= kTolerance)) {
      fmt::print("{:<40} wrong: error {:.2e}\n", shape.name, errors.out);
      continue;
    }
    const double us = run.TimeUs(repeats, L2::kDirty);
    const double tflops = run.Flops() / us * 1e-6;
    fmt::print("{:<40} {:>9.1f} {:>8.1f} {:>9.2e}\n", shape.name, us, tflops, errors.out);
    json["prefill"].push_back({{"shape", shape.name},
                               {"us", us},
                               {"tflops", tflops},
                               {"error", errors.out},
                               {"plan", run.plan().Describe()}});
  }
}

void TimeDecode(const ops::GpuLimits& gpu, const ops::TuningTable& tuning, int repeats,
                const std::string& only, Json& json) {
  fmt::print("{:<50} {:<16} {:>9} {:>9} {:>8} {:>6} {:>8} {:>9}\n", "shape", "variant", "us",
             "us clean", "GB/s", "% read", "TFLOP/s", "error");
  for (const DecodeCase& shape : DecodeTimeCases()) {
    if (!Wanted(shape.name, only)) continue;
    for (const Variant& variant : kVariants) {
      ops::DecodeAttentionOptions options = variant.options;
      options.tuning = tuning.Decode(shape.dim_qk, shape.dim_v, RowsOf(shape));
      DecodeRun run(shape, options, gpu);
      run.Prepare();
      run.Run();
      const AttentionErrors errors = run.CompareFloat32();
      if (!errors.finite || !(errors.out <= kTolerance)) {
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
    }
  }
  fmt::print("an empty kernel: {:.1f} us, {:.1f} us clean\n",
             TimeCold(&LaunchEmpty, repeats, L2::kDirty),
             TimeCold(&LaunchEmpty, repeats, L2::kClean));
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

void TuneDecode(const ops::GpuLimits& gpu, int repeats, const std::string& only,
                ops::TuningTable* table) {
  struct Family {
    int dim_qk, dim_v, rows;
    Search<ops::DecodeTuning> search;
  };
  std::vector<Family> families;
  for (const DecodeCase& shape : DecodeTimeCases()) {
    if (!Wanted(shape.name, only)) continue;
    const auto same = [&shape](const Family& f) {
      return f.dim_qk == shape.dim_qk && f.dim_v == shape.dim_v && f.rows == RowsOf(shape);
    };
    auto family = std::find_if(families.begin(), families.end(), same);
    if (family == families.end()) {
      const DecodeRun run(shape, {}, gpu);
      families.push_back({shape.dim_qk, shape.dim_v, RowsOf(shape),
                          Search(ops::DecodeCandidates(run.plan().kernel.blocks_per_sm))});
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

void TunePrefill(const ops::GpuLimits& gpu, int repeats, const std::string& only,
                 ops::TuningTable* table) {
  struct Family {
    int dim_qk, dim_v;
    Search<ops::PrefillTuning> search;
  };
  std::vector<Family> families;
  for (const PrefillCase& shape : PrefillTimeCases()) {
    if (!Wanted(shape.name, only)) continue;
    auto family = std::find_if(families.begin(), families.end(), [&shape](const Family& f) {
      return f.dim_qk == shape.dim_qk && f.dim_v == shape.dim_v;
    });
    if (family == families.end()) {
      families.push_back({shape.dim_qk, shape.dim_v, Search(ops::PrefillCandidates(gpu.l2_bytes))});
      family = families.end() - 1;
    }
    std::vector<double> us;
    for (const ops::PrefillTuning& tuning : family->search.candidates) {
      PrefillRun run(shape, tuning, gpu);
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
  if (gpu.compute_major != 9) {
    return Err(Code::kUnsupported,
               "bench attention: every kernel needs compute capability 9.0, this GPU has {}.{}",
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
  if (!options.autotune_path.empty()) {
    ops::TuningTable found{.gpu = properties.name};
    if (options.decode) TuneDecode(gpu, options.repeats, options.only, &found);
    if (options.prefill) TunePrefill(gpu, options.repeats, options.only, &found);
    FATHOM_TRY(WriteFile(options.autotune_path, found.ToJson()));
    fmt::print("wrote {}\n", options.autotune_path);
    tuning = std::move(found);
  }
  int& failures = result.failures;
  if (options.check && options.decode) failures += CheckDecode(gpu, options.only, result.json);
  if (options.check && options.prefill) failures += CheckPrefill(gpu, options.only, result.json);
  if (options.time && options.decode) {
    TimeDecode(gpu, tuning, options.repeats, options.only, result.json);
  }
  if (options.time && options.prefill) {
    TimePrefill(gpu, tuning, options.repeats, options.only, result.json);
  }
  if (failures > 0) fmt::print("{} checks FAILED\n", failures);
  return result;
}

}  // namespace fathom::bench
