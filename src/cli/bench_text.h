#pragma once
// fathom bench model --text: how well a model predicts a text.
#include <cstdint>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "model/perplexity.h"

namespace fathom::cli {

struct TextOptions {
  std::vector<std::string> files;  // lines <|doc|> divide documents
  model::Windows windows;
  std::vector<int64_t> contexts;  // tokens
};

// Bits per byte of each file, its documents one by one. `json`: where to write them too, or empty.
Result<int> BitsPerByte(const ModelOptions& model, const TextOptions& text,
                        const std::string& json);

// The same tokens of a file's documents, run together, predicted within each of the contexts.
// Windows of the longest context begin every `windows.stride` tokens; their targets are their last
// tokens, a quarter of the shortest context. A shorter context keeps the end of the window.
Result<int> BitsByContext(const ModelOptions& model, const TextOptions& text,
                          const std::string& json);

}  // namespace fathom::cli
