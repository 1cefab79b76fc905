#include "diagnose/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fathom::diagnose {
namespace {

constexpr std::string_view kSans =
    "'DejaVu Sans', 'Noto Sans', 'Noto Sans CJK SC', 'WenQuanYi Micro Hei', sans-serif";
constexpr std::string_view kMono =
    "'DejaVu Sans Mono', 'WenQuanYi Micro Hei Mono', 'Noto Sans Mono CJK SC', monospace";
constexpr std::string_view kEllipsis = "\u2026";

// Text that XML can hold: markup escaped, control characters (illegal even when escaped) replaced.
std::string Escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes of the UTF-8 character that begins at `at`.
size_t CharacterBytes(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && Continues(text[end])) ++end;
  return end - at;
}

// Ideographs and what is set as wide as they are: everything that UTF-8 writes in three bytes from
// U+1100 on, nearly, and all of four bytes.
bool IsWide(std::string_view character) {
  return character.size() >= 3 && static_cast<unsigned char>(character[0]) >= 0xe2 &&
         character != kEllipsis;
}

double CharacterWidth(std::string_view character, double size) {
  return size * (IsWide(character) ? 1.0 : 0.61);
}

}  // namespace

Svg::Svg(double width, std::string title, std::string language)
    : width_(width), title_(std::move(title)), language_(std::move(language)) {}

void Svg::Close(std::string_view element, std::string_view tip) {
  if (tip.empty()) {
    body_ += "/>\n";
  } else {
    body_ += fmt::format("><title>{}</title></{}>\n", Escape(tip), element);
  }
}

void Svg::Rect(double x, double y, double w, double h, std::string_view fill,
               std::string_view tip) {
  body_ += fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}")", x,
                       y, w, h, fill);
  Close("rect", tip);
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width) {
  body_ += fmt::format(
      R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" stroke="{}" stroke-width="{:.2g}"/>)"
      "\n",
      x1, y1, x2, y2, stroke, width);
}

void Svg::Circle(double x, double y, double r, std::string_view fill, std::string_view tip) {
  body_ += fmt::format(R"(<circle cx="{:.2f}" cy="{:.2f}" r="{:.2f}" fill="{}")", x, y, r, fill);
  Close("circle", tip);
}

void Svg::Triangle(double x, double y, double r, std::string_view fill, std::string_view tip) {
  body_ += fmt::format(R"(<polygon points="{:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f}" fill="{}")",
                       x, y - r, x - r, y + r * 0.8, x + r, y + r * 0.8, fill);
  Close("polygon", tip);
}

void Svg::Text(double x, double y, std::string_view text, const TextLook& look) {
  static constexpr std::string_view kAnchors[] = {"start", "middle", "end"};
  // A baseline below the middle by about a third of the size: viewers disagree on
  // dominant-baseline.
  const double baseline = y + look.size * 0.36;
  body_ += fmt::format(R"(<text x="{:.2f}" y="{:.2f}" font-size="{:g}" fill="{}")", x, baseline,
                       look.size, look.fill);
  if (look.anchor != Anchor::kStart) {
    body_ += fmt::format(R"( text-anchor="{}")", kAnchors[static_cast<size_t>(look.anchor)]);
  }
  if (look.bold) body_ += R"( font-weight="bold")";
  if (look.mono) body_ += fmt::format(R"( font-family="{}")", kMono);
  if (look.rotate != 0) {
    body_ += fmt::format(" transform=\"rotate({:g} {:.2f} {:.2f})\"", look.rotate, x, y);
  }
  body_ += fmt::format(">{}</text>\n", Escape(text));
}

std::string Svg::Finish(double height) const {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:g}" height="{1:g}" )"
                     R"(viewBox="0 0 {0:g} {1:g}" xml:lang="{2}" font-family="{3}">)"
                     "\n<title>{4}</title>\n"
                     R"(<rect width="{0:g}" height="{1:g}" fill="#ffffff"/>)"
                     "\n{5}</svg>\n",
                     width_, std::ceil(height), language_, kSans, Escape(title_), body_);
}

double TextWidth(std::string_view text, double size) {
  double width = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    width += CharacterWidth(text.substr(at, bytes), size);
    at += bytes;
  }
  return width;
}

std::string FitText(std::string_view text, double width, double size) {
  if (TextWidth(text, size) <= width) return std::string(text);
  constexpr int kLeastCharacters = 3;
  double used = CharacterWidth(kEllipsis, size);
  size_t at = 0;
  int shown = 0;
  while (at < text.size()) {
    const size_t bytes = CharacterBytes(text, at);
    used += CharacterWidth(text.substr(at, bytes), size);
    if (used > width) break;
    at += bytes;
    ++shown;
  }
  if (shown < kLeastCharacters) return {};
  return std::string(text.substr(0, at)).append(kEllipsis);
}

std::vector<std::string> WrapText(std::string_view text, double width, double size) {
  std::vector<std::string> lines;
  size_t begin = 0;
  size_t good_break = 0;  // the line may end before this byte
  double used = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    const std::string_view character = text.substr(at, bytes);
    if (character == " " || (IsWide(character) && at > begin)) good_break = at;
    used += CharacterWidth(character, size);
    if (used > width && good_break > begin) {
      lines.emplace_back(text.substr(begin, good_break - begin));
      begin = good_break + (text[good_break] == ' ' ? 1 : 0);
      used = at + bytes > begin ? TextWidth(text.substr(begin, at + bytes - begin), size) : 0;
      good_break = begin;
    }
    at += bytes;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string MixColours(std::string_view low, std::string_view high, double share) {
  const auto channel = [](std::string_view colour, size_t i) {
    return std::stoi(std::string(colour.substr(1 + 2 * i, 2)), nullptr, 16);
  };
  std::string out = "#";
  for (size_t i = 0; i < 3; ++i) {
    const int from = channel(low, i);
    const int to = channel(high, i);
    out += fmt::format(
        "{:02x}", static_cast<int>(std::lround(from + (to - from) * std::clamp(share, 0.0, 1.0))));
  }
  return out;
}

}  // namespace fathom::diagnose
