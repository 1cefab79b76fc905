// Recordings of the same work with a fault and without it (one H200;
// tests/data/diagnose/ORIGIN.md): what a diagnosis of the first says that the fix would save,
// beside what the second measures. docs/diagnose.md has the table and says what each pair compares.
#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

constexpr double kTolerance = 0.20;

Diagnosis Of(std::string_view recording) {
  return Diagnose(ReadFile(recording), Thresholds::Default());
}

const Diagnosis& Eager() {
  static const Diagnosis d = Of("kineto/llama_eager_repeat_kv_cat_cache.json.gz");
  return d;
}
const Diagnosis& StaticCache() {
  static const Diagnosis d = Of("kineto/llama_sdpa_static_cache.json.gz");
  return d;
}
const Diagnosis& DynamicNtk() {
  static const Diagnosis d = Of("kineto/llama_dynamic_ntk_past_limit.json.gz");
  return d;
}
const Diagnosis& Graph() {
  static const Diagnosis d = Of("kineto/llama_cudagraph_decode.json.gz");
  return d;
}

double PredictedMs(const Diagnosis& d, std::string_view id, Phase phase) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == id && f.phase == phase) return f.saving_ms_per_step;
  }
  ADD_FAILURE() << "no finding " << id;
  return 0;
}

bool Finds(const Diagnosis& d, std::string_view id, Phase phase) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == id && f.phase == phase) return true;
  }
  return false;
}

// Median over the counted steps of a phase, in milliseconds.
template <class F>
double MedianMs(const Diagnosis& d, Phase phase, F&& of_account) {
  const Bucket* bucket = d.steps.Main(phase);
  if (bucket == nullptr) {
    ADD_FAILURE() << "no steps";
    return 0;
  }
  return MedianOver(
             *bucket,
             [&](uint32_t step) { return static_cast<double>(of_account(d.accounts[step])); }) /
         1e6;
}
double WallMs(const Diagnosis& d, Phase phase) {
  return MedianMs(d, phase, [](const StepAccount& a) { return a.wall_ns; });
}
double BusyMs(const Diagnosis& d, Phase phase) {
  return MedianMs(d, phase, [](const StepAccount& a) { return a.busy_ns; });
}
double IdleMs(const Diagnosis& d, Phase phase) {
  return MedianMs(d, phase, [](const StepAccount& a) { return a.wall_ns - a.busy_ns; });
}

// Milliseconds of kernels whose name has one of the words, in the middle counted decode step.
double KernelMs(const Diagnosis& d, std::initializer_list<std::string_view> words) {
  const Bucket* bucket = d.steps.Main(Phase::kDecode);
  if (bucket == nullptr) return 0;
  const Step& step = d.steps.all[bucket->counted[bucket->counted.size() / 2]];
  int64_t ns = 0;
  for (const uint32_t s : d.steps.WorkOf(step)) {
    const std::string_view name = d.timeline->SliceName(s);
    for (const std::string_view word : words) {
      if (name.find(word) == std::string_view::npos) continue;
      ns += d.timeline->slices.dur_ns[s];
      break;
    }
  }
  return static_cast<double>(ns) / 1e6;
}

void ExpectPredicted(double predicted_ms, double measured_ms) {
  EXPECT_GT(measured_ms, 0);
  EXPECT_NEAR(predicted_ms, measured_ms, kTolerance * measured_ms);
  testing::Test::RecordProperty("predicted_us", std::to_string(predicted_ms * 1e3));
  testing::Test::RecordProperty("measured_us", std::to_string(measured_ms * 1e3));
}

// Materialised scores -> fused attention, a prompt of 4096 tokens: GPU time of the prefill step.
TEST(BeforeAfter, SoftmaxPass) {
  ExpectPredicted(PredictedMs(Eager(), "softmax-pass", Phase::kPrefill),
                  BusyMs(Eager(), Phase::kPrefill) - BusyMs(StaticCache(), Phase::kPrefill));
  EXPECT_FALSE(Finds(StaticCache(), "softmax-pass", Phase::kPrefill));
}

// K and V blown up from 8 to 32 heads -> grouped heads read as they are: GPU time of a decode step
// with 4.1 to 4.4 thousand keys.
TEST(BeforeAfter, KvCopyExpansion) {
  ExpectPredicted(PredictedMs(StaticCache(), "kv-copy", Phase::kDecode),
                  BusyMs(StaticCache(), Phase::kDecode) - BusyMs(DynamicNtk(), Phase::kDecode));
}

