// fathom scrub FILE...: copies of artifacts that may be shown to strangers.
#include "diagnose/scrub.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/strings.h"
#include "cli/command.h"

namespace fathom::cli {
namespace {

namespace fs = std::filesystem;

struct ScrubOptions {
  std::vector<std::string> files;
  std::string output;
};

// trace.json.gz -> trace.scrubbed.json; the copy is not compressed.
std::string ScrubbedName(const std::string& path) {
  fs::path name = fs::path(path).filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  return name.stem().string() + ".scrubbed" + name.extension().string();
}

// --output names the copy of one file, or a folder for any number.
std::string OutputFor(const std::string& path, const ScrubOptions& options) {
  std::error_code error;
  if (options.output.empty()) return (fs::path(path).parent_path() / ScrubbedName(path)).string();
  if (!fs::is_directory(options.output, error)) return options.output;
  return (fs::path(options.output) / ScrubbedName(path)).string();
}

Result<int> Scrub(const ScrubOptions& options) {
  std::error_code error;
  if (options.files.size() > 1 && !options.output.empty() &&
      !fs::is_directory(options.output, error)) {
    return Err(Code::kInvalidArgument,
               "--output {}: expected an existing folder for {} files, found none", options.output,
               options.files.size());
  }
  for (const std::string& path : options.files) {
    const std::string output = OutputFor(path, options);
    FATHOM_ASSIGN_OR_RETURN(const diagnose::ScrubSummary summary,
                            diagnose::ScrubFile(path, output));
    fmt::print("{} ({}) -> {}, {}\n", path, summary.format, output,
               HumanBytes(summary.bytes_written));
    for (size_t i = 0; i < diagnose::kNumSecrets; ++i) {
      if (summary.replaced[i] == 0) continue;
      fmt::print("  {:>9}  {}\n", summary.replaced[i],
                 diagnose::SecretName(static_cast<diagnose::Secret>(i)));
    }
    if (summary.lines_removed > 0) {
      fmt::print("  {:>9}  lines of program output\n", summary.lines_removed);
    }
    fmt::print("  checked: none of {} learned names is left\n", summary.names_learned);
  }
  return kExitDone;
}

}  // namespace

void AddScrub(Commands& commands) {
  auto options = std::make_shared<ScrubOptions>();
  CLI::App* app = commands.Add(
      "scrub", "Removes paths, hosts, users, ids, credentials and prompts from an artifact",
      [options] { return Scrub(*options); });
  app->add_option("files", options->files, "Artifacts that `fathom diagnose` reads")->required();
  app->add_option("-o,--output", options->output,
                  "The copy, or an existing folder for it (FILE.scrubbed.EXT beside each file)");
}

}  // namespace fathom::cli
