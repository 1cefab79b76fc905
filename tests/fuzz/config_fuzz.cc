// Any bytes as config.json and generation_config.json: an error, or values within their bounds.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/rope_scaling.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::model;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto config = ParseModelConfig(text, "config.json")) {
    FATHOM_CHECK(config->hidden_size > 0 && config->num_layers > 0 && config->vocab_size > 0);
    FATHOM_CHECK(config->rope.dim > 0 && config->rope.dim % 2 == 0);
    FATHOM_CHECK(config->max_context > 0);
    FATHOM_CHECK(!Describe(config->rope).empty());
    if (const auto scaling = ParseRopeScaling("linear,factor=2")) {
      (void)OverrideRope(*config, *scaling);
    }
  } else {
    FATHOM_CHECK(!config.error().message.empty());
  }
  (void)ParseGenerationConfig(text, "generation_config.json");
  (void)ParseRopeScaling(text);
  return 0;
}
