// fathom diagnose FILE...: reads any mix of artifacts and says what made serving slow.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/mapped_file.h"
#include "base/write_file.h"
#include "cli/command.h"
#include "cli/read_artifacts.h"
#include "cli/terminal.h"
#include "diagnose/compare.h"
#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/report/compare_report.h"
#include "diagnose/report/html_report.h"
#include "diagnose/report/json_report.h"
#include "diagnose/report/markdown_report.h"
#include "diagnose/report/perfetto.h"
#include "diagnose/report/text_report.h"
#include "diagnose/rules/explain.h"

namespace fathom::cli {
namespace {

struct DiagnoseOptions {
  std::vector<std::string> files;
  std::string json;
  std::string markdown;
  std::string html;
  std::string perfetto;
  std::string explain;
  std::string language = "en";
  std::string thresholds;
  std::string fail_on;
  int scrape_seconds = 0;
};

Result<diagnose::Thresholds> LoadThresholds(const std::string& path) {
  if (path.empty()) return diagnose::Thresholds::Default();
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  auto thresholds = diagnose::Thresholds::FromJson(file.text());
  if (!thresholds) return tl::unexpected(WithContext(thresholds.error(), path));
  return thresholds;
}

Result<int> Diagnose(const DiagnoseOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Language language,
                          diagnose::LanguageFromName(options.language));
  if (!options.fail_on.empty() && options.fail_on != "warn" && options.fail_on != "severe") {
    return Err(Code::kInvalidArgument, "--fail-on {}: expected warn or severe", options.fail_on);
  }
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Thresholds thresholds,
                          LoadThresholds(options.thresholds));
  if (!options.explain.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const std::string text, diagnose::Explain(options.explain, thresholds));
    FATHOM_TRY(WriteFile("-", text));
    return kExitDone;
  }
  if (options.files.empty()) {
    return Err(Code::kInvalidArgument,
               "diagnose: expected files or folders to read, or --explain ID");
  }
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline timeline,
                          ReadArtifacts(options.files, options.scrape_seconds));
  const std::vector<std::string> outputs = {options.json, options.markdown, options.html,
                                            options.perfetto};
  std::vector<std::string> inputs = PathsOf(timeline);
  inputs.push_back(options.thresholds);
  FATHOM_TRY(CheckOutputs(outputs, inputs));
  const diagnose::Diagnosis diagnosis = diagnose::Diagnose(std::move(timeline), thresholds);
  if (!options.json.empty()) {
    FATHOM_TRY(WriteFile(options.json, diagnose::JsonReport(diagnosis, language).dump(1) + "\n"));
  }
  if (!options.markdown.empty()) {
    FATHOM_TRY(WriteFile(options.markdown, diagnose::MarkdownReport(diagnosis, language)));
  }
  if (!options.html.empty()) {
    FATHOM_TRY(WriteFile(options.html, diagnose::HtmlReport(diagnosis, language)));
  }
  if (!options.perfetto.empty()) {
    FATHOM_TRY(WriteFileInPieces(options.perfetto, [&](const WritePiece& write) {
      return diagnose::WritePerfettoTrace(diagnosis, language, write);
    }));
  }
  // A machine form on standard output leaves no room for the human one.
  if (std::find(outputs.begin(), outputs.end(), "-") == outputs.end()) {
    const Style style = StyleFor(STDOUT_FILENO);
    FATHOM_TRY(
        WriteFile("-", diagnose::TextReport(diagnosis, language,
                                            {style.bold, style.dim, style.red, style.yellow,
                                             style.green, style.reset, ColumnsOf(STDOUT_FILENO)})));
  }
  if (options.fail_on.empty()) return kExitDone;
  const auto limit =
      options.fail_on == "severe" ? diagnose::Severity::kSevere : diagnose::Severity::kWarn;
  for (const diagnose::Finding& finding : diagnosis.findings.findings) {
    if (finding.severity >= limit) return kExitGateFailed;
  }
  return kExitDone;
}

struct CompareOptions {
  bool chosen = false;
  std::string before, after;
  std::string json;
  std::string language = "en";
  std::string thresholds;
  std::string fail_over;
};

