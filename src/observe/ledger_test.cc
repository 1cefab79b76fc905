#include "observe/ledger.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "observe/ledger_report.h"

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;
using event::Op;

constexpr int64_t kUs = 1000;

// Writes event streams in microseconds.
struct Script {
  std::vector<Event> events;

  void At(Kind kind, int64_t us, uint64_t request, uint64_t value = 0, uint16_t flags = 0,
          uint64_t step = 0, uint64_t aux = 0) {
    events.push_back({.start_ns = us * kUs,
                      .request_id = request,
                      .step_id = step,
                      .value = value,
                      .aux = aux,
                      .flags = flags,
                      .kind = kind});
  }
  void Span(Kind kind, int64_t begin, int64_t end, uint64_t request, uint64_t value = 0,
            uint64_t step = 0, uint64_t aux = 0) {
    events.push_back({.start_ns = begin * kUs,
                      .duration_ns = (end - begin) * kUs,
                      .request_id = request,
                      .step_id = step,
                      .value = value,
                      .aux = aux,
                      .kind = kind});
  }
  void OpSpan(uint64_t step, Op op, int64_t begin, int64_t end,
              event::ClockDomain clock = event::ClockDomain::kHostMonotonic) {
    events.push_back({.start_ns = begin * kUs,
                      .duration_ns = (end - begin) * kUs,
                      .step_id = step,
                      .kind = Kind::kOp,
                      .op = op,
                      .clock = clock});
  }
  void Use(uint64_t request, uint64_t step, uint64_t tokens, uint64_t position, bool prompt) {
    At(Kind::kStepSequence, 0, request, tokens, prompt ? event::kPromptRole : event::kGeneratedRole,
       step, position);
  }
};

// One request, alone: every row is known.
Script Solo() {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.Span(Kind::kTokenize, 10, 30, 1, 8);
  s.At(Kind::kQueued, 35, 1, 8);
  s.Span(Kind::kPrefixLookup, 35, 40, 1, 0, 0, 8);
  s.At(Kind::kCacheMiss, 40, 1, 3, static_cast<uint16_t>(event::MissCause::kOtherText));
  s.At(Kind::kScheduled, 60, 1, 0, 0, 1);
  s.Span(Kind::kSchedule, 55, 70, 0, 1, 1);
  s.Use(1, 1, 8, 0, true);
  s.OpSpan(1, Op::kQkv, 70, 100);
  s.OpSpan(1, Op::kAttention, 100, 160);
  s.Span(Kind::kStep, 70, 170, 0, 8, 1, 8);  // 10 of it in no op
  s.At(Kind::kToken, 170, 1, 0, 0, 1);
  s.Span(Kind::kDetokenize, 170, 180, 1, 1);
  s.Span(Kind::kSchedule, 185, 190, 0, 1, 2);
  s.Use(1, 2, 1, 8, false);
  s.OpSpan(2, Op::kExperts, 190, 240);
  s.Span(Kind::kStep, 190, 240, 0, 1, 2, 0);
  s.At(Kind::kToken, 240, 1, 1, 0, 2);
  s.At(Kind::kFinished, 240, 1, 2, 1);
  s.Span(Kind::kNetworkWrite, 230, 260, 1, 99);  // 10 of it hidden behind the step
  s.At(Kind::kResponded, 260, 1);
  return s;
}

int64_t Sum(const Breakdown& b) { return std::accumulate(b.ns.begin(), b.ns.end(), int64_t{0}); }

