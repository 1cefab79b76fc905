#include "server/token_queue.h"

#include <utility>

#include "base/clock.h"

namespace fathom::server {

class TokenQueue::ChoiceListener : public session::TextListener {
 public:
  ChoiceListener(std::shared_ptr<TokenQueue> queue, int32_t first_choice)
      : queue_(std::move(queue)), first_choice_(first_choice) {}

  void OnDelta(int32_t choice, const session::TextDelta& delta) override {
    queue_->Push({.choice = first_choice_ + choice, .delta = delta});
  }
  void OnFinish(int32_t choice, const session::Finish& finish) override {
    queue_->Push(
        {.choice = first_choice_ + choice, .finish = KeepFinish(finish), .finished_ns = NowNs()});
  }

 private:
  std::shared_ptr<TokenQueue> queue_;
  int32_t first_choice_;
};

std::shared_ptr<session::TextListener> TokenQueue::Listener(int32_t first_choice) {
  return std::make_shared<ChoiceListener>(shared_from_this(), first_choice);
}

void TokenQueue::Push(Item item) {
  std::lock_guard lock(mutex_);
  if (!wake_) return;
  const bool worth_it = every_delta_ || item.finish.has_value();
  items_.push_back(std::move(item));
  if (!worth_it || woken_) return;
  woken_ = true;
  wake_();
}

void TokenQueue::WakeAtEveryDelta(bool every_delta) {
  std::lock_guard lock(mutex_);
  every_delta_ = every_delta;
}

std::vector<TokenQueue::Item> TokenQueue::TakeAll() {
  std::lock_guard lock(mutex_);
  woken_ = false;
  return std::exchange(items_, {});
}

void TokenQueue::Close() {
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
  items_.clear();
}

}  // namespace fathom::server
