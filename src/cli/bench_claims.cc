// fathom bench claims: the handbook's claims about attention kernels beside what checking them
// gives.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/write_file.h"
#include "cli/attention_results.h"
#include "cli/command.h"
#include "ops/cuda/claims.h"

namespace fathom::cli {
namespace {

using nlohmann::json;

struct BenchClaimsOptions {
  std::string results = "bench/results";
  bool results_given = false;
  std::vector<std::string> only;
  std::string json;
};

// The newest file (names start with the date) that ends so; empty when there is none.
std::string Newest(const std::string& directory, std::string_view suffix) {
  std::string newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path().string();
    if (path.ends_with(suffix) && path > newest) newest = path;
  }
  return newest;
}

Status ReadAttention(const std::string& path, ops::ClaimEvidence* evidence) {
  AttentionResults results;
  FATHOM_TRY(LoadAttentionResults(path, &results));
  for (const AttentionRow& row : results.rows) {
    if (row.who == "fathom") {
      evidence->fathom_us.emplace(row.shape, row.us);
    } else if (!row.who.starts_with("fathom")) {
      double& best = evidence->best_peer_us.try_emplace(row.shape, row.us).first->second;
      best = std::min(best, row.us);
    }
  }
  evidence->gather_gb_per_s = results.gather_gb_per_s;
  evidence->stride_clocks = results.stride_clocks;
  evidence->attention_source = path;
  return {};
}

// Medians of Google Benchmark's BM_Rope<NAME>/2048.
Status ReadRope(const std::string& path, ops::ClaimEvidence* evidence) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const json document = json::parse(file.text(), nullptr, false);
  if (!document.is_object() || !document.contains("benchmarks") ||
      !document["benchmarks"].is_array()) {
    return Err(Code::kInvalidArgument, "{}: expected Google Benchmark's JSON", path);
  }
  for (const json& row : document["benchmarks"]) {
    const std::string name = row.value("run_name", "");
    const size_t open = name.find('<');
    const size_t close = name.find(">/2048");
    if (open == std::string::npos || close == std::string::npos ||
        row.value("aggregate_name", "") != "median") {
      continue;
    }
    evidence->rope_ns[name.substr(open + 1, close - open - 1)] = row.value("ns_per_token", 0.0);
  }
  evidence->rope_source = path;
  return {};
}

// Text in lines of at most `width` columns behind a label.
void PrintWrapped(std::string_view label, std::string_view text) {
  constexpr size_t kWidth = 88;
  fmt::print("      {:<7}", label);
  size_t column = 0;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && column + word.size() + 1 > kWidth) {
      fmt::print("\n             ");
      column = 0;
    }
    fmt::print("{}{}", column > 0 ? " " : "", word);
    column += word.size() + 1;
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  fmt::print("\n");
}

std::vector<std::string> Sources(const ops::ClaimEvidence& evidence) {
  std::vector<std::string> files;
  for (const std::string& path : {evidence.attention_source, evidence.rope_source}) {
    if (!path.empty()) files.push_back(path);
  }
  return files;
}

void PrintSources(const BenchClaimsOptions& options, const ops::ClaimEvidence& evidence) {
  const std::vector<std::string> files = Sources(evidence);
  if (files.empty()) {
    fmt::print(
        "no kept measurements (*-attention.json, *-rope.json) in {}; --results names "
        "another directory\n\n",
        options.results);
  } else {
    fmt::print("measurements read: {}\n\n", fmt::join(files, ", "));
  }
}

Result<int> BenchClaims(const BenchClaimsOptions& options) {
  ops::ClaimEvidence evidence;
  if (options.results_given && !std::filesystem::is_directory(options.results)) {
    return Err(Code::kNotFound, "--results {}: expected a directory of kept measurements",
               options.results);
  }
  if (const std::string path = Newest(options.results, "-attention.json"); !path.empty()) {
    FATHOM_TRY(ReadAttention(path, &evidence));
  }
  if (const std::string path = Newest(options.results, "-rope.json"); !path.empty()) {
    FATHOM_TRY(ReadRope(path, &evidence));
  }
  FATHOM_ASSIGN_OR_RETURN(std::vector<ops::ClaimRow> rows, ops::CheckClaims(evidence));
  for (const std::string& id : options.only) {
    const auto same = [&id](const ops::ClaimRow& row) { return row.id == id; };
    if (std::none_of(rows.begin(), rows.end(), same)) {
      std::string known;
      for (const ops::ClaimRow& row : rows) known += " " + row.id;
      return Err(Code::kInvalidArgument, "claim {}: expected one of{}", id, known);
    }
  }
  if (options.json != "-") PrintSources(options, evidence);
  auto table = nlohmann::ordered_json::array();
  for (const ops::ClaimRow& row : rows) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), row.id) == options.only.end()) {
      continue;
    }
    table.push_back({{"id", row.id},
                     {"claim", row.claim},
                     {"verdict", row.verdict},
                     {"check", row.check},
                     {"state", ops::NameOf(row.state)},
                     {"figure", row.figure},
                     {"source", row.source}});
    if (options.json == "-") continue;
    fmt::print("{:<5} {}: {}\n", row.id, ops::NameOf(row.state), row.claim);
    PrintWrapped("judged", row.verdict);
    PrintWrapped("found", row.figure);
    PrintWrapped("check", row.check + (row.source == "computed" ? "" : "; " + row.source));
  }
  if (!options.json.empty()) {
    const nlohmann::ordered_json document = {{"schema", "fathom.bench_claims/1"},
                                             {"results", options.results},
                                             {"read", Sources(evidence)},
                                             {"claims", table}};
    FATHOM_TRY(WriteFile(options.json, document.dump(2) + "\n"));
  }
  return kExitDone;
}

}  // namespace

void AddBenchClaims(Commands& commands) {
  auto options = std::make_shared<BenchClaimsOptions>();
  CLI::App* app = commands.Group("bench", "Benchmarks")
                      .Add("claims", "The handbook's claims on attention beside what is found",
                           [options] { return BenchClaims(*options); });
  app->add_option_function<std::string>(
         "--results",
         [options](const std::string& directory) {
           options->results = directory;
           options->results_given = true;
         },
         "Directory of kept measurements; the newest *-attention.json and *-rope.json count")
      ->default_str(options->results);
  app->add_option("--only", options->only, "Only these claims (A8,B7)")->delimiter(',');
  app->add_option("--json", options->json, "Also write JSON there; - is standard output");
}

}  // namespace fathom::cli
