// fathom diagnose FILE...: reads any mix of artifacts and says what made serving slow.
#include <unistd.h>

#include "base/mapped_file.h"
#include "base/write_file.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/diagnosis.h"
#include "diagnose/readers/reader.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/report/html_report.h"
#include "diagnose/report/json_report.h"
#include "diagnose/report/markdown_report.h"
#include "diagnose/report/text_report.h"
#include "diagnose/rules/explain.h"

namespace fathom::cli {
namespace {

struct DiagnoseOptions {
  std::vector<std::string> files;
  std::string json;
  std::string markdown;
  std::string html;
  std::string explain;
  std::string language = "en";
  std::string thresholds;
  std::string fail_on;
};

Result<diagnose::Thresholds> LoadThresholds(const std::string& path) {
  if (path.empty()) return diagnose::Thresholds::Default();
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  auto thresholds = diagnose::Thresholds::FromJson(file.text());
  if (!thresholds) return tl::unexpected(WithContext(thresholds.error(), path));
  return thresholds;
}

// Reading a large trace takes seconds: a line that is written over shows how far it is.
Result<diagnose::Timeline> Read(const std::vector<std::string>& files) {
  if (!IsTerminal(STDERR_FILENO)) return diagnose::ReadArtifacts(files);
  auto timeline = diagnose::ReadArtifacts(files, [](std::string_view path, double share) {
    fmt::print(stderr, "\r\033[Kreading {} {:.0f} %", path, share * 100);
  });
  fmt::print(stderr, "\r\033[K");
  return timeline;
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
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline timeline, Read(options.files));
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
  // A machine form on standard output leaves no room for the human one.
  if (options.json != "-" && options.markdown != "-" && options.html != "-") {
    const Style style = StyleFor(STDOUT_FILENO);
    FATHOM_TRY(WriteFile("-", diagnose::TextReport(diagnosis, language,
                                                   {style.bold, style.dim, style.red, style.yellow,
                                                    style.green, style.reset})));
  }
  if (options.fail_on.empty()) return kExitDone;
  const auto limit =
      options.fail_on == "severe" ? diagnose::Severity::kSevere : diagnose::Severity::kWarn;
  for (const diagnose::Finding& finding : diagnosis.findings.findings) {
    if (finding.severity >= limit) return kExitGateFailed;
  }
  return kExitDone;
}

}  // namespace

void AddDiagnose(Commands& commands) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* app = commands.Add(
      "diagnose", "Finds what made serving slow in traces, logs and metrics that you already have",
      [options] { return Diagnose(*options); });
  app->add_option("files", options->files, "Artifacts, or folders of them; - reads standard input");
  app->add_option("--explain", options->explain,
                  "Print what a rule looks for, its limits and fixes, e.g. kv-copy");
  app->add_option("--json", options->json,
                  "Write the report as JSON (fathom.report/1); - for stdout");
  app->add_option("--md", options->markdown, "Write the report as Markdown; - for stdout");
  app->add_option("--html", options->html,
                  "Write the report as one HTML file that opens offline; - for stdout");
  app->add_option("--lang", options->language, "Language of the report: en or zh")
      ->capture_default_str();
  app->add_option("--thresholds", options->thresholds,
                  "JSON file that changes limits by name, e.g. {\"kv-copy.warn_share\": 0.05}");
  app->add_option("--fail-on", options->fail_on,
                  "Exit with 1 when there is a finding of this severity (warn, severe) or above");
}

}  // namespace fathom::cli
