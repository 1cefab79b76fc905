// The one binary. Everything it can do is a subcommand (command.h); this file parses, runs the one
// that was chosen and turns its result into an exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "cli/command.h"

namespace fathom::cli {
namespace {

int ExitCodeFor(Code code) {
  return code == Code::kInternal || code == Code::kUnavailable ? kExitInternal : kExitBadInput;
}

// CLI11 would only say that a subcommand is required. Empty when `word` is one, or an option.
std::string UnknownCommand(const CLI::App& root, std::string_view word) {
  std::vector<std::string_view> known;
  for (const CLI::App* app : root.get_subcommands({})) {
    if (app->get_name() == word) return {};
    known.push_back(app->get_name());
  }
  if (word.starts_with('-')) return {};
  const std::string_view nearest = Nearest(word, known);
  return fmt::format("unknown command '{}'{}; the commands are: {}", word,
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
                     fmt::join(known, " "));
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of write(), not our death
  CLI::App root{
      "Fathom serves DeepSeek models with low, explained latency, and says where every millisecond "
      "goes."};
  root.name("fathom");
  root.set_version_flag("--version", "fathom " FATHOM_VERSION);
  root.require_subcommand(1);
  root.get_formatter()->column_width(36);

  Commands commands(root);
  AddAll(commands);

  if (argc == 1) {
    fmt::print("{}", root.help());
    return kExitBadInput;
  }
  if (const std::string error = UnknownCommand(root, argv[1]); !error.empty()) {
    fmt::print(stderr, "fathom: {}\n", error);
    return kExitBadInput;
  }
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? kExitDone : kExitBadInput;
  }
  const Result<int> result = commands.chosen()();
  if (result) return *result;
  fmt::print(stderr, "fathom: {}\n", result.error().message);
  return ExitCodeFor(result.error().code);
}

}  // namespace
}  // namespace fathom::cli

int main(int argc, char** argv) {
  try {
    return fathom::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fathom: internal error: %s\n", error.what());
    return fathom::cli::kExitInternal;
  }
}
