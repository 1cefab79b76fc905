#include "session/load.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/select.h"
#include "session/text_session.h"

namespace fathom::session {
namespace {

std::string NameOfDirectory(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return path.has_filename() ? path.filename() : path.parent_path().filename();
}

engine::SamplingParams DefaultSampling(const model::GenerationConfig& config) {
  engine::SamplingParams sampling;
  if (config.temperature) sampling.temperature = static_cast<float>(*config.temperature);
  if (config.do_sample == false) sampling.temperature = 0;
  if (config.top_p) sampling.top_p = static_cast<float>(*config.top_p);
  if (config.top_k) sampling.top_k = *config.top_k;
  if (config.min_p) sampling.min_p = static_cast<float>(*config.min_p);
  if (config.repetition_penalty) {
    sampling.repetition_penalty = static_cast<float>(*config.repetition_penalty);
  }
  return sampling;
}

}  // namespace

LoadedSession::~LoadedSession() = default;

Result<std::unique_ptr<LoadedSession>> LoadSession(const std::string& directory,
                                                   LoadOptions options) {
  const int64_t start_ns = NowNs();
  if (options.num_threads < 0) {
    return Err(Code::kInvalidArgument, "num_threads is {}, expected 0 (all) or more",
               options.num_threads);
  }
  std::unique_ptr<LoadedSession> loaded(new LoadedSession);
  FATHOM_ASSIGN_OR_RETURN(loaded->device_, ops::MakeDevice(options.device));
  FATHOM_ASSIGN_OR_RETURN(const kernels::cpu::KernelTable* cpu,
                          kernels::cpu::Select(options.cpu_isa));
  loaded->cpu_isa_ = cpu->isa;
  FATHOM_ASSIGN_OR_RETURN(const int threads, ThreadsFor(options.num_threads));
  loaded->pool_ = std::make_unique<ThreadPool>(threads);

  FATHOM_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::LoadModel(directory));
  auto chat_template = text::ChatTemplate::Select(tokenizer, options.chat_template);
  // A model without a template still completes; a family asked for by name must be there.
  if (!chat_template && !options.chat_template.empty()) {
    return tl::unexpected(chat_template.error());
  }

  model::LoadOptions& model_options = options.model;
  model_options.num_threads = loaded->pool_->num_threads();
  model_options.max_step = {.num_tokens = options.engine.token_budget,
                            .num_sequences = options.engine.max_running,
                            .num_logits = options.engine.max_running,
                            .max_query_tokens = options.engine.token_budget};
  model_options.context_tokens = options.engine.max_context_tokens;
  FATHOM_ASSIGN_OR_RETURN(model::LoadedModel model,
                          model::LoadModel(directory, model_options, *loaded->device_, *cpu));
  std::vector<int32_t> end_tokens = model.generation.eos_tokens;
  if (end_tokens.empty()) end_tokens = model.model->config().eos_tokens;
  if (end_tokens.empty() && tokenizer.eos_id()) end_tokens = {*tokenizer.eos_id()};
  loaded->memory_ = std::move(model.memory);
  loaded->model_ = std::move(model.model);

  if (options.engine.num_pages == 0) options.engine.num_pages = loaded->memory_.num_pages;
  options.engine.bos_token = tokenizer.bos_id().value_or(-1);
  loaded->engine_options_ = options.engine;
  FATHOM_ASSIGN_OR_RETURN(
      loaded->engine_, engine::Engine::Create(
                           *loaded->model_, options.engine,
                           {*loaded->device_, *loaded->pool_, *cpu, loaded->comm_, options.sink}));

  ModelInfo info;
  info.name = options.name.empty() ? NameOfDirectory(directory) : options.name;
  info.vocab_size = loaded->model_->vocab_size();
  info.max_context_tokens = loaded->engine_->max_context_tokens();
  if (chat_template) info.template_family = chat_template->family();
  info.end_tokens = std::move(end_tokens);
  info.default_sampling = DefaultSampling(model.generation);
  loaded->session_ = MakeSession(*loaded->engine_, {.model = std::move(info),
                                                    .tokenizer = std::move(tokenizer),
                                                    .chat_template = std::move(chat_template),
                                                    .sink = options.sink});
  event::Event event;
  event.kind = event::Kind::kModelLoad;
  event.start_ns = start_ns;
  event.duration_ns = NowNs() - start_ns;
  event.value = loaded->memory_.FixedBytes();
  options.sink.Emit(event);
  return loaded;
}

}  // namespace fathom::session
