// vLLM: loggers.py (V1), metrics.py (V0), and the facts of the engine's start.
#include <algorithm>
#include <iterator>

#include "base/strings.h"
#include "diagnose/readers/log.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Phrase {
  std::string_view key;
  LogField field;
  double scale;
};

constexpr Phrase kStats[] = {
    {"Avg prompt throughput: ", LogField::kPromptTokensPerS, 1},
    {"Avg generation throughput: ", LogField::kDecodeTokensPerS, 1},
    {"Running: ", LogField::kRunning, 1},
    {"Waiting: ", LogField::kWaiting, 1},
    {"Pending: ", LogField::kWaiting, 1},
    {"Swapped: ", LogField::kSwapped, 1},
    {"Preemptions: ", LogField::kPreemptions, 1},
    {"Corrupted: ", LogField::kCorrupted, 1},
    {"GPU KV cache usage: ", LogField::kKvUsage, 0.01},
    {"CPU KV cache usage: ", LogField::kCpuKvUsage, 0.01},
    {", Prefix cache hit rate: ", LogField::kPrefixHitRate, 0.01},
    {"External prefix cache hit rate: ", LogField::kExternalHitRate, 0.01},
    {"MM cache hit rate: ", LogField::kMmHitRate, 0.01},
};

constexpr Phrase kSpeculation[] = {
    {"Mean acceptance length: ", LogField::kAcceptLength, 1},
    {"Accepted throughput: ", LogField::kAcceptedTokensPerS, 1},
    {"Drafted throughput: ", LogField::kDraftTokensPerS, 1},
    {"Avg Draft acceptance rate: ", LogField::kAcceptRate, 0.01},
};

// A line with `mark` states `field`, the number after `key`.
struct StartupFact {
  std::string_view mark;
  std::string_view key;
  LogField field;
  double scale;
};
constexpr StartupFact kStartup[] = {
    {"GPU KV cache size: ", "GPU KV cache size: ", LogField::kKvCapacityTokens, 1},
    {"Maximum concurrency for ", "tokens per request: ", LogField::kMaxConcurrency, 1},
    {"Maximum concurrency for ", "Maximum concurrency for ", LogField::kMaxModelTokens, 1},
    {"Graph capturing finished in ", "Graph capturing finished in ", LogField::kGraphCaptureS, 1},
    {"Graph capturing finished in ", "took ", LogField::kGraphCaptureBytes, kGiB},
    {"torch.compile takes ", "torch.compile takes ", LogField::kCompileS, 1},
    {"Model loading took ", "Model loading took ", LogField::kWeightBytes, kGiB},
    {"Loading model weights took ", "Loading model weights took ", LogField::kWeightBytes, kGiB},
    {"model weights take ", "model weights take ", LogField::kWeightBytes, kGiB},
    {"Available KV cache memory: ", "Available KV cache memory: ", LogField::kKvCacheBytes, kGiB},
    {"# GPU blocks: ", "# GPU blocks: ", LogField::kBlocks, 1},
    {"# cuda blocks: ", "# cuda blocks: ", LogField::kBlocks, 1},
};

// Lines that say that something happened; the text itself is the fact.
constexpr std::string_view kEvents[] = {
    "is preempted by PreemptionMode",
    "recompile_limit",
    "cache_size_limit",
    "torch._dynamo hit",
    "falling back to eager",
    "Aborted request",
    "CUDA out of memory",
    "cudagraph dispatching",
    "EngineDeadError",
};

bool Holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void ReadEngineStats(std::string_view text, LogLineBuilder& builder) {
  builder.line().kind = LogKind::kStats;
  builder.line().engine = ToInt32(NumberAfter(text, "Engine "), builder.line().engine);
  for (const Phrase& phrase : kStats) {
    builder.Add(phrase.field, NumberAfter(text, phrase.key), phrase.scale);
  }
}

