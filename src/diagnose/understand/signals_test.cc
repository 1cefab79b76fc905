#include "diagnose/understand/signals.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Signals, WhatASignalCannotBeIsDroppedAndCounted) {
  Timeline t;
  const SourceId source = t.AddSource("dmon.txt", "dmon");
  const uint32_t sm = t.AddSeries({.source = source, .name = t.strings.Intern("sm"), .device = 0});
  const uint32_t rx =
      t.AddSeries({.source = source, .name = t.strings.Intern("rxpci"), .device = 0});
  for (const double percent : {50.0, -5.0, 1000.0, 102.0}) t.AddSample(sm, 0, percent);
  for (const double mb_per_s : {50'000.0, -1.0}) t.AddSample(rx, 0, mb_per_s);
  const uint32_t other = t.AddSeries({.source = source, .name = t.strings.Intern("temperature")});
  t.AddSample(other, 0, -40);
  DropImpossibleSamples(t);
  ASSERT_EQ(FindSignal(t, Signal::kGpuBusy).size(), 1u);
  EXPECT_EQ(FindSignal(t, Signal::kGpuBusy)[0].value, (std::vector<double>{0.5, 1.02}));
  ASSERT_EQ(FindSignal(t, Signal::kPcieRx).size(), 1u);
  EXPECT_EQ(FindSignal(t, Signal::kPcieRx)[0].value, std::vector<double>{5e10});
  EXPECT_EQ(t.samples.size(), 4u);  // what is no signal stays as it is
  EXPECT_EQ(t.sources[source].stats[Defect::kImpossibleValue].count, 3u);
  EXPECT_EQ(t.sources[source].stats.dropped(), 3u);
}

TEST(Signals, APauseOfYearsIsPassedOver) {
  SignalSeries a, b;
  for (int64_t i = 0; i < 100; ++i) {
    a.t_ns.push_back(i * kMs);
    b.t_ns.push_back(i * kMs + kMs / 4);
  }
  constexpr int64_t kYears = int64_t{30} * 365 * 86400 * 1000 * kMs;
  for (int64_t i = 0; i < 3; ++i) {
    a.t_ns.push_back(kYears + i * kMs);
    b.t_ns.push_back(kYears + i * kMs + kMs / 4);
  }
  a.t_ns.push_back(INT64_MAX);
  b.t_ns.push_back(INT64_MAX);
  for (size_t i = 0; i < a.t_ns.size(); ++i) {
    a.value.push_back(static_cast<double>(i));
    b.value.push_back(static_cast<double>(2 * i));
  }
  const Paired paired = Resample(a, b);
  EXPECT_EQ(paired.period_ns, kMs);
  ASSERT_GE(paired.a.size(), 100u);
  EXPECT_LE(paired.a.size(), 104u);
  EXPECT_EQ(paired.b.size(), paired.a.size());
  EXPECT_EQ(paired.a.back(), 102);  // of the last millisecond before the end of time
}

TEST(Signals, PeriodsInWhichOneIsSilentAreLeftOut) {
  SignalSeries a, b;
  for (int64_t i = 0; i < 100; ++i) {
    a.t_ns.push_back(i * kMs);
    a.value.push_back(1);
    if (i >= 40 && i < 60) continue;
    b.t_ns.push_back(i * kMs);
    b.value.push_back(2);
  }
  EXPECT_EQ(Resample(a, b).a.size(), 80u);
  EXPECT_EQ(Resample(b, a).a.size(), 80u);
}

}  // namespace
}  // namespace fathom::diagnose
