#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/clock.h"
#include "base/strings.h"
#include "engine/engine_impl.h"

namespace fathom::engine {
namespace {

constexpr int32_t kMaxPriority = 1000;

uint64_t Fold(uint64_t hash, uint64_t value) {
  return Hash64({reinterpret_cast<const char*>(&value), sizeof(value)}, hash);
}

size_t LogitsBytes(const StepLimits& limits) {
  return static_cast<size_t>(limits.max_sequences) * static_cast<size_t>(limits.vocab_size) *
         sizeof(float);
}

Status CheckOptions(const EngineOptions& options) {
  if (options.max_running < 1 || options.max_queue < 1) {
    return Err(Code::kInvalidArgument, "max_running is {} and max_queue {}, expected at least 1",
               options.max_running, options.max_queue);
  }
  if (options.token_budget <= options.max_running) {
    return Err(Code::kInvalidArgument,
               "token_budget is {}, expected more than max_running = {}: every running sequence "
               "takes a token of each step, and prompts what is left",
               options.token_budget, options.max_running);
  }
  if (options.max_prompt_tokens_per_step < 1) {
    return Err(Code::kInvalidArgument, "max_prompt_tokens_per_step is {}, expected at least 1",
               options.max_prompt_tokens_per_step);
  }
  if (options.num_pages < 1 || options.num_pages > (int64_t{1} << 30)) {
    return Err(Code::kInvalidArgument, "num_pages is {}, expected 1 to 2^30", options.num_pages);
  }
  if (options.priority_step_ms < 0) {
    return Err(Code::kInvalidArgument, "priority_step_ms is {}, expected 0 or more",
               options.priority_step_ms);
  }
  return {};
}

Result<EngineImpl::Setup> MakeSetup(const model::Model& model, const EngineOptions& options,
                                    int num_threads) {
  FATHOM_TRY(CheckOptions(options));
  const auto formats = model.cache_formats();
  FATHOM_CHECK(!formats.empty() && formats.size() <= ops::kMaxLayerGroups);
  EngineImpl::Setup setup;
  setup.page_tokens = formats[0].page_tokens;
  setup.version.model = model.fingerprint();
  for (const ops::CacheFormat& format : formats) {
    if (format.group == ops::LayerGroup::kWindow) {
      return Err(Code::kUnsupported,
                 "model {} has layers that attend to a window; all layers must keep all tokens",
                 model.name());
    }
    if (format.page_tokens != setup.page_tokens) {
      return Err(Code::kUnsupported, "model {} has pages of {} and of {} tokens, expected one size",
                 model.name(), setup.page_tokens, format.page_tokens);
    }
    setup.version.kv_format = Fold(setup.version.kv_format, format.Fingerprint());
  }
  if (options.max_context_tokens < 0 || options.max_context_tokens > model.max_context_tokens()) {
    return Err(Code::kInvalidArgument,
               "max_context_tokens is {}, expected 1 to {}, what model {} can do, or 0 for that",
               options.max_context_tokens, model.max_context_tokens(), model.name());
  }
  const int64_t wanted =
      options.max_context_tokens == 0 ? model.max_context_tokens() : options.max_context_tokens;
  setup.max_context_tokens =
      static_cast<int32_t>(std::min(wanted, options.num_pages * setup.page_tokens));
  setup.limits = {.max_tokens = options.token_budget,
                  .max_sequences = options.max_running,
                  .max_pages_per_sequence =
                      (setup.max_context_tokens + setup.page_tokens - 1) / setup.page_tokens,
                  .num_groups = static_cast<int32_t>(formats.size()),
                  .vocab_size = model.vocab_size()};
  const model::StepPlan plan = model.Plan({.num_tokens = options.token_budget,
                                           .num_sequences = options.max_running,
                                           .num_logits = options.max_running,
                                           .max_query_tokens = options.token_budget,
                                           .max_kv_tokens = setup.max_context_tokens});
  setup.arena_bytes =
      std::max(plan.workspace_bytes, ops::sample::WorkspaceBytes(model.vocab_size(), num_threads));
  return setup;
}

}  // namespace

Result<EngineMemory> Engine::PlanMemory(const model::Model& model, const EngineOptions& options,
                                        int num_threads) {
  FATHOM_ASSIGN_OR_RETURN(const EngineImpl::Setup setup, MakeSetup(model, options, num_threads));
  EngineMemory memory;
  for (const ops::CacheFormat& format : model.cache_formats()) {
    memory.kv_bytes +=
        static_cast<uint64_t>(options.num_pages) * format.num_layers * format.page_bytes;
  }
  memory.workspace_bytes = setup.arena_bytes;
  memory.logits_bytes = LogitsBytes(setup.limits);
  memory.inputs_bytes = StepBuffers::DeviceBytes(setup.limits);
  return memory;
}

Status Engine::Submit(RequestSpec spec, std::shared_ptr<RequestListener> listener) {
  std::vector<Submission> one;
  one.push_back({std::move(spec), std::move(listener)});
  return SubmitAll(std::move(one));
}

Result<std::unique_ptr<Engine>> Engine::Create(model::Model& model, const EngineOptions& options,
                                               const Runtime& runtime) {
  FATHOM_ASSIGN_OR_RETURN(const EngineImpl::Setup setup,
                          MakeSetup(model, options, runtime.pool.num_threads()));
  auto engine = std::make_unique<EngineImpl>(model, options, runtime, setup);
  FATHOM_TRY(engine->Initialise());
  return engine;
}

EngineImpl::EngineImpl(model::Model& model, const EngineOptions& options, const Runtime& runtime,
                       const Setup& setup)
    : model_(model),
      options_(options),
      runtime_(runtime),
      setup_(setup),
      depth_(runtime.device.kind() == ops::DeviceKind::kCpu ? 1 : 2),
      pool_(static_cast<int32_t>(options.num_pages)),
      cache_(pool_,
             {.page_tokens = setup.page_tokens,
              .enabled = options.prefix_cache,
              .reuse_generated = options.reuse_generated_pages,
              .bos_token = options.bos_token,
              .version = setup.version},
             runtime.sink),
      scheduler_({.max_running = options.max_running,
                  .max_waiting = options.max_queue,
                  .token_budget = options.token_budget,
                  .max_prompt_tokens_per_step = options.max_prompt_tokens_per_step,
                  .priority_step_ns = int64_t{options.priority_step_ms} * 1'000'000},
                 cache_) {}

Status EngineImpl::Initialise() {
  ops::Device& device = runtime_.device;
  for (const ops::CacheFormat& format : model_.cache_formats()) {
    const size_t bytes = static_cast<size_t>(options_.num_pages) *
                         static_cast<size_t>(format.num_layers) *
                         static_cast<size_t>(format.page_bytes);
    auto buffer = ops::DeviceBuffer::Make(device, bytes);
    if (!buffer) return tl::unexpected(WithContext(buffer.error(), "KV cache"));
    caches_.push_back({.format = format, .base = buffer->data(), .num_pages = options_.num_pages});
    kv_.push_back(std::move(*buffer));
  }
  FATHOM_ASSIGN_OR_RETURN(workspace_, ops::DeviceBuffer::Make(device, setup_.arena_bytes));
  arena_ = Arena({static_cast<std::byte*>(workspace_.data()), setup_.arena_bytes});
  FATHOM_ASSIGN_OR_RETURN(logits_, ops::DeviceBuffer::Make(device, LogitsBytes(setup_.limits)));
  FATHOM_ASSIGN_OR_RETURN(buffers_, StepBuffers::Make(device, setup_.limits));

  // When the shortest and the longest sequence get the same table, all do.
  FATHOM_ASSIGN_OR_RETURN(const model::RopeChoice shortest, model_.ChooseRope(1));
  FATHOM_ASSIGN_OR_RETURN(const model::RopeChoice longest,
                          model_.ChooseRope(setup_.max_context_tokens));
  if (shortest.row == longest.row && shortest.key == longest.key) static_rope_ = longest;

  const auto max_running = static_cast<size_t>(options_.max_running);
  in_flight_.reserve(depth_);
  for (size_t i = 0; i < depth_; ++i) {
    InFlight& step = idle_steps_.emplace_back();
    step.batch.entries.reserve(max_running);
    step.choices.resize(max_running);
    step.yields.resize(max_running);
  }
  const auto most = max_running + static_cast<size_t>(options_.max_queue);
  transitions_.admitted.reserve(max_running);
  transitions_.preempted.reserve(max_running);
  transitions_.expired.reserve(most);
  TouchMemory();
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
  return {};
}

// Memory that is written for the first time costs page faults, and milliseconds where the system
// has to clear or to compact huge pages first: the start pays for what the first requests need. A
// large pool is touched page by page as it fills.
void EngineImpl::TouchMemory() {
  constexpr int64_t kTouchedBytes = int64_t{64} << 20;  // of each
  ops::Device& device = runtime_.device;
  int64_t bytes_a_page = 0;
  for (const ops::CacheView& cache : caches_) {
    bytes_a_page += int64_t{cache.format.page_bytes} * cache.format.num_layers;
  }
  const int64_t pages = std::min(options_.num_pages, kTouchedBytes / bytes_a_page);
  for (const ops::CacheView& cache : caches_) {
    for (int layer = 0; layer < cache.format.num_layers; ++layer) {
      device.Touch(cache.Layer(layer), static_cast<size_t>(pages * cache.format.page_bytes));
    }
  }
  for (const ops::DeviceBuffer* buffer : {&workspace_, &logits_}) {
    device.Touch(buffer->data(), std::min<size_t>(buffer->size(), kTouchedBytes));
  }
}

EngineImpl::~EngineImpl() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    draining_ = cancel_all_ = stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Status EngineImpl::Check(const RequestSpec& spec) const {
  const int32_t vocab = setup_.limits.vocab_size;
  if (spec.prompt.empty()) {
    return Err(Code::kInvalidArgument, "the prompt is empty, expected at least one token");
  }
  if (spec.prompt.size() >= static_cast<size_t>(setup_.max_context_tokens)) {
    return Err(Code::kOutOfRange,
               "the prompt has {} tokens and leaves no room for an answer in a context of {}",
               spec.prompt.size(), setup_.max_context_tokens);
  }
  const auto known = [vocab](int32_t token) { return token >= 0 && token < vocab; };
  if (const auto bad = std::ranges::find_if_not(spec.prompt, known); bad != spec.prompt.end()) {
    return Err(Code::kInvalidArgument, "the prompt holds token {}, the vocabulary has 0 to {}",
               *bad, vocab - 1);
  }
  if (spec.max_tokens < 1) {
    return Err(Code::kInvalidArgument, "max_tokens is {}, expected at least 1", spec.max_tokens);
  }
  if (spec.priority < -kMaxPriority || spec.priority > kMaxPriority) {
    return Err(Code::kInvalidArgument, "priority is {}, expected {} to {}", spec.priority,
               -kMaxPriority, kMaxPriority);
  }
  return ValidateSampling(spec.sampling, vocab);
}

Status EngineImpl::SubmitAll(std::vector<Submission> submissions) {
  const int64_t asked_ns = NowNs();
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (Submission& submission : submissions) {
    FATHOM_CHECK(submission.listener != nullptr);
    FATHOM_TRY(Check(submission.spec));
    auto& sequence = sequences.emplace_back(
        std::make_unique<Sequence>(std::move(submission.spec), std::move(submission.listener)));
    sequence->max_total =
        static_cast<int32_t>(std::min(int64_t{sequence->num_prompt} + sequence->spec.max_tokens,
                                      int64_t{setup_.max_context_tokens}));
    sequence->sampler = Sampler(sequence->spec, options_.default_seed, setup_.limits.vocab_size,
                                sequence->max_total);
    sequence->needs_tokens_on_host = sequence->sampler.needs_tokens_on_host();
  }
  {
    const std::lock_guard lock(mutex_);
    if (!stats_.healthy) {
      return Err(Code::kUnavailable, "the model failed; the engine takes no requests");
    }
    if (draining_) return Err(Code::kUnavailable, "draining: no new requests are taken");
    for (size_t i = 0; i < sequences.size(); ++i) {
      const RequestId id = sequences[i]->spec.id;
      const auto is_same = [id](const auto& other) { return other->spec.id == id; };
      if (live_.contains(id) ||
          std::any_of(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(i),
                      is_same)) {
        return Err(Code::kInvalidArgument, "request {} is running already: ids must be unique", id);
      }
    }
    const size_t waiting = static_cast<size_t>(stats_.waiting) + inbox_.size();
    if (waiting + sequences.size() > static_cast<size_t>(options_.max_queue)) {
      return Err(Code::kResourceExhausted, "{} requests wait already, the queue holds {}", waiting,
                 options_.max_queue);
    }
    for (std::unique_ptr<Sequence>& sequence : sequences) {
      live_.insert(sequence->spec.id);
      EmitAt(asked_ns, event::Kind::kQueued, *sequence, 0,
             static_cast<uint64_t>(sequence->num_prompt));
      inbox_.push_back(std::move(sequence));
    }
  }
  wake_.notify_one();
  return {};
}

void EngineImpl::Cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    if (!live_.contains(id)) return;
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += static_cast<int32_t>(inbox_.size());
  return stats;
}

void EngineImpl::Drain(int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto left = std::chrono::nanoseconds(std::max<int64_t>(deadline_ns - NowNs(), 0));
  if (drained_.wait_for(lock, left, [this] { return live_.empty(); })) return;
  cancel_all_ = true;
  wake_.notify_one();
  drained_.wait(lock, [this] { return live_.empty(); });
}

}  // namespace fathom::engine
