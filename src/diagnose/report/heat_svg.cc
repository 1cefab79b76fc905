// Heat maps: decode steps by layer and by kernel class; tokens by memory channel and bank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/strings.h"
#include "diagnose/report/describe.h"
#include "diagnose/report/picture.h"
#include "diagnose/report/picture_page.h"
#include "diagnose/report/svg.h"
#include "diagnose/rules/rule.h"
#include "diagnose/understand/heatmap.h"

namespace fathom::diagnose {
namespace {

constexpr double kLeft = 150;   // row labels
constexpr double kRight = 130;  // the colour scale
constexpr std::string_view kLow = "#f1f3f6";
constexpr std::string_view kHigh = "#b3261e";
// Kernel classes that take less of all time have no row.
constexpr double kLeastShare = 0.002;

struct Grid {
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<double>> values;  // [rows][columns]; NaN: nothing there
  std::string row_axis, column_axis;
  std::function<std::string(double)> format;
};

// Every how many-th of `count` labels is written when they may lie `least` pixels apart.
size_t LabelStride(size_t count, double pixels_each, double least) {
  if (count < 2 || pixels_each >= least) return 1;
  const auto stride = static_cast<size_t>(std::ceil(least / pixels_each));
  for (const size_t nice : {2, 5, 10, 20, 25, 50, 100, 200, 500, 1000}) {
    if (nice >= stride) return nice;
  }
  return stride;
}

void DrawScale(Svg& svg, double y, double height, double top,
               const std::function<std::string(double)>& format) {
  constexpr int kBands = 32;
  constexpr double kBarWidth = 14;
  const double x = kPageWidth - kRight + 20;
  height = std::max(height, 60.0);
  for (int i = 0; i < kBands; ++i) {
    svg.Rect(x, y + height * i / kBands, kBarWidth, height / kBands + 0.5,
             MixColours(kLow, kHigh, 1 - (i + 0.5) / kBands));
  }
  for (const double share : {0.0, 0.5, 1.0}) {
    svg.Text(x + kBarWidth + 6, y + height * (1 - share), format(top * share),
             {.size = 11, .fill = kSoftInk});
  }
}

// Draws the grid from `y` down and returns its lower edge.
double DrawGrid(Svg& svg, double y, const Grid& grid) {
  const double plot = kPageWidth - kLeft - kRight;
  const double cell_width = plot / static_cast<double>(std::max<size_t>(grid.columns.size(), 1));
  const double cell_height =
      std::clamp(480.0 / static_cast<double>(std::max<size_t>(grid.rows.size(), 1)), 7.0, 24.0);
  double top = 0;
  for (const auto& row : grid.values) {
    for (const double value : row) top = std::isnan(value) ? top : std::max(top, value);
  }
  // Gaps between cells of a few pixels would be a pattern of their own.
  const double gap = cell_width < 8 ? -0.3 : 0.6;
  const size_t row_stride = LabelStride(grid.rows.size(), cell_height, 13);
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    const double at = y + static_cast<double>(r) * cell_height;
    if (r % row_stride == 0) {
      svg.Text(kLeft - 8, at + cell_height / 2, FitText(grid.rows[r], kLeft - 34, 11),
               {.size = 11, .anchor = Anchor::kEnd, .fill = kSoftInk});
    }
    for (size_t c = 0; c < grid.columns.size(); ++c) {
      const double value = grid.values[r][c];
      if (std::isnan(value)) continue;
      svg.Rect(kLeft + static_cast<double>(c) * cell_width, at, std::max(cell_width - gap, 0.5),
               cell_height - 0.6, MixColours(kLow, kHigh, top > 0 ? value / top : 0),
               fmt::format("{} {}, {} {}: {}", grid.row_axis, grid.rows[r], grid.column_axis,
                           grid.columns[c], grid.format(value)));
    }
  }
  const double bottom = y + static_cast<double>(grid.rows.size()) * cell_height;
  double widest = 0;
  for (const std::string& label : grid.columns) widest = std::max(widest, TextWidth(label, 11));
  const size_t stride = LabelStride(grid.columns.size(), cell_width, widest + 14);
  for (size_t c = 0; c < grid.columns.size(); c += stride) {
    svg.Text(kLeft + (static_cast<double>(c) + 0.5) * cell_width, bottom + 11, grid.columns[c],
             {.size = 11, .anchor = Anchor::kMiddle, .fill = kSoftInk});
  }
  svg.Text(kLeft + plot / 2, bottom + 29, grid.column_axis, {.anchor = Anchor::kMiddle});
  double widest_row = 0;
  for (const std::string& label : grid.rows) {
    widest_row = std::max(widest_row, TextWidth(FitText(label, kLeft - 34, 11), 11));
  }
  svg.Text(kLeft - widest_row - 22, (y + bottom) / 2, grid.row_axis,
           {.anchor = Anchor::kMiddle, .rotate = -90});
  DrawScale(svg, y, bottom - y, top, grid.format);
  return bottom + 40;
}

std::string Microseconds(double us) { return us == 0 ? "0" : Duration(us * 1e3); }

Grid LayerGrid(const HeatMap& map, Language language) {
  Grid grid;
  grid.row_axis = Say(language, "html.layer");
  grid.column_axis = Say(language, "html.decode_step");
  grid.format = Microseconds;
  for (uint32_t layer = 0; layer < map.num_layers; ++layer) {
    grid.rows.push_back(std::to_string(layer));
  }
  for (const uint32_t step : map.steps) grid.columns.push_back(std::to_string(step));
  grid.values.assign(map.num_layers, std::vector<double>(map.steps.size(), 0));
  for (const HeatCell& cell : map.cells) grid.values[cell.layer][cell.column] += cell.us;
  return grid;
}

Grid ClassGrid(const HeatMap& map, Language language) {
  std::map<KernelClass, double> totals;
  double all = 0;
  for (const HeatCell& cell : map.cells) {
    totals[cell.kind] += cell.us;
    all += cell.us;
  }
  std::vector<std::pair<double, KernelClass>> order;
  for (const auto& [kind, us] : totals) {
    if (us >= kLeastShare * all) order.emplace_back(-us, kind);
  }
  std::sort(order.begin(), order.end());
  Grid grid = LayerGrid(map, language);
  grid.row_axis = Say(language, "html.class");
  grid.rows.clear();
  std::map<KernelClass, size_t> row_of;
  for (const auto& [us, kind] : order) {
    row_of[kind] = grid.rows.size();
    grid.rows.push_back(ClassWord(language, kind));
  }
  grid.values.assign(grid.rows.size(), std::vector<double>(map.steps.size(), 0));
  for (const HeatCell& cell : map.cells) {
    const auto row = row_of.find(cell.kind);
    if (row != row_of.end()) grid.values[row->second][cell.column] += cell.us;
  }
  return grid;
}

}  // namespace

