#pragma once
// A Session over an engine, a tokenizer and, where the model has one, a chat template.
#include <memory>
#include <optional>

#include "event/ring.h"
#include "session/session.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom::session {

struct SessionParts {
  ModelInfo model;
  text::Tokenizer tokenizer;
  // Or why there is none: the error of every chat.
  Result<text::ChatTemplate> chat_template;
  event::Sink sink;
};

// `engine` must outlive the session's requests, and the session the engine's listeners: destroy the
// engine first.
std::unique_ptr<Session> MakeSession(engine::Engine& engine, SessionParts parts);

}  // namespace fathom::session
