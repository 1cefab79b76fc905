// CPU stacks as an icicle: callers above, width is time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "diagnose/report/picture.h"
#include "diagnose/report/picture_page.h"
#include "diagnose/report/svg.h"
#include "diagnose/rules/rule.h"
#include "diagnose/understand/flame.h"

namespace fathom::diagnose {
namespace {

constexpr double kRowHeight = 18;
constexpr double kTextSize = 11;
constexpr double kLeastWidth = 0.7;

// The page's palette (html/pictures.js): warm, told apart by the frame's name.
std::string FrameColour(std::string_view name) {
  const uint64_t hash = Hash64(name);
  return fmt::format("hsl({}, {}%, {}%)", 18 + hash % 38, 58 + hash / 64 % 20,
                     56 + hash / 4096 % 12);
}

std::string FlameValue(const Flame& flame, double value) {
  return flame.unit == "ms" ? Duration(value * 1e6) : fmt::format("{:.3g} {}", value, flame.unit);
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
              fmt::format("{}: {} ({:.1f}%)", name, FlameValue(flame_, node.value),
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
  Svg svg(kPageWidth, title, std::string(LanguageName(language)));
  if (flame.root.value <= 0) {
    return svg.Finish(DrawHeading(svg, title, Say(language, "html.flame.missing")));
  }
  const std::string all = FlameValue(flame, flame.root.value);
  const double top =
      DrawHeading(svg, title, Say(language, Text{"html.flame.static", {{"all", all}}}));
  Drawing drawing(svg, flame, top);
  drawing.Place(flame.root, kPageMargin, kPageWidth - 2 * kPageMargin, 0);
  return svg.Finish(drawing.bottom() + kPageMargin);
}

}  // namespace fathom::diagnose
