// fathom_attention_bench: checks and times the CUDA attention kernels on this machine's GPU.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

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

constexpr Variant kVariants[] = {
    {"balanced", {ops::Reduction::kBalanced}},
    {"batch-invariant", {ops::Reduction::kBatchInvariant}},
    {"spans", {ops::Reduction::kSpans}},
};

// Every case in every variant, against float32 on the GPU (and float64 on the host where small),
// twice for equal bits.
int CheckDecode(const ops::GpuLimits& gpu, const std::string& only, Json& json) {
  int failures = 0;
  for (const DecodeCase& shape : DecodeCheckCases()) {
    if (!only.empty() && shape.name.find(only) == std::string::npos) continue;
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
    if (!only.empty() && shape.name.find(only) == std::string::npos) continue;
    PrefillRun run(shape, gpu);
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

void TimePrefill(const ops::GpuLimits& gpu, int repeats, const std::string& only, Json& json) {
  fmt::print("{:<40} {:>9} {:>8} {:>9}\n", "prefill shape", "us", "TFLOP/s", "error");
  for (const PrefillCase& shape : PrefillTimeCases()) {
    if (!only.empty() && shape.name.find(only) == std::string::npos) continue;
    PrefillRun run(shape, gpu);
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

void TimeDecode(const ops::GpuLimits& gpu, int repeats, const std::string& only, Json& json) {
  fmt::print("{:<50} {:<16} {:>9} {:>9} {:>8} {:>6} {:>8} {:>9}\n", "shape", "variant", "us",
             "us clean", "GB/s", "% read", "TFLOP/s", "error");
  for (const DecodeCase& shape : DecodeTimeCases()) {
    if (!only.empty() && shape.name.find(only) == std::string::npos) continue;
    for (const Variant& variant : kVariants) {
      DecodeRun run(shape, variant.options, gpu);
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

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  CLI::App app("Checks and times Fathom's CUDA attention kernels");
  bool check = false;
  bool time = false;
  int repeats = 21;
  std::string json_path, only, op;
  app.add_flag("--check", check, "compare with references on every check case");
  app.add_flag("--time", time, "time the benchmark shapes");
  app.add_option("--repeats", repeats, "timed replays a shape; the median is printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--only", only, "only cases whose name contains this");
  app.add_option("--op", op, "decode or prefill; both without it")
      ->check(CLI::IsMember({"decode", "prefill"}));
  app.add_option("--json", json_path, "also write the results to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!check && !time) check = time = true;

  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a killed run has printed what it did
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess) {
    fmt::print(stderr, "fathom_attention_bench: needs an NVIDIA GPU: {}\n",
               cudaGetErrorString(status));
    return 2;
  }
  const fathom::ops::GpuLimits gpu = QueryGpu();
  if (gpu.compute_major != 9) {
    fmt::print(stderr,
               "fathom_attention_bench: every kernel needs compute capability 9.0, this GPU has "
               "{}.{}\n",
               gpu.compute_major, gpu.compute_minor);
    return 2;
  }
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  nlohmann::json json = {{"schema", "fathom.bench.attention/1"},
                         {"gpu", properties.name},
                         {"sms", gpu.num_sms},
                         {"cuda_runtime", runtime},
                         {"flush_bytes", 256 << 20},
                         {"repeats", repeats}};
  fmt::print("{}, {} SMs, CUDA {}\n", properties.name, gpu.num_sms, runtime);
  int failures = 0;
  if (check && op != "prefill") failures += CheckDecode(gpu, only, json);
  if (check && op != "decode") failures += CheckPrefill(gpu, only, json);
  if (time && op != "prefill") TimeDecode(gpu, repeats, only, json);
  if (time && op != "decode") TimePrefill(gpu, repeats, only, json);
  if (!json_path.empty()) std::ofstream(json_path) << json.dump(1) << "\n";
  if (failures > 0) fmt::print("{} checks FAILED\n", failures);
  return failures > 0 ? 1 : 0;
}
