#pragma once
// What happened, as fixed-size records: the one stream that ops, model, engine and server write and
// that the ledger, the metrics, the traces and the tuner read. Plain data, versioned; a reader of
// an older file can rely on sizeof(Event) and on the meaning of each Kind below.
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace fathom::event {

inline constexpr uint32_t kSchemaVersion = 1;

// S: a span [start_ns, start_ns + duration_ns]; I: an instant (duration 0).
enum class Kind : uint8_t {
  kRequestArrived,  // I request_id; value = body bytes. The front end has the whole request
  kTokenize,        // S request_id; value = prompt tokens
  kQueued,          // I request_id; value = prompt tokens. The engine owns it from here
  kScheduled,       // I request_id, step_id; first time, and again after each preemption
  kSchedule,  // S step_id; value = sequences in the batch. The scheduler's own time: choosing the
              //   batch, and taking in what it yielded
  kStep,      // S step_id; value = tokens, aux = prompt tokens among them, off_cpu_us
  kStepSequence,  // I request_id, step_id; value = tokens of this request, aux = first position,
                  //   flags = kPromptRole or kGeneratedRole
  kOp,            // S step_id, op, layer; value = bytes moved, aux = FLOPs (0 = not stated)
  kToken,         // I request_id, step_id; value = index of the generated token
  kDetokenize,    // S request_id; value = tokens
  kNetworkWrite,  // S request_id; value = bytes. Put into its form, and taken by the socket
  kPreempted,     // I request_id; value = tokens whose pages were given back
  kFinished,      // I request_id; value = generated tokens, flags = engine::FinishReason
  kPrefixLookup,  // S request_id; value = tokens found, aux = tokens asked for
  kCacheMiss,     // I request_id; value = first divergent token, aux = tokens to compute again,
                  //   flags = MissCause
  kKvVersionMismatch,  // I request_id; value = pages there under another version, flags = MissCause
  kModelLoad,          // S value = bytes
  kResponded,          // I request_id; value = body bytes. The front end has written the whole
                       //   response, or has given it up: the request's wall time ends here
  kParse,              // S request_id; value = body bytes. The request read and checked
  kWaitForCpu,         // S request_id; from one thread passing it on until the next one runs.
                       //   Without a request: S step_id; value = ns of the span that the engine's
                       //   thread was not on a CPU between the step before and this one
  kLedger,             // S request_id; its own ledger made for the response
  kCount,
};

enum class Op : uint8_t {
  kNone,
  kEmbed,
  kNorm,
  kQkv,
  kRopeCache,
  kAttention,
  kOutProj,
  kDenseMlp,
  kGate,
  kExperts,
  kSharedExpert,
  kHead,
  kSample,
  kCopy,
  kComm,
  kCount,
};

// Why a prompt's cached prefix ended where it did.
enum class MissCause : uint16_t {
  kNone,
  kFirstUse,          // nothing like it was ever seen
  kOtherText,         // the text differs from the divergent token on
  kBos,               // one side has a BOS the other lacks
  kStrippedThinking,  // the history's thinking was dropped by the chat template
  kEvicted,           // the pages were there and gave way to ones used later
  kPageRounding,      // only whole pages are kept
  kVersion,           // other model, rope, mask policy or KV type
  kCapacity,          // the pages were there, and what ran left no room for them
  kTenant,            // held under another tenant's salt
  kGenerated,         // held as generated tokens, which prompts do not reuse unless told to
  kCount,
};

enum class ClockDomain : uint8_t { kHostMonotonic, kGpu };

inline constexpr uint16_t kPromptRole = 1;
inline constexpr uint16_t kGeneratedRole = 2;

struct Event {
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  uint64_t request_id = 0;
  uint64_t step_id = 0;
  uint64_t value = 0;
  uint64_t aux = 0;
  uint32_t graph_node = 0;
  int16_t layer = -1;
  uint16_t flags = 0;
  Kind kind = Kind::kStep;
  Op op = Op::kNone;
  ClockDomain clock = ClockDomain::kHostMonotonic;
  uint8_t device = 0;
  // Of kStep: how long the engine's thread was not on a CPU. 0 when the device does the work.
  uint32_t off_cpu_us = 0;
};
static_assert(sizeof(Event) == 64 && std::is_trivially_copyable_v<Event>);

std::string_view NameOf(Kind kind);        // "request_arrived", ...
std::string_view NameOf(Op op);            // "embed", "qkv", "rope_cache", ...
std::string_view NameOf(MissCause cause);  // "other_text", ...

}  // namespace fathom::event