TEST(Ledger, DividesASoloRequestExactly) {
  Ledger ledger;
  ledger.Consume(Solo().events);
  const auto found = ledger.Find(1, 0);
  ASSERT_TRUE(found);
  const Breakdown& b = found->total;
  EXPECT_EQ(b.wall_ns, 260 * kUs);
  EXPECT_EQ(Sum(b), b.wall_ns);
  EXPECT_EQ(b.of(Part::kTokenize), 20 * kUs);
  EXPECT_EQ(b.of(Part::kPrefixLookup), 5 * kUs);
  EXPECT_EQ(b.of(Part::kQueue), 20 * kUs);
  EXPECT_EQ(b.of(Part::kSchedule), 15 * kUs);
  EXPECT_EQ(b.of(Part::kPrefill), 90 * kUs);
  EXPECT_EQ(b.of(Part::kDecode), 50 * kUs);
  EXPECT_EQ(b.of(Part::kDetokenize), 10 * kUs);
  EXPECT_EQ(b.of(Part::kNetworkWrite), 20 * kUs);
  // 0..10 and 30..35 before the queue, 10 in step 1, 180..185 between the steps.
  EXPECT_EQ(b.of(Part::kUnexplained), 30 * kUs);
  EXPECT_EQ(b.op_ns[static_cast<size_t>(Part::kPrefill)][static_cast<size_t>(Op::kAttention)],
            60 * kUs);
  ASSERT_EQ(found->chunks.size(), 1u);
  EXPECT_EQ(found->chunks[0].tokens, 8u);
  EXPECT_EQ(found->chunks[0].ns, 100 * kUs);
  EXPECT_EQ(found->ttft_ns, 170 * kUs);
  EXPECT_EQ(Sum(*found->to_first), 170 * kUs);
  EXPECT_EQ(found->decode_steps, 1u);
  ASSERT_EQ(found->slowest.size(), 1u);
  EXPECT_EQ(found->slowest[0].index, 1u);
  EXPECT_EQ(found->slowest[0].breakdown.wall_ns, 70 * kUs);
  EXPECT_EQ(found->slowest[0].breakdown.of(Part::kDecode), 50 * kUs);
  EXPECT_EQ(found->slowest[0].breakdown.of(Part::kUnexplained), 5 * kUs);
  EXPECT_EQ(found->prefix->cause, event::MissCause::kOtherText);
  EXPECT_EQ(found->prefix->first_divergent_token, 3u);
  EXPECT_TRUE(found->ended);
  EXPECT_EQ(FinishReasonName(*found->finish_reason), "length");
}

// What a busy machine does to a request: whoever has its work waits for a CPU.
TEST(Ledger, NamesWaitsForACpu) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.Span(Kind::kWaitForCpu, 0, 40, 1);
  s.Span(Kind::kParse, 40, 50, 1, 99);
  s.Span(Kind::kTokenize, 50, 60, 1, 8);
  s.At(Kind::kQueued, 60, 1, 8);
  s.At(Kind::kScheduled, 100, 1, 0, 0, 1);
  s.Use(1, 1, 8, 0, true);
  // 100 us of the step lie in no op; the thread was off its CPU for 90.
  s.OpSpan(1, Op::kQkv, 100, 400);
  s.Span(Kind::kStep, 100, 500, 0, 8, 1, 8);
  s.events.back().off_cpu_us = 90;
  // Between the steps 80 us, 70 of them off the CPU; then 5 us, too short for an interruption.
  s.At(Kind::kToken, 500, 1, 0, 0, 1);
  s.Span(Kind::kWaitForCpu, 500, 580, 0, 70 * kUs, 2);
  s.Use(1, 2, 1, 8, false);
  s.OpSpan(2, Op::kQkv, 580, 600);
  s.Span(Kind::kStep, 580, 600, 0, 1, 2, 0);
  s.At(Kind::kToken, 600, 1, 1, 0, 2);
  s.Span(Kind::kWaitForCpu, 600, 605, 0, 5 * kUs, 3);
  s.Use(1, 3, 1, 9, false);
  s.OpSpan(3, Op::kQkv, 605, 625);
  s.Span(Kind::kStep, 605, 625, 0, 1, 3, 0);
  s.At(Kind::kToken, 625, 1, 2, 0, 3);
  s.At(Kind::kFinished, 625, 1, 3, 1);
  s.Span(Kind::kWaitForCpu, 625, 700, 1);
  s.Span(Kind::kLedger, 700, 720, 1);
  s.Span(Kind::kNetworkWrite, 690, 730, 1, 99);
  s.At(Kind::kResponded, 730, 1);
  Ledger ledger;
  ledger.Consume(s.events);
  const auto found = ledger.Find(1, 0);
  ASSERT_TRUE(found);
  const Breakdown& b = found->total;
  EXPECT_EQ(Sum(b), b.wall_ns);
  EXPECT_EQ(b.of(Part::kParse), 10 * kUs);
  EXPECT_EQ(b.of(Part::kQueue), 40 * kUs);
  EXPECT_EQ(b.of(Part::kPrefill), 300 * kUs);
  EXPECT_EQ(b.of(Part::kDecode), 40 * kUs);
  EXPECT_EQ(b.of(Part::kLedger), 20 * kUs);
  EXPECT_EQ(b.of(Part::kNetworkWrite), 20 * kUs);
  EXPECT_EQ(b.of(Part::kWaitingForCpu), (40 + 90 + 70 + 65) * kUs);
  EXPECT_EQ(b.of(Part::kUnexplained), (10 + 10 + 5) * kUs);
}

