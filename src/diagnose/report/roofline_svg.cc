// The roofline (Williams, Waterman and Patterson, 2009): work a second over work a byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/strings.h"
#include "diagnose/report/colours.h"
#include "diagnose/report/describe.h"
#include "diagnose/report/picture.h"
#include "diagnose/report/picture_page.h"
#include "diagnose/report/svg.h"
#include "diagnose/rules/rule.h"
#include "diagnose/understand/roofline.h"

namespace fathom::diagnose {
namespace {

constexpr double kLeft = 84;
constexpr double kPlotHeight = 520;
constexpr size_t kMostPoints = 20;
constexpr std::string_view kGridLine = "#e3e7ec";

// A logarithmic axis.
struct LogAxis {
  double low = 0, high = 0;  // decimal logarithms
  double from = 0, to = 0;   // pixels

  void Cover(double value) {
    low = std::min(low, std::log10(value));
    high = std::max(high, std::log10(value));
  }
  double At(double value) const {
    return from + (to - from) * (std::log10(value) - low) / (high - low);
  }
  double ValueAt(double pixel) const {
    return std::pow(10, low + (pixel - from) / (to - from) * (high - low));
  }
  // Powers of ten; 2 and 5 times them too where there would be few.
  std::vector<double> Marks() const {
    std::vector<double> marks;
    for (double e = std::floor(low); e <= high; ++e) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        if (digit != 1.0 && high - low > 2.5) continue;
        const double value = digit * std::pow(10, e);
        if (std::log10(value) >= low - 1e-9 && std::log10(value) <= high + 1e-9) {
          marks.push_back(value);
        }
      }
    }
    return marks;
  }
};

struct Plot {
  LogAxis x, y;
  double top = 0, bottom = 0;
};

double Intensity(const RooflinePoint& p) { return p.cost.flops / p.cost.bytes; }
double Tflops(const RooflinePoint& p) { return p.cost.flops / p.seconds / 1e12; }

void DrawAxes(Svg& svg, const Plot& plot, Language language) {
  for (const double value : plot.x.Marks()) {
    const double x = plot.x.At(value);
    svg.Line(x, plot.top, x, plot.bottom, kGridLine);
    svg.Text(x, plot.bottom + 14, fmt::format("{:g}", value),
             {.anchor = Anchor::kMiddle, .fill = kSoftInk});
  }
  for (const double value : plot.y.Marks()) {
    const double y = plot.y.At(value);
    svg.Line(plot.x.from, y, plot.x.to, y, kGridLine);
    svg.Text(plot.x.from - 8, y, fmt::format("{:g}", value),
             {.anchor = Anchor::kEnd, .fill = kSoftInk});
  }
  svg.Line(plot.x.from, plot.top, plot.x.from, plot.bottom, kSoftInk);
  svg.Line(plot.x.from, plot.bottom, plot.x.to, plot.bottom, kSoftInk);
  svg.Text((plot.x.from + plot.x.to) / 2, plot.bottom + 34, Say(language, "html.intensity"),
           {.anchor = Anchor::kMiddle});
  svg.Text(kPageMargin - 2, (plot.top + plot.bottom) / 2, "TFLOP/s",
           {.anchor = Anchor::kMiddle, .rotate = -90});
}

void DrawRoofs(Svg& svg, const Plot& plot, const cost::Hardware& hardware) {
  const double bandwidth = hardware.memory_bytes_per_s / 1e12;  // TFLOP/s at one FLOP a byte
  const double peak = hardware.bf16_flops_per_s / 1e12;
  const double ridge = peak / bandwidth;
  // From where the slope enters the plot.
  const double start = std::max(std::pow(10, plot.x.low), std::pow(10, plot.y.low) / bandwidth);
  const double x1 = plot.x.At(start);
  const double y1 = plot.y.At(start * bandwidth);
  const double x2 = plot.x.At(ridge);
  const double y2 = plot.y.At(peak);
  svg.Line(x1, y1, x2, y2, kInk, 2);
  svg.Line(x2, y2, plot.x.to, y2, kInk, 2);
  svg.Text(plot.x.to - 4, y2 - 10, fmt::format("{:.0f} TFLOP/s bf16", peak),
           {.anchor = Anchor::kEnd});
  const double middle_x = (x1 + x2) / 2;
  const double middle_y = (y1 + y2) / 2;
  const double angle = std::atan2(y2 - y1, x2 - x1);
  svg.Text(middle_x + 12 * std::sin(angle), middle_y - 12 * std::cos(angle),
           fmt::format("{:.0f} GB/s", hardware.memory_bytes_per_s / 1e9),
           {.anchor = Anchor::kMiddle, .rotate = angle * 180 / M_PI});
}

