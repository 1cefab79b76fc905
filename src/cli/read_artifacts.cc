#include "cli/read_artifacts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>

#include "cli/terminal.h"
#include "diagnose/readers/reader.h"
#include "diagnose/scrape.h"

namespace fathom::cli {
namespace {

bool IsUrl(std::string_view path) {
  return path.starts_with("http://") || path.starts_with("https://");
}

Result<diagnose::Input> ScrapeInput(const std::string& path, int seconds) {
  FATHOM_ASSIGN_OR_RETURN(const Url url, ParseUrl(path));
  const bool terminal = IsTerminal(STDERR_FILENO);
  FATHOM_ASSIGN_OR_RETURN(
      diagnose::ScrapeSeries series, diagnose::ScrapeFor(url, seconds, [&](int second) {
        if (!terminal) return;
        fmt::print(stderr, "\r\033[Kscraping {} {} of {} s", path, second, seconds);
        std::fflush(stderr);
      }));
  if (terminal) fmt::print(stderr, "\r\033[K");
  if (series.failed > 0) {
    fmt::print(stderr, "fathom: {} of {} scrapes failed, the last: {}\n", series.failed,
               series.failed + series.scraped, series.last_failure);
  }
  return diagnose::Input::FromMemory(path, std::move(series.text));
}

}  // namespace

Result<diagnose::Timeline> ReadArtifacts(const std::vector<std::string>& paths,
                                         int scrape_seconds) {
  if (scrape_seconds > 0 && std::none_of(paths.begin(), paths.end(), IsUrl)) {
    return Err(Code::kInvalidArgument,
               "--for {}: expected an http:// address to scrape, found none", scrape_seconds);
  }
  // The same recording twice would count each of its steps twice.
  for (size_t i = 0; i < paths.size(); ++i) {
    std::error_code error;
    const auto same = [&](const std::string& other) {
      return other == paths[i] ||
             (!IsUrl(other) && std::filesystem::equivalent(other, paths[i], error));
    };
    if (std::any_of(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return Err(Code::kInvalidArgument, "{}: given twice", paths[i]);
    }
  }
  const auto open = [&](const std::string& file) {
    return scrape_seconds > 0 && IsUrl(file) ? ScrapeInput(file, scrape_seconds)
                                             : diagnose::Input::Open(file);
  };
  if (!IsTerminal(STDERR_FILENO)) return diagnose::ReadArtifacts(paths, {}, open);
  std::string shown;
  auto timeline = diagnose::ReadArtifacts(
      paths,
      [&](std::string_view path, double share) {
        std::string line = fmt::format("reading {} {:.0f} %", path, share * 100);
        if (line == shown) return;
        fmt::print(stderr, "\r\033[K{}", line);
        std::fflush(stderr);
        shown = std::move(line);
      },
      open);
  fmt::print(stderr, "\r\033[K");
  return timeline;
}

std::vector<std::string> PathsOf(const diagnose::Timeline& timeline) {
  std::vector<std::string> paths;
  for (const diagnose::Source& source : timeline.sources) paths.push_back(source.path);
  for (const diagnose::SkippedFile& file : timeline.skipped) {
    if (!file.why.empty()) paths.push_back(file.path);
  }
  return paths;
}

Status CheckOutputs(const std::vector<std::string>& outputs,
                    const std::vector<std::string>& inputs) {
  // Files need not be there yet, and may have several names.
  const auto place = [](const std::string& file) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(file, error);
    const std::filesystem::path path = std::filesystem::weakly_canonical(whole, error);
    return error ? whole : path;
  };
  const auto holds = [&](std::span<const std::string> files, const std::string& file) {
    return std::any_of(files.begin(), files.end(), [&](const std::string& other) {
      if (other.empty()) return false;
      std::error_code error;
      if (std::filesystem::is_character_file(file, error)) return false;  // /dev/null holds nothing
      if (other == file) return true;
      if (other == "-" || file == "-") return false;
      return place(other) == place(file) || std::filesystem::equivalent(other, file, error);
    });
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& output = outputs[i];
    if (output.empty()) continue;
    if (holds(std::span(outputs).first(i), output)) {
      return Err(Code::kInvalidArgument, "{}: expected another place for each form, found two",
                 output == "-" ? "standard output" : output);
    }
    if (output != "-" && holds(inputs, output)) {
      return Err(Code::kInvalidArgument, "{}: is an input, which would be overwritten", output);
    }
  }
  return {};
}

}  // namespace fathom::cli
