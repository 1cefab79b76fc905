// The text layer for the differential tests, over pipes.
//   text_check tokenize TOKENIZER_JSON [TOKENIZER_CONFIG]
// reads frames (flags: u8, bit 0 add_special_tokens, bit 1 parse_special; size: u32; text) and
// answers each with (count: u32; ids: i32[]; size: u32; the text of those ids).
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom::text {
namespace {

bool Read(void* data, size_t size) { return std::fread(data, 1, size, stdin) == size; }

template <class T>
void Write(const T* data, size_t count) {
  const auto size = static_cast<uint32_t>(count);
  std::fwrite(&size, sizeof(size), 1, stdout);
  std::fwrite(data, sizeof(T), count, stdout);
}

int Fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  return 2;
}

int Tokenize(const std::string& json, const std::string& config) {
  const auto tokenizer = Tokenizer::Load(json, config);
  if (!tokenizer) return Fail(tokenizer.error());
  uint8_t flags = 0;
  uint32_t size = 0;
  while (Read(&flags, 1) && Read(&size, sizeof(size))) {
    std::string text(size, '\0');
    if (!Read(text.data(), size)) return 2;
    const auto ids = tokenizer->Encode(
        text, {.add_special_tokens = (flags & 1) != 0, .parse_special = (flags & 2) != 0});
    if (!ids) return Fail(ids.error());
    const std::string decoded = tokenizer->Decode(*ids, {.skip_special_tokens = false});
    Write(ids->data(), ids->size());
    Write(decoded.data(), decoded.size());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fathom::text

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() >= 2 && args.size() <= 3 && args[0] == "tokenize") {
    return fathom::text::Tokenize(args[1], args.size() > 2 ? args[2] : "");
  }
  std::fprintf(stderr, "usage: text_check tokenize TOKENIZER_JSON [TOKENIZER_CONFIG]\n");
  return 2;
}