// What cuts a gap between two steps into pieces does not make the interruption longer.
TEST(Ledger, CountsAnInterruptionOnce) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 8);
  s.At(Kind::kScheduled, 0, 1, 0, 0, 1);
  s.Use(1, 1, 8, 0, true);
  s.OpSpan(1, Op::kQkv, 0, 100);
  s.Span(Kind::kStep, 0, 100, 0, 8, 1, 8);
  // 30 of 90 us off the CPU; writing the answer lies in the middle of them.
  s.Span(Kind::kWaitForCpu, 100, 190, 0, 30 * kUs, 2);
  s.Span(Kind::kNetworkWrite, 140, 150, 1, 99);
  s.Use(1, 2, 1, 8, false);
  s.OpSpan(2, Op::kQkv, 190, 200);
  s.Span(Kind::kStep, 190, 200, 0, 1, 2, 0);
  s.Span(Kind::kWaitForCpu, 200, 240, 0, 25 * kUs, 3);
  s.Use(1, 3, 1, 9, false);
  s.OpSpan(3, Op::kQkv, 240, 250);
  s.Span(Kind::kStep, 240, 250, 0, 1, 3, 0);
  s.At(Kind::kFinished, 250, 1, 2, 1);
  s.At(Kind::kResponded, 250, 1);
  Ledger ledger;
  ledger.Consume(s.events);
  const auto found = ledger.Find(1, 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(Sum(found->total), found->total.wall_ns);
  EXPECT_EQ(found->total.of(Part::kWaitingForCpu), (30 + 25) * kUs);
  EXPECT_EQ(found->total.of(Part::kUnexplained), (80 - 30 + 40 - 25) * kUs);
}

