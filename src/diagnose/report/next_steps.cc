#include "diagnose/report/next_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fathom::diagnose {
namespace {

struct Artifact {
  std::string_view name;
  std::string_view command;
  std::vector<std::string_view> rules;
};

const std::vector<Artifact>& Artifacts() {
  static const std::vector<Artifact> kArtifacts = {
      {"trace",
       "curl -X POST http://HOST:PORT/start_profile; ...load...; "
       "curl -X POST http://HOST:PORT/stop_profile",
       {"kv-copy", "rope-relaunch", "jit-recompile", "switch-stall", "graph-miss", "launch-gap",
        "sync-call", "allocator", "head-imbalance", "routing-latency", "tp-collective",
        "attention-roofline", "softmax-pass"}},
      {"ncu",
       "ncu --set full --launch-skip 100 --launch-count 50 --page raw --csv PROGRAM > ncu.csv",
       {"register-pressure", "bank-conflict", "uncoalesced", "tensor-core"}},
      {"perf",
       "perf mem record -p PID -- sleep 10; perf script -F +addr,+data_src > perf.txt",
       {"numa"}},
      {"samples",
       "fathom doctor --seconds 60 --record samples.jsonl",
       {"compute-bound", "host-transfer"}},
      {"metrics",
       "fathom doctor --url http://HOST:PORT/metrics --seconds 600",
       {"prefix-cache", "overload"}},
      {"experts",
       "SGLang: --expert-distribution-recorder-mode stat; vLLM: --enable-eplb with its log",
       {"moe-hotspot"}},
      {"nic",
       "nsys profile --nic-metrics=true --trace=cuda,nvtx PROGRAM; nsys export --type sqlite",
       {"rdma-jitter"}},
      {"spans", "Fathom's trace, or an OTLP export with op=prefix_lookup spans", {"cache-version"}},
  };
  return kArtifacts;
}

}  // namespace

std::vector<NextStep> NextSteps(const Findings& findings, const Seen& seen) {
  std::vector<NextStep> steps;
  for (const Artifact& artifact : Artifacts()) {
    NextStep step{.artifact = artifact.name, .command = artifact.command, .rules = {}};
    for (const Abstention& a : findings.abstained) {
      const bool settles =
          std::find(artifact.rules.begin(), artifact.rules.end(), a.id) != artifact.rules.end();
      const bool known = std::find(step.rules.begin(), step.rules.end(), a.id) != step.rules.end();
      if (settles && !known) step.rules.push_back(a.id);
    }
    if (seen.fathom && step.artifact == "trace") {
      step.artifact = "fathom_trace";
      step.command = "fathom serve MODEL --trace trace.json; ...load...";
    }
    if (!step.rules.empty()) steps.push_back(std::move(step));
  }
  std::stable_sort(steps.begin(), steps.end(), [](const NextStep& a, const NextStep& b) {
    return a.rules.size() > b.rules.size();
  });
  return steps;
}

std::string NextStepsText(const std::vector<NextStep>& steps, const Seen& seen, Language language) {
  if (steps.empty()) return "";
  std::string out =
      fmt::format("\n{}\n", Say(language, seen.gpu ? "next.title" : "next.title.no_gpu"));
  for (const NextStep& step : steps) {
    out += fmt::format("  {}\n    {}\n    {}{}\n",
                       Say(language, fmt::format("next.{}", step.artifact)), step.command,
                       Say(language, "next.settles"), fmt::join(step.rules, ", "));
  }
  return out;
}

nlohmann::ordered_json NextStepsJson(const std::vector<NextStep>& steps, Language language) {
  auto out = nlohmann::ordered_json::array();
  for (const NextStep& step : steps) {
    out.push_back({{"artifact", step.artifact},
                   {"what", Say(language, fmt::format("next.{}", step.artifact))},
                   {"command", step.command},
                   {"rules", step.rules}});
  }
  return out;
}

}  // namespace fathom::diagnose
