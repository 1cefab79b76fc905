// Bodies of the API's endpoints: a request or an error with a status and a message, nothing else.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/openai_types.h"

namespace {

using fathom::server::ApiError;

void Check(const ApiError& error) {
  if (error.status < 400 || error.status > 499 || error.message.empty()) std::abort();
  if (fathom::server::ErrorBody(error).empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::server;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  static const RequestLimits kLimits = {
      .model = "tiny", .vocab_size = 4096, .max_context_tokens = 8192};
  if (const auto chat = ParseChatRequest(body, kLimits); !chat) {
    Check(chat.error());
  } else if (chat->params.messages.empty() || chat->params.n < 1) {
    std::abort();
  }
  if (const auto completion = ParseCompletionRequest(body, kLimits); !completion) {
    Check(completion.error());
  } else if (completion->prompts.empty()) {
    std::abort();
  }
  if (const auto tokenize = ParseTokenizeRequest(body, kLimits); !tokenize) {
    Check(tokenize.error());
  }
  if (const auto detokenize = ParseDetokenizeRequest(body, kLimits); !detokenize) {
    Check(detokenize.error());
  }
  return 0;
}
