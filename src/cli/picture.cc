// fathom heatmap, roofline, flame: single pictures as HTML, SVG or PNG.
#include "diagnose/report/picture.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "base/write_file.h"
#include "cli/command.h"
#include "cli/read_artifacts.h"
#include "diagnose/diagnosis.h"
#include "diagnose/report/html_report.h"
#include "diagnose/report/png.h"

namespace fathom::cli {
namespace {

using diagnose::AddressHeatMap;
using diagnose::Diagnosis;
using diagnose::Language;
using diagnose::Picture;

enum class Format { kHtml, kSvg, kPng };

struct PictureOptions {
  std::vector<std::string> files;
  std::string out;
  std::string format;
  std::string language = "en";
  std::string page_map;  // heatmap
  std::string value;     // heatmap with a page map
};

// --format, else the extension of the output file.
Result<Format> FormatOf(const PictureOptions& options) {
  std::string name = options.format;
  if (name.empty() && options.out != "-") {
    name = std::filesystem::path(options.out).extension().string();
    if (!name.empty()) name.erase(0, 1);
  }
  if (name == "html") return Format::kHtml;
  if (name == "svg") return Format::kSvg;
  if (name == "png") return Format::kPng;
  if (!options.format.empty()) {
    return Err(Code::kInvalidArgument, "--format {}: expected html, svg or png", options.format);
  }
  return Err(
      Code::kInvalidArgument,
      "-o {}: expected a file that ends in .html, .svg or .png, or --format html, svg or png",
      options.out);
}

Status WriteSvg(const std::string& svg, Format format, Language language, const std::string& path) {
  if (format == Format::kSvg) return WriteFile(path, svg);
  FATHOM_ASSIGN_OR_RETURN(const std::string png, diagnose::PngFromSvg(svg, language));
  return WriteFile(path, png);
}

// A picture that says that it is empty is written, and said here too.
void SayMissing(Language language, std::string_view key) {
  fmt::print(stderr, "fathom: {}\n", diagnose::Say(language, key));
}

std::string SvgOf(const Diagnosis& diagnosis, Language language, Picture picture) {
  switch (picture) {
    case Picture::kHeatMap:
      return diagnose::HeatMapSvg(diagnosis, language);
    case Picture::kRoofline:
      return diagnose::RooflineSvg(diagnosis, language);
    default:
      return diagnose::FlameSvg(diagnosis, language);
  }
}

Status WriteAddressMap(const PictureOptions& options, const diagnose::Timeline& timeline,
                       Format format, Language language) {
  if (!options.value.empty() && options.value != "accesses" && options.value != "latency") {
    return Err(Code::kInvalidArgument, "--value {}: expected accesses or latency", options.value);
  }
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(options.page_map));
  auto page_map = diagnose::ParsePageMap(file.text());
  if (!page_map) return tl::unexpected(WithContext(page_map.error(), options.page_map));
  auto map = diagnose::MakeAddressHeatMap(timeline, *page_map, options.value == "latency");
  if (!map) return tl::unexpected(WithContext(map.error(), options.page_map));
  if (format == Format::kHtml) {
    return WriteFile(options.out, diagnose::HtmlReport(*map, language));
  }
  return WriteSvg(diagnose::AddressMapSvg(*map, language), format, language, options.out);
}

Result<int> WritePicture(const PictureOptions& options, Picture picture) {
  FATHOM_ASSIGN_OR_RETURN(const Language language, diagnose::LanguageFromName(options.language));
  FATHOM_ASSIGN_OR_RETURN(const Format format, FormatOf(options));
  if (!options.value.empty() && options.page_map.empty()) {
    return Err(Code::kInvalidArgument, "--value {}: expected --page-map beside it", options.value);
  }
  if (options.files.empty() && options.page_map.empty()) {
    return Err(Code::kInvalidArgument, "expected artifacts to read, found none");
  }
  diagnose::Timeline timeline;
  if (!options.files.empty()) {
    FATHOM_ASSIGN_OR_RETURN(timeline, ReadArtifacts(options.files));
  }
  std::vector<std::string> inputs = PathsOf(timeline);
  inputs.push_back(options.page_map);
  FATHOM_TRY(CheckOutputs({options.out}, inputs));
  if (!options.page_map.empty()) {
    FATHOM_TRY(WriteAddressMap(options, timeline, format, language));
    return kExitDone;
  }
  if (picture == Picture::kHeatMap && !timeline.access_events.empty()) {
    SayMissing(language, "html.address.missing");
  }
  const Diagnosis diagnosis =
      diagnose::Diagnose(std::move(timeline), diagnose::Thresholds::Default());
  if (format == Format::kHtml) {
    FATHOM_TRY(WriteFile(options.out, diagnose::HtmlReport(diagnosis, language, picture)));
  } else {
    FATHOM_TRY(WriteSvg(SvgOf(diagnosis, language, picture), format, language, options.out));
  }
  return kExitDone;
}

CLI::App* AddPicture(Commands& commands, const char* name, const char* description, Picture picture,
                     const std::shared_ptr<PictureOptions>& options) {
  CLI::App* app = commands.Add(name, description,
                               [options, picture] { return WritePicture(*options, picture); });
  app->add_option("files", options->files, "Artifacts, or folders of them");
  app->add_option("-o,--output", options->out,
                  "The file to write: .html, .svg or .png; - for stdout (with --format)")
      ->required();
  app->add_option("--format", options->format, "html, svg or png, whatever the file is called");
  app->add_option("--lang", options->language, "Language: en or zh")->capture_default_str();
  return app;
}

}  // namespace

void AddPictures(Commands& commands) {
  const auto heat = std::make_shared<PictureOptions>();
  CLI::App* app = AddPicture(commands, "heatmap", "Draws GPU time by token, layer and kernel class",
                             Picture::kHeatMap, heat);
  app->add_option("--page-map", heat->page_map,
                  "JSON file that gives tokens or addresses a memory channel and bank: draws token "
                  "x channel x bank instead");
  app->add_option("--value", heat->value,
                  "With --page-map: accesses (default) or their mean latency");
  AddPicture(commands, "roofline", "Draws attention and matrix products under the GPU's roofs",
             Picture::kRoofline, std::make_shared<PictureOptions>());
  AddPicture(commands, "flame", "Draws CPU stacks as a flame graph", Picture::kFlame,
             std::make_shared<PictureOptions>());
}

}  // namespace fathom::cli