// "5%" and "5" are 0.05.
Result<double> ParsePercent(std::string_view text) {
  std::string_view number = text;
  if (number.ends_with('%')) number.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || error != std::errc() || end != number.data() + number.size() ||
      !std::isfinite(value) || value < 0) {
    return Err(Code::kInvalidArgument, "--fail-over {}: expected a percentage such as 5%", text);
  }
  return value / 100;
}

Result<int> Compare(const CompareOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Language language,
                          diagnose::LanguageFromName(options.language));
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Thresholds thresholds,
                          LoadThresholds(options.thresholds));
  double limit = INFINITY;
  if (!options.fail_over.empty()) {
    FATHOM_ASSIGN_OR_RETURN(limit, ParsePercent(options.fail_over));
  }
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline before, ReadArtifacts({options.before}));
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline after, ReadArtifacts({options.after}));
  std::vector<std::string> inputs = PathsOf(before);
  for (std::string& path : PathsOf(after)) inputs.push_back(std::move(path));
  inputs.push_back(options.thresholds);
  FATHOM_TRY(CheckOutputs({options.json}, inputs));
  const diagnose::Comparison comparison =
      diagnose::Compare(diagnose::Diagnose(std::move(before), thresholds),
                        diagnose::Diagnose(std::move(after), thresholds));
  if (!options.json.empty()) {
    FATHOM_TRY(WriteFile(options.json, diagnose::CompareJson(comparison).dump(1) + "\n"));
  }
  if (options.json != "-") FATHOM_TRY(WriteFile("-", diagnose::CompareText(comparison, language)));
  if (options.fail_over.empty()) return kExitDone;
  if (!comparison.CanTell()) {
    return Err(
        Code::kInvalidArgument,
        "--fail-over {}: expected {} steps or more of a phase and batch on both sides, found "
        "none to judge by",
        options.fail_over, diagnose::kMinSteps);
  }
  return comparison.WorstSlowdown() > limit ? kExitGateFailed : kExitDone;
}

}  // namespace

void AddDiagnose(Commands& commands) {
  auto options = std::make_shared<DiagnoseOptions>();
  auto compare = std::make_shared<CompareOptions>();
  CLI::App* app = commands.Add(
      "diagnose", "Finds what made serving slow in traces, logs and metrics that you already have",
      [options, compare] { return compare->chosen ? Compare(*compare) : Diagnose(*options); });
  app->add_option("files", options->files,
                  "Artifacts, or folders of them; - reads standard input, http://HOST:PORT/metrics "
                  "a server");
  app->add_option("--for", options->scrape_seconds,
                  "Scrape http:// inputs once a second for so many seconds (default: one scrape)")
      ->check(CLI::Range(1, 3600));
  app->add_option("--explain", options->explain,
                  "Print what a rule looks for, its limits and fixes, e.g. kv-copy");
  app->add_option("--json", options->json,
                  "Write the report as JSON (fathom.report/1); - for stdout");
  app->add_option("--md", options->markdown, "Write the report as Markdown; - for stdout");
  app->add_option("--html", options->html,
                  "Write the report as one HTML file that opens offline; - for stdout");
  app->add_option("--perfetto", options->perfetto,
                  "Write the fused timeline with findings as tracks, for ui.perfetto.dev");
  app->add_option("--lang", options->language, "Language of the report: en or zh")
      ->capture_default_str();
  app->add_option("--thresholds", options->thresholds,
                  "JSON file that changes limits by name, e.g. {\"kv-copy.warn_share\": 0.05}");
  app->add_option("--fail-on", options->fail_on,
                  "Exit with 1 when there is a finding of this severity (warn, severe) or above");

  CLI::App* sub = app->add_subcommand(
      "compare", "Two recordings side by side: what became slower, which findings went away");
  sub->callback([compare] { compare->chosen = true; });
  sub->add_option("before", compare->before, "Artifact or folder before the change")->required();
  sub->add_option("after", compare->after, "Artifact or folder after it")->required();
  sub->add_option("--json", compare->json, "Write JSON (fathom.compare/1); - for stdout");
  sub->add_option("--lang", compare->language, "Language: en or zh")->capture_default_str();
  sub->add_option("--thresholds", compare->thresholds, "JSON file that changes limits by name");
  sub->add_option("--fail-over", compare->fail_over,
                  "Exit with 1 when steps became slower by more than this, beyond noise, e.g. 5%");
}

}  // namespace fathom::cli
