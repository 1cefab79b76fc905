#include "diagnose/rules/handbook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "diagnose/report/catalogue.h"
#include "diagnose/report/describe.h"
#include "diagnose/rules/rule_test_util.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;

// The trusted rules read these themselves.
const std::set<std::string_view> kOwnedByRules = {
    "kv-copy.handbook_abs_ms", "switch-stall.handbook_gap_us", "prefix-cache.handbook_rate",
    "cache-version.handbook_mismatches"};

TEST(Handbook, EveryFigureIsALimitOrAReference) {
  std::set<std::string_view> measured = kOwnedByRules;
  for (const HandbookLimit& limit : HandbookLimits()) {
    EXPECT_TRUE(measured.insert(limit.name).second) << limit.name << " twice";
    EXPECT_TRUE(Thresholds::Default().Get(limit.name).handbook) << limit.name;
  }
  std::set<std::string> claims;
  for (const auto& [name, t] : Thresholds::Default().all()) {
    EXPECT_GE(t.default_value, t.least) << name;
    EXPECT_LE(t.default_value, t.most) << name;
    if (!t.handbook) continue;
    ASSERT_THAT(t.source, testing::StartsWith("handbook A"));
    claims.insert(t.source.substr(std::string_view("handbook ").size()));
    EXPECT_THAT(t.verdict, testing::AnyOf("sound", "plausible", "folklore", "impossible")) << name;
    EXPECT_EQ(t.reference, !measured.contains(name)) << name;
    EXPECT_FALSE(t.reference && t.enabled) << name;
  }
  // Claims without a figure that limits anything: layouts (A7), address bits, which a page map
  // states (A12), sampling (A13), the influence of length variance (A21).
  for (int i = 1; i <= 26; ++i) {
    if (i == 7 || i == 12 || i == 13 || i == 21) continue;
    EXPECT_TRUE(claims.contains("A" + std::to_string(i))) << i;
  }
}

// The note that limit `name`, enabled at `value`, leaves on a timeline; null when it is not passed.
const Finding* NoteOf(const Diagnosis& d, std::string_view name) {
  for (const Finding& f : d.findings.findings) {
    for (const UsedThreshold& used : f.thresholds) {
      if (used.name == name && f.title.key.starts_with("handbook.title")) return &f;
    }
  }
  return nullptr;
}

Thresholds At(std::string_view name, double value) {
  auto thresholds = Thresholds::FromJson(fmt::format("{{\"{}\": {}}}", name, value));
  EXPECT_TRUE(thresholds) << thresholds.error().message;
  return *thresholds;
}

struct Measurement {
  std::string_view name;
  Timeline (*make)();
  double passed, held;  // a limit that the timeline passes, one that it keeps
};

Timeline GpuSamples(double other_scale, const char* other) {
  Timeline t;
  const SourceId source = t.AddSource("samples", "dcgm");
  t.sources[source].devices.push_back({.id = 0, .name = "NVIDIA H200"});
  const uint32_t sm = t.AddSeries(
      {.source = source, .name = t.strings.Intern("DCGM_FI_PROF_SM_ACTIVE"), .device = 0});
  const uint32_t id = t.AddSeries({.source = source, .name = t.strings.Intern(other), .device = 0});
  const uint32_t dram = t.AddSeries(
      {.source = source, .name = t.strings.Intern("DCGM_FI_DEV_MEM_COPY_UTIL"), .device = 0});
  for (int i = 0; i < 40; ++i) {
    const int64_t t_ns = int64_t{i} * 100'000'000;
    t.AddSample(sm, t_ns, i % 2 == 0 ? 0.2 : 0.4);
    t.AddSample(id, t_ns, (i % 2 == 0 ? 0.4 : 0.6) * other_scale);
    t.AddSample(dram, t_ns, i % 2 == 0 ? 40 : 60);
  }
  return t;
}
Timeline SmAndDram() { return GpuSamples(1, "DCGM_FI_PROF_DRAM_ACTIVE"); }
Timeline SmAndPcie() { return GpuSamples(64e9, "DCGM_FI_PROF_PCIE_RX_BYTES"); }

