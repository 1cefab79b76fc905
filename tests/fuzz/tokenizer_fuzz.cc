// Any bytes as tokenizer.json: an error, or a tokenizer that encodes and decodes.
#include <string_view>

#include "base/check.h"
#include "text/test_tokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::text;  // NOLINT(google-build-using-namespace)
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::Parse(json, TestTokenizerConfig());
  if (!tokenizer) {
    FATHOM_CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  for (const std::string_view text : {"abc ab\n\n  x1234 <｜User｜>é中", "\xff\xe4\xb8 aab"}) {
    const auto ids = tokenizer->Encode(text);
    if (!ids) continue;
    for (const int32_t id : *ids) FATHOM_CHECK(id >= 0 && id < tokenizer->vocab_size());
    (void)tokenizer->Decode(*ids);
  }
  return 0;
}
