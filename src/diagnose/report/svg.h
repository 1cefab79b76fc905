#pragma once
// Writes SVG 1.1, as much of it as the pictures need. Sizes are CSS pixels, y grows downwards.
#include <string>
#include <string_view>
#include <vector>

namespace fathom::diagnose {

// Where `x` lies in a text.
enum class Anchor { kStart, kMiddle, kEnd };

struct TextLook {
  double size = 12;
  Anchor anchor = Anchor::kStart;
  std::string_view fill = "#1d2129";
  bool bold = false;
  bool mono = false;
  double rotate = 0;  // degrees clockwise around (x, y)
};

class Svg {
 public:
  // `language` is the document's ("en", "zh"): fonts are chosen by it.
  Svg(double width, std::string title, std::string language);

  // `tip`, if any, is what a viewer shows when the pointer rests on the shape.
  void Rect(double x, double y, double w, double h, std::string_view fill,
            std::string_view tip = {});
  void Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width = 1);
  void Circle(double x, double y, double r, std::string_view fill, std::string_view tip = {});
  void Triangle(double x, double y, double r, std::string_view fill, std::string_view tip = {});
  // `y` is the middle of the letters.
  void Text(double x, double y, std::string_view text, const TextLook& look = {});

  double width() const { return width_; }
  // The document; `height` is how far down the picture goes.
  std::string Finish(double height) const;

 private:
  void Close(std::string_view element, std::string_view tip);

  double width_;
  std::string title_;
  std::string language_;
  std::string body_;
};

// About how wide `text` is at `size` pixels: wide enough for DejaVu Sans, which is wider than most.
double TextWidth(std::string_view text, double size);

// As much of `text` as fits into `width`, with an ellipsis where it is cut; empty when nothing
// readable fits.
std::string FitText(std::string_view text, double width, double size);

// `text` in lines of at most `width`, broken at spaces and between ideographs.
std::vector<std::string> WrapText(std::string_view text, double width, double size);

// `low` to `high`, both "#rrggbb", at `share` 0..1 of the way.
std::string MixColours(std::string_view low, std::string_view high, double share);

}  // namespace fathom::diagnose
