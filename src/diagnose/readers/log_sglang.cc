// SGLang: the scheduler's batch lines, retractions, expert balance, and the facts of its start.
#include <algorithm>

#include "base/strings.h"
#include "diagnose/readers/log.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

struct Key {
  std::string_view name;
  LogField field;
};

constexpr Key kBatchKeys[] = {
    {"#running-req", LogField::kRunning},
    {"#queue-req", LogField::kWaiting},
    {"#new-seq", LogField::kNewSequences},
    {"#new-token", LogField::kNewTokens},
    {"#cached-token", LogField::kCachedTokens},
    {"#token", LogField::kTokens},
    {"#full token", LogField::kTokens},
    {"token usage", LogField::kKvUsage},
    {"full token usage", LogField::kFullUsage},
    {"swa token usage", LogField::kSwaUsage},
    {"mamba usage", LogField::kMambaUsage},
    {"cuda graph", LogField::kCudaGraph},
    {"gen throughput (token/s)", LogField::kDecodeTokensPerS},
    {"input throughput (token/s)", LogField::kPromptTokensPerS},
    {"accept len", LogField::kAcceptLength},
    {"accept rate", LogField::kAcceptRate},
    {"#prealloc-req", LogField::kPreallocRequests},
    {"#inflight-req", LogField::kInflightRequests},
    {"#transfer-req", LogField::kTransferRequests},
    {"#retracted-req", LogField::kRetracted},
};

constexpr double kGB = 1e9;

bool Holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// "#running-req: 1, #token: 1411, token usage: 0.00, cuda graph: True, ..." with an optional
// trailing comma.
void ReadBatch(std::string_view text, LogLineBuilder& builder) {
  while (!text.empty()) {
    std::string_view value = Trim(TakeUntil(text, ","));
    const std::string_view key = Trim(TakeUntil(value, ":"));
    value = Trim(value);
    for (const Key& known : kBatchKeys) {
      if (known.name != key) continue;
      if (value == "True" || value == "False") {
        builder.Add(known.field, value == "True" ? 1 : 0);
      } else {
        builder.Add(known.field, LeadingNumber(value));
      }
      break;
    }
  }
}

// "server_args=ServerArgs(model_path='…', …, tp_size=8, …, dp_size=1, …)". Attention-data-parallel
// groups have been counted by attn_dp_size since 0.5.23, before by dp_size.
bool ReadSettings(std::string_view text, LogLineBuilder& builder, Timeline& timeline) {
  std::string_view model = text;
  TakeUntil(model, "model_path='");
  AddModelFact(timeline, builder.line().source, TakeUntil(model, "'"));
  const auto number = [&](std::string_view key) {
    return std::max(NumberAfter(text, key).value_or(1), 1.0);
  };
  const bool by_dp_size = Holds(text, " enable_dp_attention=True");
  const double groups = std::max(number(" attn_dp_size="), by_dp_size ? number(" dp_size=") : 1.0);
  builder.Add(LogField::kAttentionRanks, number(" tp_size=") / groups / number(" attn_cp_size="));
  builder.Add(LogField::kAttentionReplicas, groups);
  return builder.Commit();
}

}  // namespace

bool HoldsSglangSettings(std::string_view line) {
  const size_t at = line.find("server_args=ServerArgs(");
  if (at == std::string_view::npos) return false;
  return at == 0 || (at >= 2 && line.find("] ") == at - 2);
}

bool ReadSglangLine(std::string_view text, const LogLine& line, Timeline& timeline) {
  LogLineBuilder builder(timeline, line);
  const auto batch = [&](std::string_view mark, LogKind kind) {
    const size_t at = text.find(mark);
    if (at == std::string_view::npos) return false;
    std::string_view rest = text.substr(at + mark.size());  // "," or "." or " [123],"
    builder.line().kind = kind;
    if (rest.starts_with(" [")) builder.Add(LogField::kIteration, LeadingNumber(rest.substr(2)));
    const size_t first = rest.find_first_of("#abcdefghijklmnopqrstuvwxyz");
    if (first == std::string_view::npos) return false;
    rest.remove_prefix(first);
    ReadBatch(rest, builder);
    // Up to 0.4.1: "cache hit rate: 12.34%".
    builder.Add(LogField::kPrefixHitRate, NumberAfter(rest, "cache hit rate: "), 0.01);
    return builder.Commit();
  };
  if (batch("Prefill batch", LogKind::kPrefill)) return true;
  if (batch("Decode batch", LogKind::kDecode)) return true;
  if (Holds(text, "#retracted_reqs: ")) {
    builder.line().kind = LogKind::kEvent;
    builder.line().text = timeline.strings.Intern("KV cache pool is full: requests retracted");
    builder.Add(LogField::kRetracted, NumberAfter(text, "#retracted_reqs: "));
    return builder.Commit();
  }
  if (Holds(text, "[Expert Balancedness]")) {
    builder.line().kind = LogKind::kStats;
    builder.Add(LogField::kExpertBalancedness, NumberAfter(text, "current_pass_balancedness="));
    return builder.Commit();
  }
  builder.line().kind = LogKind::kStartup;
  if (HoldsSglangSettings(text)) {
    return ReadSettings(text, builder, timeline);
  }
  if (Holds(text, "max_total_num_tokens=")) {
    builder.Add(LogField::kKvCapacityTokens, NumberAfter(text, "max_total_num_tokens="));
    builder.Add(LogField::kMaxModelTokens, NumberAfter(text, "context_len="));
    return builder.Commit();
  }
  if (Holds(text, "Capture cuda graph end")) {
    builder.Add(LogField::kGraphCaptureS, NumberAfter(text, "Time elapsed: "));
    builder.Add(LogField::kGraphCaptureBytes, NumberAfter(text, "mem usage="), kGB);
    return builder.Commit();
  }
  if (Holds(text, "Load weight end")) {
    builder.Add(LogField::kWeightBytes, NumberAfter(text, "mem usage="), kGB);
    return builder.Commit();
  }
  return false;
}

}  // namespace fathom::diagnose
