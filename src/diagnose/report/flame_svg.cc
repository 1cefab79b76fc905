// CPU stacks as an icicle: callers above, width is time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "diagnose/report/picture.h"
#include "diagnose/report/svg.h"
#include "diagnose/understand/flame.h"

namespace fathom::diagnose {
namespace {

constexpr double kWidth = 1200;
constexpr double kMargin = 24;
constexpr double kRowHeight = 18;
constexpr double kTextSize = 11;
constexpr double kLeastWidth = 0.7;

// The page's palette (html/pictures.js): warm, told apart by the frame's name.
std::string FrameColour(std::string_view name) {
  const uint64_t hash = Hash64(name);
  return fmt::format("hsl({}, {}%, {}%)", 18 + hash % 38, 58 + hash / 64 % 20,
                     56 + hash / 4096 % 12);
}

class Drawing {
 public:
  Drawing(Svg& svg, const Flame& flame, double top) : svg_(svg), flame_(flame), top_(top) {}

  void Place(const FlameNode& node, double x, double width, size_t level) {
    if (width < kLeastWidth) return;
    deepest_ = std::max(deepest_, level);
    const double y = top_ + static_cast<double>(level) * kRowHeight;
    const std::string name = level == 0 ? "all" : node.name;
    svg_.Rect(x, y, std::max(width - 0.5, 0.4), kRowHeight - 1, FrameColour(node.name),
              fmt::format("{}: {} ({:.1f}%)", name, Value(node.value),
                          100 * node.value / flame_.root.value));
    const std::string label = FitText(name, width - 6, kTextSize);
    if (!label.empty()) {
      svg_.Text(x + 3, y + kRowHeight / 2 - 0.5, label,
                {.size = kTextSize, .fill = "#1d1206", .mono = true});
    }
    double at = x;
    for (const FlameNode& child : node.children) {
      const double share = child.value / node.value * width;
      Place(child, at, share, level + 1);
      at += share;
    }
  }
  std::string Value(double value) const {
    return flame_.unit == "ms" ? HumanNs(std::llround(value * 1e6))
                               : fmt::format("{:.0f} {}", value, flame_.unit);
  }
  double bottom() const { return top_ + static_cast<double>(deepest_ + 1) * kRowHeight; }

 private:
  Svg& svg_;
  const Flame& flame_;
  double top_;
  size_t deepest_ = 0;
};

}  // namespace

std::string FlameSvg(const Diagnosis& d, Language language) {
  const Flame flame = MakeFlame(*d.index);
  const std::string title = Say(language, "html.flame");
  Svg svg(kWidth, title, std::string(LanguageName(language)));
  svg.Text(kMargin, 28, title, {.size = 18, .bold = true});
  const bool empty = flame.root.value <= 0;
  Drawing drawing(svg, flame, 74);
  svg.Text(
      kMargin, 54,
      empty ? Say(language, "html.flame.missing")
            : Say(language, Text{"html.flame.static", {{"all", drawing.Value(flame.root.value)}}}),
      {.fill = "#5b6472"});
  if (empty) return svg.Finish(72);
  drawing.Place(flame.root, kMargin, kWidth - 2 * kMargin, 0);
  return svg.Finish(drawing.bottom() + kMargin);
}

}  // namespace fathom::diagnose
