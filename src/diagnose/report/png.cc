#include "diagnose/report/png.h"

#include <cairo.h>
#include <fontconfig/fontconfig.h>
#include <librsvg/rsvg.h>

#include <cmath>
#include <memory>

namespace fathom::diagnose {
namespace {

constexpr double kMaxPixels = 30'000;  // a side; cairo's limit is 32767

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <class T, auto Free>
using Owned = std::unique_ptr<T, Deleter<Free>>;

// Whether an installed font covers `language`'s letters.
bool HasFont(const char* language) {
  const Owned<FcPattern, FcPatternDestroy> pattern(FcPatternCreate());
  const Owned<FcLangSet, FcLangSetDestroy> languages(FcLangSetCreate());
  FcLangSetAdd(languages.get(), reinterpret_cast<const FcChar8*>(language));
  FcPatternAddLangSet(pattern.get(), FC_LANG, languages.get());
  const Owned<FcObjectSet, FcObjectSetDestroy> wanted(FcObjectSetBuild(FC_FAMILY, nullptr));
  const Owned<FcFontSet, FcFontSetDestroy> fonts(FcFontList(nullptr, pattern.get(), wanted.get()));
  return fonts != nullptr && fonts->nfont > 0;
}

cairo_status_t Append(void* out, const unsigned char* bytes, unsigned int size) {
  static_cast<std::string*>(out)->append(reinterpret_cast<const char*>(bytes), size);
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

Result<std::string> PngFromSvg(std::string_view svg, Language language, double scale) {
  if (const bool chinese = language == Language::kChinese; !HasFont(chinese ? "zh-cn" : "en")) {
    return Err(Code::kUnsupported,
               "PNG: no installed font has {} letters; install one ({}), or write .svg or .html",
               chinese ? "Chinese" : "Latin",
               chinese ? "Debian: fonts-wqy-microhei or fonts-noto-cjk" : "Debian: fonts-dejavu");
  }
  GError* error = nullptr;
  const Owned<RsvgHandle, g_object_unref> handle(
      rsvg_handle_new_from_data(reinterpret_cast<const guint8*>(svg.data()), svg.size(), &error));
  const auto failure = [&](std::string_view what) {
    const std::string why = error == nullptr ? "" : error->message;
    g_clear_error(&error);
    return Err(Code::kInternal, "PNG: {}: {}", what, why);
  };
  if (handle == nullptr) return failure("reading the SVG failed");
  double width = 0;
  double height = 0;
  if (rsvg_handle_get_intrinsic_size_in_pixels(handle.get(), &width, &height) == FALSE) {
    return Err(Code::kInternal, "PNG: the SVG has no size");
  }
  if (std::max(width, height) * scale > kMaxPixels) {
    return Err(Code::kInvalidArgument,
               "PNG: expected a picture of at most {} pixels a side, found {:.0f} x {:.0f}; write "
               ".svg or .html",
               kMaxPixels, width * scale, height * scale);
  }
  const RsvgRectangle whole = {0, 0, width * scale, height * scale};
  const Owned<cairo_surface_t, cairo_surface_destroy> surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::ceil(whole.width)),
                                 static_cast<int>(std::ceil(whole.height))));
  const Owned<cairo_t, cairo_destroy> context(cairo_create(surface.get()));
  if (rsvg_handle_render_document(handle.get(), context.get(), &whole, &error) == FALSE) {
    return failure("drawing failed");
  }
  std::string png;
  if (const cairo_status_t status = cairo_surface_write_to_png_stream(surface.get(), Append, &png);
      status != CAIRO_STATUS_SUCCESS) {
    return Err(Code::kInternal, "PNG: {}", cairo_status_to_string(status));
  }
  return png;
}

}  // namespace fathom::diagnose