struct Box {
  double x, y, w, h;
  bool Overlaps(const Box& o) const {
    return x < o.x + o.w && o.x < x + w && y < o.y + o.h && o.y < y + h;
  }
};

// Numbers beside the points, each where no earlier one, no other point and no roof is.
void DrawPoints(Svg& svg, const Plot& plot, std::span<const RooflinePoint> points,
                const std::optional<cost::Hardware>& hardware) {
  std::vector<Box> taken;
  if (hardware) {
    constexpr double kStep = 4;
    for (double x = plot.x.from; x <= plot.x.to; x += kStep) {
      const double intensity = plot.x.ValueAt(x);
      const double roof =
          std::min(hardware->bf16_flops_per_s, intensity * hardware->memory_bytes_per_s) / 1e12;
      taken.push_back({x - kStep / 2, plot.y.At(roof) - kStep / 2, kStep, kStep});
    }
  }
  for (const RooflinePoint& p : points) {
    taken.push_back({plot.x.At(Intensity(p)) - 6, plot.y.At(Tflops(p)) - 6, 12, 12});
  }
  for (const RooflinePoint& p : points) {
    const double x = plot.x.At(Intensity(p));
    const double y = plot.y.At(Tflops(p));
    const std::string tip = fmt::format("{} x {}: {}, {:.3g} TFLOP/s", p.count, p.name,
                                        Duration(p.seconds * 1e9), Tflops(p));
    if (p.phase == Phase::kDecode) {
      svg.Circle(x, y, 6, ColourOf(p.kind), tip);
    } else {
      svg.Triangle(x, y, 7, ColourOf(p.kind), tip);
    }
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const double x = plot.x.At(Intensity(points[i]));
    const double y = plot.y.At(Tflops(points[i]));
    const std::string label = std::to_string(i + 1);
    const double w = TextWidth(label, 11);
    const Box places[] = {{x + 9, y - 6, w, 12},      {x - 9 - w, y - 6, w, 12},
                          {x - w / 2, y - 21, w, 12}, {x - w / 2, y + 9, w, 12},
                          {x + 9, y - 19, w, 12},     {x - 9 - w, y - 19, w, 12},
                          {x + 24, y - 6, w, 12},     {x - 24 - w, y - 6, w, 12}};
    for (const Box& place : places) {
      const bool free = std::none_of(taken.begin(), taken.end(),
                                     [&](const Box& box) { return box.Overlaps(place); });
      if (!free) continue;
      svg.Text(place.x, place.y + 6, label, {.size = 11});
      taken.push_back(place);
      break;
    }
  }
}

