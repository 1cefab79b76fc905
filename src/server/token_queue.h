#pragma once
// From the engine's thread to the connection's: deltas in, in order, and one wake-up until they are
// taken. The engine never waits for a slow client.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/response_json.h"
#include "session/session.h"

namespace fathom::server {

class TokenQueue : public std::enable_shared_from_this<TokenQueue> {
 public:
  struct Item {
    int32_t choice = 0;
    session::TextDelta delta;
    std::optional<ChoiceFinish> finish;
    int64_t finished_ns = 0;  // with finish: when it was pushed
  };

  // `wake` is called with the queue locked; it must only pass the word on. Waking another thread
  // may cost the engine its core: a response that goes out whole needs it only for each choice's
  // end (`every_delta` false).
  explicit TokenQueue(std::function<void()> wake) : wake_(std::move(wake)) {}
  void WakeAtEveryDelta(bool every_delta);

  // For the choices of one Session call; its choice k is this queue's first_choice + k.
  std::shared_ptr<session::TextListener> Listener(int32_t first_choice);

  std::vector<Item> TakeAll();
  // Nothing is kept and nobody is woken any more.
  void Close();

 private:
  class ChoiceListener;
  void Push(Item item);

  std::mutex mutex_;
  std::function<void()> wake_;
  bool every_delta_ = true;
  bool woken_ = false;  // and nothing has been taken since
  std::vector<Item> items_;
};

}  // namespace fathom::server