TEST(Ledger, NamesOtherRequestsPrefill) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 4);
  // In the queue: another's prompt for 100 us, then another's token for 50 us, then idle.
  s.Span(Kind::kStep, 0, 100, 0, 64, 1, 64);
  s.Use(2, 1, 64, 0, true);
  s.Span(Kind::kStep, 100, 150, 0, 1, 2, 0);
  s.At(Kind::kScheduled, 160, 1, 0, 0, 3);
  // Its own prompt shares a step with 12 prompt tokens of another: 3/4 is the other's.
  s.Span(Kind::kStep, 160, 260, 0, 16, 3, 16);
  s.OpSpan(3, Op::kExperts, 160, 260);
  s.Use(1, 3, 4, 0, true);
  s.Use(2, 3, 12, 0, true);
  s.At(Kind::kToken, 260, 1, 0, 0, 3);
  // A step without it, of another's prompt; then one without it that only generates.
  s.Span(Kind::kStep, 260, 300, 0, 64, 4, 64);
  s.Span(Kind::kStep, 300, 310, 0, 2, 5, 0);
  // It generates beside 9 prompt tokens of another: 9/10 is the other's.
  s.Span(Kind::kStep, 310, 410, 0, 10, 6, 9);
  s.OpSpan(6, Op::kAttention, 310, 410);
  s.Use(1, 6, 1, 4, false);
  s.At(Kind::kToken, 410, 1, 1, 0, 6);
  s.At(Kind::kFinished, 410, 1, 2, 0);
  s.At(Kind::kResponded, 410, 1);
  Ledger ledger;
  ledger.Consume(s.events);
  const auto found = ledger.Find(1, 0);
  ASSERT_TRUE(found);
  const Breakdown& b = found->total;
  EXPECT_EQ(b.of(Part::kQueue), 160 * kUs);
  EXPECT_EQ(b.queue_others_prefill_ns, 100 * kUs);
  EXPECT_EQ(b.queue_others_decode_ns, 50 * kUs);
  EXPECT_EQ(b.of(Part::kPrefill), 25 * kUs);
  EXPECT_EQ(b.of(Part::kDecode), 10 * kUs);
  EXPECT_EQ(b.of(Part::kOthersPrefill), (75 + 40 + 90) * kUs);
  EXPECT_EQ(b.of(Part::kOthersDecode), 10 * kUs);
  EXPECT_EQ(b.of(Part::kUnexplained), 0);
  EXPECT_EQ(found->chunks[0].others_prefill_ns, 75 * kUs);
}

TEST(Ledger, PreemptionIsWaitingThenRecompute) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 4);
  s.At(Kind::kScheduled, 0, 1, 0, 0, 1);
  s.Span(Kind::kStep, 0, 10, 0, 4, 1, 4);
  s.OpSpan(1, Op::kQkv, 0, 10);
  s.Use(1, 1, 4, 0, true);
  s.At(Kind::kToken, 10, 1, 0, 0, 1);
  s.At(Kind::kPreempted, 20, 1, 5);
  s.At(Kind::kScheduled, 50, 1, 0, 0, 3);
  s.Span(Kind::kStep, 50, 70, 0, 5, 3, 4);
  s.OpSpan(3, Op::kQkv, 50, 70);
  s.Use(1, 3, 4, 0, true);
  s.Use(1, 3, 1, 4, false);
  s.At(Kind::kToken, 70, 1, 1, 0, 3);
  s.Span(Kind::kStep, 70, 80, 0, 1, 4, 0);
  s.OpSpan(4, Op::kQkv, 70, 80);
  s.Use(1, 4, 1, 5, false);
  s.At(Kind::kResponded, 80, 1);
  Ledger ledger;
  ledger.Consume(s.events);
  const auto found = ledger.Find(1, 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->total.of(Part::kPreempted), 30 * kUs);
  EXPECT_EQ(found->total.of(Part::kRecompute), 20 * kUs);
  EXPECT_EQ(found->total.of(Part::kPrefill), 10 * kUs);
  EXPECT_EQ(found->total.of(Part::kDecode), 10 * kUs);
  EXPECT_EQ(found->total.of(Part::kUnexplained), 10 * kUs);
  EXPECT_EQ(found->chunks.size(), 1u);
}

TEST(Ledger, InnerOpsOwnTheirTimeOnce) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 4);
  s.At(Kind::kScheduled, 0, 1, 0, 0, 1);
  s.Use(1, 1, 4, 0, true);
  s.OpSpan(1, Op::kSharedExpert, 20, 50);  // ends first, as a nested scope does
  s.OpSpan(1, Op::kExperts, 10, 90);
  s.Span(Kind::kStep, 0, 100, 0, 4, 1, 4);
  s.At(Kind::kResponded, 100, 1);
  Ledger ledger;
  ledger.Consume(s.events);
  const Breakdown b = ledger.Find(1, 0)->total;
  const OpTimes& ops = b.op_ns[static_cast<size_t>(Part::kPrefill)];
  EXPECT_EQ(ops[static_cast<size_t>(Op::kExperts)], 50 * kUs);
  EXPECT_EQ(ops[static_cast<size_t>(Op::kSharedExpert)], 30 * kUs);
  EXPECT_EQ(b.of(Part::kUnexplained), 20 * kUs);
}

