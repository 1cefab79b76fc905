// fathom diagnose FILE...: reads any mix of artifacts and says what made serving slow.
#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/diagnosis.h"
#include "diagnose/readers/reader.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/report/text_report.h"

namespace fathom::cli {
namespace {

struct DiagnoseOptions {
  std::vector<std::string> files;
  std::string lang = "en";
};

Result<int> Diagnose(const DiagnoseOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Language language,
                          diagnose::LanguageFromName(options.lang));
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline timeline, diagnose::ReadArtifacts(options.files));
  const diagnose::Diagnosis diagnosis =
      diagnose::Diagnose(std::move(timeline), diagnose::Thresholds::Default());
  const Style style = StyleFor(STDOUT_FILENO);
  fmt::print("{}", diagnose::TextReport(
                       diagnosis, language,
                       {style.bold, style.dim, style.red, style.yellow, style.green, style.reset}));
  return kExitDone;
}

}  // namespace

void AddDiagnose(Commands& commands) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* app = commands.Add(
      "diagnose", "Finds what made serving slow in traces, logs and metrics that you already have",
      [options] { return Diagnose(*options); });
  app->add_option("files", options->files, "Artifacts, or folders of them; - reads standard input")
      ->required();
  app->add_option("--lang", options->lang, "Language of the report: en or zh")
      ->capture_default_str();
}

}  // namespace fathom::cli
