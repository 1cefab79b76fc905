#pragma once
// Where each request's time went: collects the events of requests and steps, and answers with a
// breakdown that adds up to the wall time (attribution.h). GPU times arrive late and out of order;
// a breakdown is computed when asked for, from what has arrived by then, and kept once the request
// is over and its late events have had their time.
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/attribution.h"
#include "observe/recorder.h"

namespace fathom::observe {

// Names of engine::FinishReason, in its order: "stop", "length", "cancelled", "deadline", "error".
std::string_view FinishReasonName(uint16_t reason);

struct PrefillChunk {
  uint64_t step_id = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0;
  int64_t ns = 0;  // without the share of other requests' prompts
  int64_t others_prefill_ns = 0;
};

struct SlowToken {
  uint64_t index = 0;    // of the generated token
  uint64_t step_id = 0;  // that yielded it
  Breakdown breakdown;   // of the time since the token before it
};

struct PrefixOutcome {
  uint64_t asked_tokens = 0;
  uint64_t found_tokens = 0;
  uint64_t first_divergent_token = 0;
  event::MissCause cause = event::MissCause::kNone;
};

struct RequestLedger {
  uint64_t request_id = 0;
  int64_t arrived_ns = 0;
  bool ended = false;  // false: the breakdown runs to the moment of asking
  std::optional<uint16_t> finish_reason;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t decode_steps = 0;
  std::optional<int64_t> ttft_ns;     // from arrival
  Breakdown total;                    // from arrival to the end
  std::optional<Breakdown> to_first;  // from arrival to the first token
  std::vector<PrefillChunk> chunks;
  std::vector<SlowToken> slowest;  // longest first
  std::optional<PrefixOutcome> prefix;
  // What makes the breakdown less than exact: events lost because the ring was full, events that
  // came after it was closed, steps forgotten because the request outlived the ledger's memory.
  uint64_t dropped_events = 0;
  uint64_t late_events = 0;
  uint64_t forgotten_steps = 0;
};

struct LedgerOptions {
  size_t kept_requests = 1024;  // ended ones that can still be asked for
  size_t max_live_requests = 16384;
  size_t max_steps = 1 << 17;         // remembered while a live request may need them
  int64_t settle_ns = 1'000'000'000;  // how long after the end late events still count
  size_t slowest_tokens = 5;
  // Called on the recorder's thread with each ended request's final breakdown; may be empty.
  std::function<void(const RequestLedger&)> on_settled;
};

class Ledger : public Consumer {
 public:
  explicit Ledger(LedgerOptions options = {}) : options_(std::move(options)) {}

  void Consume(std::span<const event::Event> events) override;
  void OnDropped(uint64_t count) override;

  // Any thread. A request that is not over is broken down up to now_ns.
  std::optional<RequestLedger> Find(uint64_t request_id, int64_t now_ns) const;

 private:
  struct StepUse {
    uint64_t step_id = 0;
    uint64_t first_position = 0;
    uint32_t tokens = 0;
    bool prompt_role = false;
    bool recompute = false;
  };
  struct TokenTime {
    uint64_t index = 0;
    uint64_t step_id = 0;
    int64_t time_ns = 0;
  };
  struct Live {
    std::optional<int64_t> arrived_ns, finished_ns, responded_ns;
    std::optional<uint16_t> finish_reason;
    std::vector<Interval> parse, tokenize, prefix_lookup, detokenize, network_write, ledger,
        waiting;
    std::vector<Interval> queue, preempted;  // closed by kScheduled
    std::optional<int64_t> queued_ns, preempted_ns;
    bool recomputing = false;
    std::vector<StepUse> uses;
    std::vector<TokenTime> tokens;
    uint64_t prompt_tokens = 0;
    uint64_t generated_tokens = 0;
    std::optional<PrefixOutcome> prefix;
    uint64_t dropped_events = 0;
  };
  struct OpSpan {
    Interval time;
    event::Op op = event::Op::kNone;
  };
  struct Step {
    uint64_t id = 0;
    bool timed = false;  // kStep has arrived
    bool folded = false;
    Interval time;
    uint32_t tokens = 0;
    uint32_t prompt_tokens = 0;
    int64_t off_cpu_ns = 0;
    OpTimes host_ns{};
    OpTimes gpu_ns{};
    std::vector<OpSpan> spans;  // host ops until folded
  };

  void Apply(const event::Event& e);
  void ApplyToRequest(const event::Event& e);
  Live* FindOrAddLive(const event::Event& e);
  Step* FindOrAddStep(uint64_t id);
  static OpTimes ExclusiveTimes(const std::vector<OpSpan>& spans);
  static OpTimes TimesOf(const Step& step);
  void Settle();
  RequestLedger Summarize(uint64_t id, const Live& live, int64_t now_ns) const;
  Timeline TimelineOf(const Live& live, Interval window) const;

  const LedgerOptions options_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Live> live_;  // by request id
  std::unordered_map<uint64_t, RequestLedger> kept_;
  std::deque<uint64_t> kept_order_;
  std::deque<Step> steps_;  // consecutive ids from steps_.front().id
  std::deque<Interval> schedules_;
  std::deque<OffCpu> off_cpu_;
  std::deque<Interval> detokenizes_;  // of all requests
  int64_t newest_ns_ = 0;
  uint64_t forgotten_below_ = 0;  // steps with smaller ids were dropped for want of room
};

}  // namespace fathom::observe
