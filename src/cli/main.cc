// The one binary. Everything it can do is a subcommand (command.h); this file parses, runs the one
// that was chosen and turns its result into an exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/strings.h"
#include "cli/command.h"

namespace fathom::cli {
namespace {

int ExitCodeFor(Code code) { return code == Code::kInternal ? kExitInternal : kExitBadInput; }

// What the command line holds that no option, file or command takes: CLI11 keeps that aside and
// may first report something else, such as an option that is missing because its name was misspelt.
// Empty when there is nothing.
std::string Unexpected(const CLI::App& root) {
  const std::vector<std::string> left = root.remaining(true);
  const auto word = std::find_if(left.begin(), left.end(),
                                 [](const std::string& argument) { return argument != "--"; });
  if (word == left.end()) return {};
  const CLI::App* app = &root;
  std::string command = root.get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  std::vector<std::string> known;
  const bool is_option = word->size() > 1 && word->front() == '-';
  const std::string name = word->substr(0, word->find('='));
  if (is_option) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& n : option->get_snames()) known.push_back("-" + n);
      for (const std::string& n : option->get_lnames()) known.push_back("--" + n);
    }
  } else {
    for (const CLI::App* sub : app->get_subcommands({})) known.push_back(sub->get_name());
  }
  const std::string_view nearest = Nearest(name, {known.begin(), known.end()});
  const std::string hint =
      nearest.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", nearest);
  if (is_option) {
    return fmt::format("unknown option '{}'{}; {} --help lists the options", name, hint, command);
  }
  if (known.empty()) {
    return fmt::format("unexpected argument '{}'; {} --help says what is taken", *word, command);
  }
  return fmt::format("unknown command '{}'{}; the commands of {} are: {}", name, hint, command,
                     fmt::join(known, " "));
}

// What CLI11 says, and what it leaves out: the kind of number that an option takes, and where its
// help is.
std::string Explained(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* app = &root;
  std::string command = root.get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
      !app->get_subcommands({}).empty()) {
    std::vector<std::string> known;
    for (const CLI::App* sub : app->get_subcommands({})) known.push_back(sub->get_name());
    return fmt::format("a command is missing; the commands of {} are: {}", command,
                       fmt::join(known, " "));
  }
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConversionError)) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = option->get_name();
      if (text.find(": " + name + " = ") == std::string::npos) continue;
      const std::string kind = option->get_type_name();
      text = fmt::format("{} {}: expected a {}", name, fmt::join(option->results(), " "),
                         kind.starts_with("UINT")  ? "whole number from 0 on"
                         : kind.starts_with("INT") ? "whole number"
                                                   : "number");
    }
  }
  return fmt::format("{}; {} --help lists the options", text, command);
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
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error) == 0 ? kExitDone : kExitBadInput;
    const std::string unexpected = Unexpected(root);
    fmt::print(stderr, "fathom: {}\n", unexpected.empty() ? Explained(root, error) : unexpected);
    return kExitBadInput;
  }
  const Result<int> result = commands.chosen()();
  // A full disk behind standard output is an error, not a result.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "fathom: standard output: cannot write: {}\n", std::strerror(errno));
    return kExitBadInput;
  }
  if (result) return *result;
  fmt::print(stderr, "fathom: {}\n", result.error().message);
  return ExitCodeFor(result.error().code);
}

}  // namespace
}  // namespace fathom::cli

int main(int argc, char** argv) {
  try {
    return fathom::cli::Main(argc, argv);
  } catch (const std::system_error& error) {  // how fmt::print says that it cannot write
    std::fprintf(stderr, "fathom: %s\n", error.what());
    return fathom::cli::kExitBadInput;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fathom: internal error: %s\n", error.what());
    return fathom::cli::kExitInternal;
  }
}