double DrawLegend(Svg& svg, double y, std::span<const RooflinePoint> points, Language language) {
  std::vector<std::pair<KernelClass, Phase>> groups;
  for (const RooflinePoint& p : points) {
    const std::pair group{p.kind, p.phase};
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  double x = kLeft;
  for (const auto& [kind, phase] : groups) {
    if (phase == Phase::kDecode) {
      svg.Circle(x, y, 6, ColourOf(kind));
    } else {
      svg.Triangle(x, y, 7, ColourOf(kind));
    }
    const std::string label =
        fmt::format("{}, {}", ClassWord(language, kind), PhaseWord(language, phase));
    svg.Text(x + 12, y, label);
    x += TextWidth(label, 12) + 42;
  }
  return y + 26;
}

double DrawTable(Svg& svg, double y, std::span<const RooflinePoint> points,
                 const std::optional<cost::Hardware>& hardware, Language language) {
  constexpr double kColumns[] = {
      kPageMargin + 24, kPageMargin + 34, 640, 730, 850, 960, 1090, 1176};
  const std::string heads[] = {"#",
                               Say(language, "html.roofline.call"),
                               Say(language, "report.phase"),
                               Say(language, "html.roofline.count"),
                               Say(language, "html.roofline.time"),
                               "GB/s",
                               "TFLOP/s",
                               Say(language, "html.roofline.share")};
  const auto cell = [&](size_t column, std::string_view text, std::string_view fill) {
    svg.Text(kColumns[column], y, text,
             {.anchor = column == 1 ? Anchor::kStart : Anchor::kEnd, .fill = fill});
  };
  for (size_t i = 0; i < std::size(heads); ++i) cell(i, heads[i], kSoftInk);
  y += 20;
  for (size_t i = 0; i < points.size(); ++i) {
    const RooflinePoint& p = points[i];
    std::string share = "-";
    if (hardware) {
      const double least =
          cost::RooflineSeconds(p.cost, hardware->memory_bytes_per_s, hardware->bf16_flops_per_s);
      share = fmt::format("{:.0f}%", 100 * least / p.seconds);
    }
    const std::string texts[] = {std::to_string(i + 1),
                                 FitText(p.name, 520, 12),
                                 PhaseWord(language, p.phase),
                                 std::to_string(p.count),
                                 Duration(p.seconds * 1e9),
                                 fmt::format("{:.0f}", p.cost.bytes / p.seconds / 1e9),
                                 fmt::format("{:.3g}", Tflops(p)),
                                 share};
    for (size_t column = 0; column < std::size(texts); ++column) cell(column, texts[column], kInk);
    y += 19;
  }
  return y;
}

}  // namespace

std::string RooflineSvg(const Diagnosis& d, Language language) {
  Roofline roofline = MakeRoofline(*d.index, d.steps);
  std::erase_if(roofline.points, [](const RooflinePoint& p) {
    return p.seconds <= 0 || p.cost.bytes <= 0 || p.cost.flops <= 0;
  });
  const std::string title = Say(language, "html.roofline");
  Svg svg(kPageWidth, title, std::string(LanguageName(language)));
  const auto& hardware = roofline.hardware;
  std::string note = Say(language, "html.roofline.unknown");
  if (roofline.points.empty()) {
    note = Say(language, "html.roofline.missing");
  } else if (hardware) {
    note =
        Say(language, Text{"html.roofline.roofs",
                           {{"gpu", std::string(hardware->name)},
                            {"bw", fmt::format("{:.0f}", hardware->memory_bytes_per_s / 1e9)},
                            {"tflops", fmt::format("{:.0f}", hardware->bf16_flops_per_s / 1e12)}}});
  }
  double y = DrawHeading(svg, title, note);
  if (roofline.points.empty()) return svg.Finish(y);
  const std::span<const RooflinePoint> points(roofline.points.data(),
                                              std::min(roofline.points.size(), kMostPoints));
  Plot plot{.x = {.low = 1e9, .high = -1e9, .from = kLeft, .to = kPageWidth - kPageMargin},
            .y = {.low = 1e9, .high = -1e9, .from = y + kPlotHeight, .to = y},
            .top = y,
            .bottom = y + kPlotHeight};
  for (const RooflinePoint& p : points) {
    // Room for the marks: none lies on an edge.
    for (const double margin : {0.5, 2.0}) {
      plot.x.Cover(Intensity(p) * margin);
      plot.y.Cover(Tflops(p) * margin);
    }
  }
  if (hardware) {
    const double peak = hardware->bf16_flops_per_s;
    const double ridge = peak / hardware->memory_bytes_per_s;
    plot.y.Cover(peak / 1e12 * 1.6);
    plot.x.Cover(ridge * 4);
    plot.x.Cover(ridge / 10);
    plot.y.Cover(std::pow(10, plot.x.low) * hardware->memory_bytes_per_s / 1e12);
  }
  DrawAxes(svg, plot, language);
  if (hardware) DrawRoofs(svg, plot, *hardware);
  DrawPoints(svg, plot, points, hardware);
  y = DrawLegend(svg, plot.bottom + 62, points, language);
  y = DrawTable(svg, y + 12, points, hardware, language);
  return svg.Finish(y + 8);
}

}  // namespace fathom::diagnose