TEST(Ledger, LateDeviceTimesReplaceTheCostOfEnqueuing) {
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 4);
  s.At(Kind::kScheduled, 0, 1, 0, 0, 1);
  s.Use(1, 1, 4, 0, true);
  s.OpSpan(1, Op::kQkv, 0, 1);
  s.OpSpan(1, Op::kAttention, 1, 2);
  s.Span(Kind::kStep, 0, 100, 0, 4, 1, 4);
  Ledger ledger;
  ledger.Consume(s.events);
  EXPECT_EQ(ledger.Find(1, 100 * kUs)->total.of(Part::kUnexplained), 98 * kUs);
  Script late;  // on a clock with another origin, after the fact and out of order
  late.OpSpan(1, Op::kAttention, 5030, 5090, event::ClockDomain::kGpu);
  late.OpSpan(1, Op::kQkv, 5000, 5030, event::ClockDomain::kGpu);
  ledger.Consume(late.events);
  const Breakdown b = ledger.Find(1, 100 * kUs)->total;
  EXPECT_EQ(b.of(Part::kPrefill), 90 * kUs);
  EXPECT_EQ(b.of(Part::kUnexplained), 10 * kUs);
}

TEST(Ledger, KeepsAnEndedRequestAndCountsWhatCameTooLate) {
  LedgerOptions options;
  options.kept_requests = 2;
  options.settle_ns = 100 * kUs;
  Ledger ledger(options);
  for (uint64_t id = 1; id <= 3; ++id) {
    Script s;
    const auto t = static_cast<int64_t>(1000 * id);
    s.At(Kind::kRequestArrived, t, id);
    s.At(Kind::kQueued, t, id, 4);
    s.At(Kind::kScheduled, t + 1, id, 0, 0, id);
    s.Span(Kind::kStep, t + 1, t + 11, 0, 4, id, 4);
    s.Use(id, id, 4, 0, true);
    s.At(Kind::kFinished, t + 11, id, 1, 0);
    s.At(Kind::kResponded, t + 20, id);
    s.At(Kind::kRequestArrived, t + 200, id + 100);  // time passes
    ledger.Consume(s.events);
  }
  EXPECT_FALSE(ledger.Find(1, 0)) << "only two are kept";
  ASSERT_TRUE(ledger.Find(2, 0));
  EXPECT_EQ(ledger.Find(2, 0)->total.wall_ns, 20 * kUs);
  Script s;
  s.Span(Kind::kNetworkWrite, 9000, 9001, 2, 1);
  ledger.Consume(s.events);
  EXPECT_EQ(ledger.Find(2, 0)->late_events, 1u);
  EXPECT_EQ(ledger.Find(2, 0)->total.wall_ns, 20 * kUs);
}

TEST(Ledger, ReportsLostEventsAndForgottenSteps) {
  LedgerOptions options;
  options.max_steps = 100;
  Ledger ledger(options);
  Script s;
  s.At(Kind::kRequestArrived, 0, 1);
  s.At(Kind::kQueued, 0, 1, 4);
  s.At(Kind::kScheduled, 0, 1, 0, 0, 1);
  for (uint64_t step = 1; step <= 150; ++step) {
    const auto t = static_cast<int64_t>(step * 10);
    s.Use(1, step, 1, step, false);
    s.OpSpan(step, Op::kHead, t, t + 10);
    s.Span(Kind::kStep, t, t + 10, 0, 1, step, 0);
  }
  ledger.Consume(s.events);
  ledger.OnDropped(7);
  const auto found = ledger.Find(1, 1510 * kUs);
  EXPECT_EQ(found->forgotten_steps, 50u);
  EXPECT_EQ(found->dropped_events, 7u);
  EXPECT_EQ(found->total.of(Part::kDecode), 1000 * kUs);
  EXPECT_EQ(Sum(found->total), found->total.wall_ns);
  EXPECT_NE(LedgerTable(*found, Language::kEnglish).find("7 events lost"), std::string::npos);
}

