#pragma once
// Divides a stretch of one request's wall time among its causes. Every nanosecond goes to exactly
// one part, in the order of Part below where causes overlap, and what no cause covers is
// kUnexplained: the parts add up to the wall time by construction.
//
// A step that the request took part in is its own, but for the share of prompt tokens of other
// requests in the batch (by token count), which is kOthersPrefill: the same batch without them
// would have been that much shorter. A step's own time divides over its ops as they ran; what no
// op covers inside a step is waiting for a CPU, as far as the engine's thread was off its CPU
// during the step at all, and else unexplained. The same holds for an interruption between two
// steps. An op that was interrupted keeps the time.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "event/event.h"

namespace fathom::observe {

inline constexpr size_t kNumOps = static_cast<size_t>(event::Op::kCount);
using OpTimes = std::array<int64_t, kNumOps>;  // [kNumOps], ns; index 0 (Op::kNone) stays 0

enum class Part : uint8_t {
  kParse,             // the request's JSON, read and checked
  kTokenize,          // text to tokens, with the chat template
  kPrefixLookup,      // searching the prefix cache
  kQueue,             // from being handed to the engine to the first batch
  kPreempted,         // pages given back; waiting to be scheduled again
  kPrefill,           // steps over the request's own prompt
  kRecompute,         // steps that rebuild what a preemption dropped
  kDecode,            // steps that generate
  kOthersPrefill,     // other requests' prompts: in its own steps, or in steps without it
  kOthersDecode,      // steps without it that only generated
  kSchedule,          // the scheduler at work
  kDetokenize,        // tokens to text
  kLedger,            // its own ledger, made for the response
  kNetworkWrite,      // the response put into its form and taken by the socket
  kOthersDetokenize,  // other requests' tokens turned into text before the next step
  kWaitingForCpu,  // a thread had its work and did not run: another one had passed the request on
                   // to it, or it was the engine's between two ops or steps
  kUnexplained,
  kCount,
};
inline constexpr size_t kNumParts = static_cast<size_t>(Part::kCount);
std::string_view NameOf(Part part);  // "tokenize", "prefix_lookup", ...

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t length() const { return end_ns - begin_ns; }
};

struct StepInterval {
  Interval time;
  uint64_t step_id = 0;
  uint32_t tokens = 0;         // of the batch
  uint32_t prompt_tokens = 0;  // of the batch
  OpTimes op_ns{};             // sum <= time.length()
  int64_t off_cpu_ns = 0;      // event::Event::off_cpu_us

  // kPrefill, kRecompute or kDecode when the request took part; kUnexplained when not.
  Part own = Part::kUnexplained;
  uint32_t own_tokens = 0;
  uint32_t own_prompt_tokens = 0;
  uint64_t first_position = 0;
  bool took_part() const { return own != Part::kUnexplained; }
};

// Between two steps: how much of the time the engine's thread was not on a CPU.
struct OffCpu {
  Interval time;
  int64_t ns = 0;
};

// What is known of one request and of the engine around it. Lists are sorted by begin and free of
// overlaps (SortAndClip makes them so).
struct Timeline {
  std::vector<Interval> parse, tokenize, prefix_lookup, queue, preempted;
  std::vector<StepInterval> steps;
  std::vector<Interval> schedule, detokenize, ledger, network_write, others_detokenize, waiting;
  std::vector<OffCpu> off_cpu;
};

struct Breakdown {
  int64_t wall_ns = 0;
  std::array<int64_t, kNumParts> ns{};  // [kNumParts], adds up to wall_ns
  // Of ns[kPrefill], ns[kRecompute], ns[kDecode], by op.
  std::array<OpTimes, kNumParts> op_ns{};  // [kNumParts][kNumOps]
  // Of ns[kQueue]: what the engine did meanwhile; the rest it was idle.
  int64_t queue_others_prefill_ns = 0;
  int64_t queue_others_decode_ns = 0;

  int64_t of(Part part) const { return ns[static_cast<size_t>(part)]; }
};

// The time that one step cost the request, of those it took part in.
struct StepShare {
  const StepInterval* step = nullptr;
  int64_t own_ns = 0;
  int64_t others_prefill_ns = 0;
};

// `shares`, when given, receives one entry a step that the request took part in.
Breakdown Attribute(const Timeline& timeline, Interval window,
                    std::vector<StepShare>* shares = nullptr);

// Sorts by begin; where two overlap the later one begins when the earlier ends; empty ones go.
void SortAndClip(std::vector<Interval>* intervals);
void SortAndClip(std::vector<StepInterval>* steps);

}  // namespace fathom::observe