Timeline Allocations() {
  Timeline t = MakeSynthetic({});
  const uint32_t id = t.AddSeries(
      {.source = 0, .name = t.strings.Intern("allocator.allocated_bytes"), .device = 0});
  const int64_t end_ns = t.slices.end_ns(t.slices.size() - 1);
  for (int i = 0; i < 100; ++i) t.AddSample(id, end_ns * i / 100, (i % 2 == 0 ? 70 : 100) * 1e9);
  return t;
}
Timeline Routed() { return MakeSynthetic({.faults = {.gate_kernels = 6}}); }
Timeline Scores() { return MakeSynthetic({.faults = {.scores_us = 2000}}); }
Timeline Graphs() { return ReadFile("kineto/llama_cudagraph_decode.json.gz"); }
Timeline Jittering() { return MakeSynthetic({.faults = {.jitter_us = 400}}); }
Timeline OneSlowStep() { return MakeSynthetic({.faults = {.slow_step_us = 4000}}); }
Timeline Plain() { return MakeSynthetic({}); }
Timeline Exchanging() {
  return MakeSynthetic({.faults = {.collective_us = 40, .all_reduce_elements = 1 << 20}});
}
Timeline Experts() {
  Timeline t;
  const SourceId source = t.AddSource("experts.csv", "expert-load");
  for (int expert = 0; expert < 4; ++expert) {
    t.expert_loads.push_back({.tokens = expert == 0   ? 1500.0
                                        : expert == 1 ? 500.0
                                                      : 1000.0,
                              .layer = 3,
                              .expert = expert,
                              .source = source});
  }
  return t;
}
Timeline Transpose() { return ReadFile("ncu/ncu_bank_raw.csv.gz"); }
Timeline Attention() { return ReadFile("ncu/ncu_torch_raw.csv.gz"); }

const Measurement kMeasurements[] = {
    {"compute-bound.handbook_compute_idle", SmAndDram, 0.69, 0.71},
    {"compute-bound.handbook_memory_busy", SmAndDram, 0.49, 0.51},
    {"compute-bound.handbook_gpu_busy", SmAndDram, 0.31, 0.29},
    {"compute-bound.handbook_covariance_low", SmAndDram, 0.011, 0.009},
    {"host-transfer.handbook_covariance_high", SmAndPcie, 0.009, 0.011},
    {"allocator.handbook_swing", Allocations, 0.29, 0.31},
    {"allocator.handbook_swing_severe", Allocations, 0.29, 0.31},
    {"routing-latency.handbook_ms", Routed, 0.47, 0.49},
    {"routing-latency.handbook_static_ms", Routed, 0.47, 0.49},
    {"routing-latency.handbook_dynamic_ms", Routed, 0.47, 0.49},
    {"softmax-pass.handbook_ms_8192", Scores, 0.9, 1.1},
    {"graph-miss.handbook_warmup_us", Graphs, 2000, 3500},
    {"rdma-jitter.handbook_sigma_us", Jittering, 100, 400},
    {"rdma-jitter.handbook_cq_us", OneSlowStep, 3900, 4100},
    {"tensor-core.handbook_tile_multiple", Plain, 8192, 16},
    {"tp-collective.handbook_reshard_mb", Exchanging, 16, 17},
    {"moe-hotspot.handbook_deviation", Experts, 0.49, 0.51},
    {"moe-hotspot.handbook_deviation_low", Experts, 0.49, 0.51},
    {"bank-conflict.handbook_ratio_moderate", Transpose, 15, 40},
    {"bank-conflict.handbook_ratio_severe", Transpose, 15, 40},
    {"uncoalesced.handbook_l2_misses", Attention, 0.01, 128},
    {"head-imbalance.handbook_occupancy", Attention, 0.9, 0.01},
};

TEST(Handbook, LimitsDecideWhileTheyAreEnabled) {
  std::set<std::string_view> tried;
  for (const Measurement& m : kMeasurements) {
    tried.insert(m.name);
    const Diagnosis off = Diagnose(m.make(), Thresholds::Default());
    EXPECT_EQ(NoteOf(off, m.name), nullptr) << m.name;
    const Diagnosis passed = Diagnose(m.make(), At(m.name, m.passed));
    const Finding* note = NoteOf(passed, m.name);
    ASSERT_NE(note, nullptr) << m.name;
    EXPECT_EQ(note->severity, Severity::kInfo) << m.name;
    EXPECT_THAT(Say(Language::kEnglish, note->title), HasSubstr(std::string(m.name)));
    EXPECT_THAT(EvidenceLine(note->evidence[0], Language::kEnglish), HasSubstr("handbook A"));
    EXPECT_EQ(NoteOf(Diagnose(m.make(), At(m.name, m.held)), m.name), nullptr) << m.name;
    // Enabled, and nothing to hold it against: said, not passed over.
    Timeline empty;
    empty.AddSource("nothing", "kineto");
    const Diagnosis open = Diagnose(std::move(empty), At(m.name, m.passed));
    EXPECT_TRUE(std::any_of(open.findings.abstained.begin(), open.findings.abstained.end(),
                            [&](const Abstention& a) {
                              return a.why.key == "abstain.handbook" &&
                                     a.why.args[0].second == m.name;
                            }))
        << m.name;
  }
  EXPECT_EQ(tried.size(), HandbookLimits().size());
}

}  // namespace
}  // namespace fathom::diagnose