std::string HeatMapSvg(const Diagnosis& d, Language language) {
  const HeatMap map = MakeHeatMap(*d.index, d.steps);
  const std::string title = Say(language, "html.heatmap");
  Svg svg(kPageWidth, title, std::string(LanguageName(language)));
  if (map.num_layers == 0) {
    return svg.Finish(DrawHeading(svg, title, Say(language, "html.heatmap.missing")));
  }
  const Grid layers = LayerGrid(map, language);
  double most = 0;
  for (const auto& row : layers.values) most = std::max(most, *std::ranges::max_element(row));
  double y = DrawHeading(svg, title,
                         Say(language, Text{"html.heatmap.note", {{"top", Microseconds(most)}}}));
  y = DrawGrid(svg, y, layers);
  svg.Text(kPageMargin, y + 16, Say(language, "html.heatmap.by_class"), {.size = 14, .bold = true});
  return svg.Finish(DrawGrid(svg, y + 36, ClassGrid(map, language)));
}

std::string AddressMapSvg(const AddressHeatMap& map, Language language) {
  const std::string title = Say(language, "html.address");
  Svg svg(kPageWidth, title, std::string(LanguageName(language)));
  Grid grid;
  grid.row_axis = Say(language, "html.address.rows");
  grid.column_axis = Say(language, "html.address.columns");
  grid.format = [&](double value) { return AddressValueText(map.value_kind, value); };
  for (uint32_t channel = 0; channel < map.num_channels; ++channel) {
    for (uint32_t bank = 0; bank < map.num_banks; ++bank) {
      grid.rows.push_back(fmt::format("{} / {}", channel, bank));
    }
  }
  for (size_t c = 0; c < map.num_columns; ++c) {
    grid.columns.push_back(
        std::to_string(map.first_token + static_cast<int64_t>(c) * map.tokens_per_column));
  }
  grid.values.resize(grid.rows.size());
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    const auto row = map.values.begin() + static_cast<ptrdiff_t>(r * map.num_columns);
    grid.values[r].assign(row, row + static_cast<ptrdiff_t>(map.num_columns));
  }
  const double y = DrawHeading(svg, title, AddressMapNote(map, language));
  return svg.Finish(DrawGrid(svg, y, grid));
}

}  // namespace fathom::diagnose