// "Iteration(7): 2 context requests, 900 context tokens, 3 generation requests, 3 generation
// tokens, iteration elapsed time: 41.20 ms, GPU KV cache usage: 1.5%", the last part in newer
// releases.
bool ReadIteration(std::string_view text, LogLineBuilder& builder) {
  constexpr std::string_view kMark = "Iteration(";
  std::string_view rest = text.substr(text.find(kMark) + kMark.size());
  const auto number = LeadingNumber(TakeUntil(rest, "): "));
  const auto ms = NumberAfter(rest, "iteration elapsed time: ");
  // Ranks without work step along with those that have some.
  if (!number || !ms || Holds(rest, "(dummy)")) return false;
  builder.line().kind = LogKind::kIteration;
  builder.line().engine = ToInt32(NumberAfter(text, "Engine "), builder.line().engine);
  builder.Add(LogField::kIteration, number);
  builder.Add(LogField::kNewSequences, LeadingNumber(rest));
  builder.Add(LogField::kNewTokens, NumberAfter(rest, "context requests, "));
  builder.Add(LogField::kDecodeSequences, NumberAfter(rest, "context tokens, "));
  builder.Add(LogField::kStepMs, ms);
  builder.Add(LogField::kKvUsage, NumberAfter(rest, "GPU KV cache usage: "), 0.01);
  return builder.Commit();
}

// "Initializing a V1 LLM engine (v0.16.0) with config: model='…', …, tensor_parallel_size=8, …".
bool ReadEngineConfig(std::string_view text, LogLineBuilder& builder, Timeline& timeline) {
  builder.line().kind = LogKind::kStartup;
  std::string_view model = text;
  TakeUntil(model, "model='");
  AddModelFact(timeline, builder.line().source, TakeUntil(model, "'"));
  const double ranks = NumberAfter(text, "tensor_parallel_size=").value_or(1);
  // Ranks that divide a sequence's cache by its tokens hold no copies of it.
  const double context = NumberAfter(text, "decode_context_parallel_size=").value_or(1);
  builder.Add(LogField::kAttentionRanks, ranks / std::max(context, 1.0));
  builder.Add(LogField::kAttentionReplicas, NumberAfter(text, " data_parallel_size="));
  return builder.Commit();
}

}  // namespace

bool ReadVllmLine(std::string_view text, const LogLine& line, Timeline& timeline) {
  LogLineBuilder builder(timeline, line);
  if (Holds(text, "Avg prompt throughput: ")) {
    ReadEngineStats(text, builder);
    return builder.Commit();
  }
  if (Holds(text, " context requests, ") && Holds(text, "Iteration(")) {
    return ReadIteration(text, builder);
  }
  // V0 prints the hit rates on a line of their own.
  if (Holds(text, "Prefix cache hit rate: GPU: ")) {
    builder.line().kind = LogKind::kStats;
    builder.Add(LogField::kPrefixHitRate, NumberAfter(text, "hit rate: GPU: "), 0.01);
    builder.Add(LogField::kCpuPrefixHitRate, NumberAfter(text, "CPU: "), 0.01);
    return builder.Commit();
  }
  if (Holds(text, "SpecDecoding metrics: ") || Holds(text, "Speculative metrics: ")) {
    builder.line().kind = LogKind::kSpecDecode;
    for (const Phrase& phrase : kSpeculation) {
      builder.Add(phrase.field, NumberAfter(text, phrase.key), phrase.scale);
    }
    return builder.Commit();
  }
  if (Holds(text, "EPLB step: ")) {
    builder.line().kind = LogKind::kStats;
    builder.Add(LogField::kExpertBalancedness, NumberAfter(text, "balancedness="));
    return builder.Commit();
  }
  if (Holds(text, "LLM engine (v") && Holds(text, "tensor_parallel_size=")) {
    return ReadEngineConfig(text, builder, timeline);
  }
  for (const StartupFact& fact : kStartup) {
    if (!Holds(text, fact.mark)) continue;
    builder.line().kind = LogKind::kStartup;
    builder.Add(fact.field, NumberAfter(text.substr(text.find(fact.mark)), fact.key), fact.scale);
  }
  if (builder.line().kind == LogKind::kStartup) return builder.Commit();
  for (const std::string_view event : kEvents) {
    if (!Holds(text, event)) continue;
    builder.line().kind = LogKind::kEvent;
    // The pattern names what happened; the line may hold prompts and ids.
    builder.line().text = timeline.strings.Intern(event);
    builder.Add(LogField::kPreemptions, NumberAfter(text, "total_num_cumulative_preemption="));
    return builder.Commit();
  }
  return false;
}

}  // namespace fathom::diagnose
