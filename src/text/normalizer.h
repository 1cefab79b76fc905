#pragma once
// The normalizers of tokenizer.json that DeepSeek, Qwen and Llama files use: none, or NFC.
#include <string>
#include <string_view>

namespace fathom::text {

// Whether `text` (valid UTF-8) is certainly in NFC: it holds no code point that NFC could touch.
bool IsTriviallyNfc(std::string_view text);

// Unicode Normalization Form C of `text` (valid UTF-8), equal to the `tokenizers` package:
// combining marks that its tables predate stay where they are, whatever version utf8proc has.
std::string NormalizeNfc(std::string_view text);

}  // namespace fathom::text