// Whatever the order and however the spans overlap, the parts add up and none is negative.
TEST(Ledger, AddsUpOnRandomStreams) {
  std::mt19937 random(7);
  auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 200; ++round) {
    Script s;
    for (uint64_t request = 1; request <= 3; ++request) {
      s.At(Kind::kRequestArrived, static_cast<int64_t>(below(50)), request);
    }
    for (int i = 0; i < 120; ++i) {
      const auto begin = static_cast<int64_t>(below(1000));
      const auto end = begin + static_cast<int64_t>(below(200));
      const uint64_t request = 1 + below(3);
      const uint64_t step = 1 + below(20);
      const uint64_t tokens = 1 + below(16);
      switch (below(10)) {
        case 0:
          s.Span(Kind::kStep, begin, end, 0, tokens, step, below(tokens + 1));
          break;
        case 1:
          s.OpSpan(step, static_cast<Op>(below(kNumOps)), begin, end,
                   below(4) == 0 ? event::ClockDomain::kGpu : event::ClockDomain::kHostMonotonic);
          break;
        case 2:
          s.Use(request, step, tokens, begin, below(2) == 0);
          break;
        case 3:
          s.At(Kind::kToken, begin, request, i, 0, step);
          break;
        default: {
          const auto kind = static_cast<Kind>(below(static_cast<uint64_t>(Kind::kCount)));
          if (kind == Kind::kRequestArrived || kind == Kind::kResponded) break;
          s.Span(kind, begin, end, request, tokens, step, tokens);
        }
      }
    }
    Ledger ledger;
    ledger.Consume(s.events);
    for (uint64_t request = 1; request <= 3; ++request) {
      const auto found = ledger.Find(request, 1500 * kUs);
      ASSERT_TRUE(found);
      ASSERT_EQ(Sum(found->total), found->total.wall_ns);
      for (const int64_t ns : found->total.ns) ASSERT_GE(ns, 0);
      for (const OpTimes& ops : found->total.op_ns) {
        for (const int64_t ns : ops) ASSERT_GE(ns, 0);
      }
      for (const SlowToken& token : found->slowest) {
        ASSERT_EQ(Sum(token.breakdown), token.breakdown.wall_ns);
      }
    }
  }
}

TEST(LedgerReport, JsonAddsUpAndTablesSpeakBothLanguages) {
  Ledger ledger;
  ledger.Consume(Solo().events);
  const auto found = ledger.Find(1, 0);
  const auto json = LedgerJson(*found, "chatcmpl-1");
  EXPECT_EQ(json["schema"], "fathom.ledger/1");
  int64_t sum = 0;
  for (const auto& row : json["parts"]) sum += row["ns"].get<int64_t>();
  EXPECT_EQ(sum, json["wall_ns"].get<int64_t>());
  EXPECT_EQ(json["parts"].back()["part"], "unexplained");
  EXPECT_EQ(json["prefix_cache"]["cause"], "other_text");
  const std::string english = LedgerTable(*found, Language::kEnglish);
  EXPECT_NE(
      english.find("  prefill                           90.0 us   34.6 %  chunks 1, tokens 8"),
      std::string::npos)
      << english;
  EXPECT_NE(english.find("  unexplained                       30.0 us   11.5 %"), std::string::npos)
      << english;
  const std::string chinese = LedgerTable(*found, Language::kChinese);
  EXPECT_NE(chinese.find("  预填充                            90.0 us   34.6 %"), std::string::npos)
      << chinese;
}

}  // namespace
}  // namespace fathom::observe