// Concatenating cache -> preallocated cache: the kernels that append a token.
TEST(BeforeAfter, KvCopyConcatenation) {
  const double before = KernelMs(DynamicNtk(), {"CatArrayBatchedCopy_vectorized"}) -
                        KernelMs(StaticCache(), {"CatArrayBatchedCopy_vectorized"});
  ExpectPredicted(PredictedMs(DynamicNtk(), "kv-copy", Phase::kDecode),
                  before - KernelMs(StaticCache(), {"index_copy_kernel"}));
}

// Eager decode -> CUDA graph: time in which the GPU waits. It does not depend on the context, which
// is shorter in the second recording.
TEST(BeforeAfter, LaunchGap) {
  ExpectPredicted(PredictedMs(StaticCache(), "launch-gap", Phase::kDecode),
                  IdleMs(StaticCache(), Phase::kDecode) - IdleMs(Graph(), Phase::kDecode));
}

// A plan built for every new length -> a cache of fixed shape: wall time of a decode step.
TEST(BeforeAfter, JitRecompileToStaticCache) {
  ExpectPredicted(PredictedMs(DynamicNtk(), "jit-recompile", Phase::kDecode),
                  WallMs(DynamicNtk(), Phase::kDecode) - WallMs(StaticCache(), Phase::kDecode));
  EXPECT_FALSE(Finds(StaticCache(), "jit-recompile", Phase::kDecode));
}

// The same recording's first decode step, whose plan existed already.
TEST(BeforeAfter, JitRecompileToStepWithoutPlan) {
  const Bucket* bucket = DynamicNtk().steps.Main(Phase::kDecode);
  ASSERT_NE(bucket, nullptr);
  const StepAccount& first = DynamicNtk().accounts[bucket->steps.front()];
  EXPECT_EQ(first.idle(GapCause::kPlanBuilding), 0);
  ExpectPredicted(PredictedMs(DynamicNtk(), "jit-recompile", Phase::kDecode),
                  WallMs(DynamicNtk(), Phase::kDecode) - static_cast<double>(first.wall_ns) / 1e6);
}

// Spelled-out rotations -> compiled ones, two a layer: the kernels that rotate one token's heads.
// The compiled ones also write K to the cache and scale Q, so that this saving is measured small.
TEST(BeforeAfter, RopeRelaunch) {
  double before = 0;
  for (const Finding& f : StaticCache().findings.findings) {
    if (f.id == "rope-relaunch") before = f.evidence.front().value;
  }
  EXPECT_GT(before, 0);
  ExpectPredicted(PredictedMs(StaticCache(), "rope-relaunch", Phase::kDecode),
                  before - KernelMs(Graph(), {"cos_index_copy", "unsqueeze_view_where_4"}));
  EXPECT_FALSE(Finds(Graph(), "rope-relaunch", Phase::kDecode));
}

// What the finding says of the kernel with `faulty` in its name, beside the durations of both.
void ExpectPredictedForKernel(std::string_view recording, std::string_view id,
                              std::string_view faulty, std::string_view fixed) {
  const Diagnosis d = Of(recording);
  double duration_ms[2] = {};
  for (const ProfiledKernel& kernel : d.timeline->profiled_kernels) {
    const std::string_view name = d.timeline->Name(kernel.name);
    for (const bool second : {false, true}) {
      if (name.find(second ? fixed : faulty) == std::string_view::npos) continue;
      duration_ms[second] = d.timeline->Metric(kernel, "gpu__time_duration.sum").value_or(0) / 1e6;
    }
  }
  double predicted = 0;
  for (const Finding& f : d.findings.findings) {
    if (f.id != id) continue;
    ASSERT_EQ(f.evidence.size(), 1u);
    EXPECT_NE(Say(Language::kEnglish, f.evidence[0].text).find(faulty), std::string::npos);
    predicted = f.evidence[0].saving_ms_per_launch;
  }
  EXPECT_GT(duration_ms[1], 0);
  ExpectPredicted(predicted, duration_ms[0] - duration_ms[1]);
}

// A 4096 x 4096 transpose through shared memory without padding -> with it.
TEST(BeforeAfter, BankConflict) {
  ExpectPredictedForKernel("ncu/ncu_bank_raw.csv.gz", "bank-conflict", "transpose<0>",
                           "transpose<1>");
}

// 129 x 4097 x 4097 -> 128 x 4096 x 4096, which is 0.8 % less work.
TEST(BeforeAfter, TensorCore) {
  ExpectPredictedForKernel("ncu/ncu_torch_raw.csv.gz", "tensor-core", "align1", "nvjet_sm90");
}

}  // namespace
}  // namespace fathom::diagnose
