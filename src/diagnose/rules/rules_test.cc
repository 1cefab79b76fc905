// Each rule against a clean timeline with its fault injected at several sizes: found above its
// threshold, not below, and silent on clean runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/rules/synthetic_timeline.h"

namespace fathom::diagnose {
namespace {

Diagnosis DiagnoseSynthetic(const SyntheticOptions& options) {
  return Diagnose(MakeSynthetic(options), Thresholds::Default());
}

const Finding* Find(const Diagnosis& d, std::string_view id) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

bool Abstained(const Diagnosis& d, std::string_view id) {
  return std::any_of(d.findings.abstained.begin(), d.findings.abstained.end(),
                     [&](const Abstention& a) { return a.id == id; });
}

TEST(CleanRuns, HaveNoFindings) {
  for (const bool graph : {false, true}) {
    for (const int layers : {1, 4, 32}) {
      for (const double kernel_us : {12.0, 60.0}) {
        const Diagnosis d =
            DiagnoseSynthetic({.layers = layers, .kernel_us = kernel_us, .graph = graph});
        for (const Finding& f : d.findings.findings) {
          EXPECT_EQ(f.severity, Severity::kInfo)
              << f.id << ": " << Say(Language::kEnglish, f.title) << " graph " << graph
              << " layers " << layers << " kernel " << kernel_us;
        }
      }
    }
  }
}

TEST(CleanRuns, StepsAndAccountsAreAsBuilt) {
  const Diagnosis d = DiagnoseSynthetic({.decode_steps = 10, .layers = 3, .kernel_us = 20});
  const Bucket* bucket = d.steps.Main(Phase::kDecode);
  ASSERT_NE(bucket, nullptr);
  EXPECT_EQ(bucket->steps.size(), 10u);
  EXPECT_EQ(bucket->counted.size(), 9u);
  const StepAccount& a = d.accounts[bucket->counted[0]];
  EXPECT_EQ(a.num_kernels, 3u * 8 + 1);
  EXPECT_NEAR(static_cast<double>(a.busy(KernelClass::kAttention)), 3 * 4096 * 4096 / 3.84e3, 100);
  EXPECT_EQ(a.busy(KernelClass::kGemm), 3 * 3 * 20'000);
  EXPECT_EQ(a.busy(KernelClass::kNorm), 3 * 2 * 20'000);
  EXPECT_EQ(a.busy(KernelClass::kRope), 3 * 20'000);
  EXPECT_EQ(a.busy(KernelClass::kSampling), 3'000);
}

struct Sweep {
  std::string_view id;
  // Sets the fault to `factor` times the size at which its warning starts.
  void (*inject)(SyntheticOptions& options, double factor);
  std::string_view threshold;
};

// Wall time of a clean decode step of the options that the sweep uses, about.
constexpr double kStepUs = 4 * (7 * 21 + 5.4) + 25;

// What idle time a step needs so that its share of the grown step is `share`.
double IdleFor(double share) { return kStepUs * share / (1 - share); }

const Sweep kSweeps[] = {
    {"kv-copy",
     [](SyntheticOptions& o, double factor) {
       o.faults.kv_copy_share = factor * Thresholds::Default()["kv-copy.warn_share"];
     },
     "kv-copy.warn_share"},
    {"launch-gap",
     [](SyntheticOptions& o, double factor) {
       o.faults.launch_gap_us =
           IdleFor(factor * Thresholds::Default()["launch-gap.warn_share"]) / (4 * 8);
     },
     "launch-gap.warn_share"},
    {"sync-call",
     [](SyntheticOptions& o, double factor) {
       o.faults.sync_us = IdleFor(factor * Thresholds::Default()["sync-call.warn_share"]);
     },
     "sync-call.warn_share"},
    {"allocator",
     [](SyntheticOptions& o, double factor) {
       o.faults.allocator_us = IdleFor(factor * Thresholds::Default()["allocator.warn_share"]);
     },
     "allocator.warn_share"},
};

TEST(InjectedFaults, AreFoundAboveTheThresholdOnly) {
  for (const Sweep& sweep : kSweeps) {
    for (const double factor : {1.5, 2.0, 3.0}) {
      SyntheticOptions options;
      sweep.inject(options, factor);
      EXPECT_NE(Find(DiagnoseSynthetic(options), sweep.id), nullptr) << sweep.id << " x" << factor;
    }
    for (const double factor : {0.3, 0.5}) {
      SyntheticOptions options;
      sweep.inject(options, factor);
      EXPECT_EQ(Find(DiagnoseSynthetic(options), sweep.id), nullptr) << sweep.id << " x" << factor;
    }
  }
}

TEST(InjectedFaults, SavingsAreTheInjectedTime) {
  {
    const Diagnosis d = DiagnoseSynthetic({.faults = {.sync_us = 400}});
    ASSERT_NE(Find(d, "sync-call"), nullptr);
    EXPECT_NEAR(Find(d, "sync-call")->saving_ms_per_step, 0.4, 0.02);
  }
  {
    const Diagnosis d = DiagnoseSynthetic({.faults = {.allocator_us = 300}});
    ASSERT_NE(Find(d, "allocator"), nullptr);
    EXPECT_NEAR(Find(d, "allocator")->saving_ms_per_step, 0.3, 0.02);
  }
  {
    const Diagnosis d = DiagnoseSynthetic({.faults = {.plan_us = 5000}});
    const Finding* jit = Find(d, "jit-recompile");
    ASSERT_NE(jit, nullptr);
    EXPECT_EQ(jit->severity, Severity::kSevere);
    EXPECT_NEAR(jit->saving_ms_per_step, 4 * 5.0, 0.2);
    EXPECT_NE(Say(Language::kEnglish, jit->evidence[0].text).find("_flash_attention_forward"),
              std::string::npos);
  }
  {
    const Diagnosis d = DiagnoseSynthetic({.faults = {.kv_copy_share = 0.25}});
    ASSERT_NE(Find(d, "kv-copy"), nullptr);
    EXPECT_EQ(Find(d, "kv-copy")->severity, Severity::kSevere);
    EXPECT_NEAR(Find(d, "kv-copy")->saving_ms_per_step, 4 * 8 * 0.020 / 3, 0.03);
  }
  {
    const Diagnosis d = DiagnoseSynthetic({.faults = {.scores_us = 2000}});
    ASSERT_NE(Find(d, "softmax-pass"), nullptr);
    EXPECT_EQ(Find(d, "softmax-pass")->severity, Severity::kSevere);
  }
}

TEST(Rules, AbstainWithoutEvidence) {
  Timeline empty;
  empty.AddSource("nothing", "kineto");
  const Diagnosis d = Diagnose(std::move(empty), Thresholds::Default());
  EXPECT_TRUE(d.findings.findings.empty());
  EXPECT_TRUE(d.findings.clean.empty());
  for (const Rule& rule : Rules()) EXPECT_TRUE(Abstained(d, rule.id)) << rule.id;
}

TEST(Rules, PythonStacksLowerConfidenceInCpuTime) {
  const Diagnosis plain = DiagnoseSynthetic({.faults = {.launch_gap_us = 30}});
  const Diagnosis stacks = DiagnoseSynthetic({.with_stack = true, .faults = {.launch_gap_us = 30}});
  ASSERT_NE(Find(plain, "launch-gap"), nullptr);
  ASSERT_NE(Find(stacks, "launch-gap"), nullptr);
  EXPECT_LT(Find(stacks, "launch-gap")->confidence, Find(plain, "launch-gap")->confidence - 0.2);
}

TEST(Rules, ThresholdsDecide) {
  SyntheticOptions options;
  options.faults.kv_copy_share = 0.06;
  const auto strict =
      Thresholds::FromJson(R"({"kv-copy.warn_share": 0.5, "kv-copy.severe_share": 0.9})");
  ASSERT_TRUE(strict);
  EXPECT_EQ(Find(Diagnose(MakeSynthetic(options), *strict), "kv-copy"), nullptr);
  const auto handbook = Thresholds::FromJson(
      R"({"kv-copy.warn_share": 0.5, "kv-copy.severe_share": 0.9,
          "kv-copy.handbook_abs_ms": {"enabled": true, "value": 0.01}})");
  ASSERT_TRUE(handbook);
  EXPECT_NE(Find(Diagnose(MakeSynthetic(options), *handbook), "kv-copy"), nullptr);
}

}  // namespace
}  // namespace fathom::diagnose
