// fathom run [MODEL]: completes a text or chats in the terminal, streaming, then says where the
// time went.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <iostream>
#include <iterator>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/strings.h"
#include "base/write_file.h"
#include "cli/fields.h"
#include "cli/model_options.h"
#include "cli/terminal.h"
#include "event/ring.h"
#include "observe/ledger.h"
#include "observe/ledger_report.h"
#include "observe/recorder.h"
#include "observe/trace_writer.h"

namespace fathom::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  std::string system;
  bool chat = false;
  int max_tokens = 256;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool hide_thinking = false;
  bool quiet = false;
  std::string language = "en";
  std::string json;
  std::string trace;
  bool events = true;
};

// Text from the engine's thread to the terminal's: a slow terminal must not hold the engine.
class Printer : public session::TextListener {
 public:
  void OnDelta(int32_t, const session::TextDelta& delta) override {
    const std::lock_guard lock(mutex_);
    deltas_.push_back(delta);
    ready_.notify_one();
  }
  void OnFinish(int32_t, const session::Finish& finish) override {
    const std::lock_guard lock(mutex_);
    reason_ = finish.reason;
    usage_ = finish.usage;
    if (finish.error != nullptr) error_ = *finish.error;
    done_ns_ = NowNs();
    done_ = true;
    ready_.notify_one();
  }

  // The next delta; nullopt when the answer is complete. Returns early, with an empty delta, when
  // the user interrupts.
  std::optional<session::TextDelta> Next() {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::milliseconds(50),
                    [this] { return !deltas_.empty() || done_; });
    if (!deltas_.empty()) {
      session::TextDelta delta = std::move(deltas_.front());
      deltas_.pop_front();
      return delta;
    }
    if (done_) return std::nullopt;
    return session::TextDelta{};
  }

  // After the end of the answer:
  engine::FinishReason reason() const { return reason_; }
  int64_t done_ns() const { return done_ns_; }  // when the engine was done with it
  const engine::Usage& usage() const { return usage_; }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<session::TextDelta> deltas_;
  bool done_ = false;
  int64_t done_ns_ = 0;
  engine::FinishReason reason_ = engine::FinishReason::kStop;
  engine::Usage usage_;
  std::optional<Error> error_;
};

volatile std::sig_atomic_t g_interrupted = 0;

class Runner {
 public:
  explicit Runner(const RunOptions& options)
      : options_(options), style_(StyleFor(STDOUT_FILENO)), ring_(1 << 16) {}

  Result<int> Run() {
    FATHOM_TRY(Start());
    if (!options_.prompt.empty()) {
      FATHOM_TRY(Ask(options_.prompt, options_.chat));
    } else if (!IsTerminal(STDIN_FILENO)) {
      const std::string text{std::istreambuf_iterator<char>(std::cin),
                             std::istreambuf_iterator<char>()};
      if (Trim(text).empty()) {
        return Err(
            Code::kInvalidArgument,
            "nothing to do: give -p TEXT, pipe a text in, or start it in a terminal to chat");
      }
      FATHOM_TRY(Ask(text, options_.chat));
    } else {
      FATHOM_TRY(Converse());
    }
    return kExitDone;
  }

 private:
  Status Start() {
    if (options_.language != "en" && options_.language != "zh") {
      return Err(Code::kInvalidArgument, "--lang {}: expected en or zh", options_.language);
    }
    FATHOM_ASSIGN_OR_RETURN(const std::string directory,
                            ModelDirectory(options_.model.model, kShippedModel));
    FATHOM_ASSIGN_OR_RETURN(session::LoadOptions load, ToLoadOptions(options_.model));
    std::vector<observe::Consumer*> consumers = {&ledger_};
    if (!options_.trace.empty()) {
      if (!options_.events) {
        return Err(Code::kInvalidArgument, "--trace needs events: drop --no-events");
      }
      FATHOM_ASSIGN_OR_RETURN(
          trace_, observe::TraceWriter::Create(options_.trace, "fathom run", kMaxTraceBytes));
      consumers.push_back(trace_.get());
    }
    if (options_.events) {
      recorder_ = std::make_unique<observe::Recorder>(&ring_, consumers);
      sink_ = event::Sink(&ring_);
    }
    load.sink = sink_;
    load.engine.max_running = 8;  // one conversation
    if (!options_.quiet) {
      load.model.on_plan = [](const cost::MemoryPlan& plan) {
        if (IsTerminal(STDERR_FILENO)) fmt::print(stderr, "{}", plan.Table());
      };
    }
    FATHOM_ASSIGN_OR_RETURN(loaded_, session::LoadSession(directory, std::move(load)));
    if (!options_.quiet) {
      fmt::print(stderr, "{} on {} threads, {}\n", loaded_->session().model().name,
                 loaded_->num_threads(), loaded_->cpu_isa());
    }
    std::signal(SIGINT, [](int) { g_interrupted = 1; });
    return {};
  }

  template <class Params>
  void Fill(Params& params) {
    params.id = next_id_++;
    params.sampling = loaded_->session().model().default_sampling;
    if (options_.temperature)
      params.sampling.temperature = static_cast<float>(*options_.temperature);
    if (options_.top_p) params.sampling.top_p = static_cast<float>(*options_.top_p);
    params.sampling.seed = options_.seed;
    params.max_tokens = options_.max_tokens;
    params.stop = options_.stop;
  }

  // One prompt: a chat with `history_`, or a completion.
  Status Ask(const std::string& text, bool chat) {
    auto printer = std::make_shared<Printer>();
    const int64_t arrived_ns = NowNs();
    engine::RequestId id = 0;
    Status started;
    if (chat) {
      session::ChatParams params;
      Fill(params);
      id = params.id;
      if (history_.empty() && !options_.system.empty()) {
        history_.push_back({.role = session::ChatRole::kSystem, .content = options_.system});
      }
      history_.push_back({.role = session::ChatRole::kUser, .content = text});
      params.messages = history_;
      Arrived(id, arrived_ns, text.size());
      started = loaded_->session().Chat(std::move(params), printer);
    } else {
      session::CompletionParams params;
      Fill(params);
      id = params.id;
      params.prompt = text;
      Arrived(id, arrived_ns, text.size());
      started = loaded_->session().Complete(std::move(params), printer);
      if (started && !options_.quiet) {
        Shown(id, fmt::format("{}{}{}", style_.dim, text, style_.reset));
      }
    }
    FATHOM_TRY(std::move(started));
    session::ChatMessage answer{.role = session::ChatRole::kAssistant};
    g_interrupted = 0;
    bool thinking = false;
    while (const auto delta = printer->Next()) {
      if (g_interrupted != 0) loaded_->session().Cancel(id);
      if (!options_.hide_thinking && !delta->reasoning_content.empty()) {
        Shown(id, fmt::format("{}{}{}", style_.dim, delta->reasoning_content, style_.reset));
        thinking = true;
      }
      if (!delta->content.empty()) {
        std::string_view shown = delta->content;
        // The blank lines between a thinking section and its answer belong to neither.
        if (answer.content.empty() && chat) {
          const size_t first = shown.find_first_not_of('\n');
          shown = first == std::string_view::npos ? std::string_view() : shown.substr(first);
          if (thinking && !shown.empty()) Shown(id, "\n\n");
        }
        Shown(id, shown);
        answer.content += delta->content;
      }
      answer.reasoning_content += delta->reasoning_content;
    }
    sink_.Emit({.start_ns = printer->done_ns(),
                .duration_ns = NowNs() - printer->done_ns(),
                .request_id = id,
                .kind = event::Kind::kWaitForCpu});
    Shown(id, "\n");
    sink_.Emit({.start_ns = NowNs(), .request_id = id, .kind = event::Kind::kResponded});
    if (printer->error()) return tl::unexpected(*printer->error());
    if (chat) history_.push_back(answer);
    if (recorder_ != nullptr) recorder_->Flush();
    return Report(id, *printer, answer);
  }

  Status Report(engine::RequestId id, const Printer& printer, const session::ChatMessage& answer) {
    const auto ledger = ledger_.Find(id, NowNs());
    if (!options_.quiet && ledger) {
      const auto language =
          options_.language == "zh" ? observe::Language::kChinese : observe::Language::kEnglish;
      Write("\n" + observe::LedgerTable(*ledger, language));
    }
    if (trace_ != nullptr && !trace_->stopped().empty()) {
      fmt::print(stderr, "fathom: {}: the trace ends early: {}\n", options_.trace,
                 trace_->stopped());
    }
    if (options_.json.empty()) return {};
    nlohmann::ordered_json json = {{"schema", "fathom.run/1"},
                                   {"model", loaded_->session().model().name},
                                   {"content", answer.content},
                                   {"reasoning_content", answer.reasoning_content},
                                   {"finish_reason", engine::NameOf(printer.reason())},
                                   {"usage",
                                    {{"prompt_tokens", printer.usage().prompt_tokens},
                                     {"cached_prompt_tokens", printer.usage().cached_prompt_tokens},
                                     {"generated_tokens", printer.usage().generated_tokens}}}};
    if (ledger) json["ledger"] = observe::LedgerJson(*ledger, std::to_string(id));
    return WriteFile(options_.json, json.dump(1) + "\n");
  }

  // A conversation in the terminal: an empty line or the end of input ends it.
  Status Converse() {
    fmt::print("{}Chat with {}; Ctrl-C stops an answer, Ctrl-D ends.{}\n", style_.dim,
               loaded_->session().model().name, style_.reset);
    const bool has_template = !loaded_->session().model().template_family.empty();
    std::string line;
    for (;;) {
      fmt::print("{}> {}", style_.bold, style_.reset);
      std::fflush(stdout);
      if (!std::getline(std::cin, line)) break;
      if (Trim(line).empty()) continue;
      if (const Status status = Ask(line, has_template); !status) {
        // What was asked cannot be answered; the conversation goes on.
        fmt::print(stderr, "fathom: {}\n", status.error().message);
        if (!history_.empty()) history_.pop_back();
      }
    }
    fmt::print("\n");
    return {};
  }

  void Arrived(engine::RequestId id, int64_t at_ns, size_t bytes) {
    sink_.Emit({.start_ns = at_ns,
                .request_id = id,
                .value = bytes,
                .kind = event::Kind::kRequestArrived});
  }
  // Writes to the terminal and says how long that took.
  void Shown(engine::RequestId id, std::string_view text) {
    event::Event write{.start_ns = NowNs(),
                       .request_id = id,
                       .value = text.size(),
                       .kind = event::Kind::kNetworkWrite};
    Write(text);
    write.duration_ns = NowNs() - write.start_ns;
    sink_.Emit(write);
  }
  // With --json - standard output belongs to the JSON.
  void Write(std::string_view text) {
    if (options_.json == "-") return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  static constexpr uint64_t kMaxTraceBytes = uint64_t{1} << 30;

  const RunOptions& options_;
  Style style_;
  event::Ring ring_;
  event::Sink sink_;  // into ring_, unless events are off
  observe::Ledger ledger_;
  std::unique_ptr<observe::TraceWriter> trace_;
  std::unique_ptr<observe::Recorder> recorder_;
  std::unique_ptr<session::LoadedSession> loaded_;  // emits into ring_: destroyed first
  std::vector<session::ChatMessage> history_;
  engine::RequestId next_id_ = 1;
};

}  // namespace

void AddRun(Commands& commands) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* app = commands.Add(
      "run", "Completes a text or chats in the terminal, then says where the time went",
      [options] { return Runner(*options).Run(); });
  BindModelOptions(*app, options->model);
  app->add_option("-p,--prompt", options->prompt,
                  "Text to complete, or with --chat the message to answer; without it: standard "
                  "input, or a conversation in a terminal");
  app->add_option("-n,--max-tokens", options->max_tokens, "Tokens to generate at most")
      ->check(WholeNumber(1))
      ->capture_default_str();
  app->add_flag("--chat", options->chat, "Use the model's chat template");
  app->add_option("--system", options->system, "System message of a chat");
  app->add_option("--temperature", options->temperature,
                  "0 takes the likeliest token; the model's own without it");
  app->add_option("--top-p", options->top_p,
                  "Sample from the likeliest tokens of this total probability");
  app->add_option("--seed", options->seed, "The same seed gives the same answer");
  app->add_option("--stop", options->stop, "Text that ends the answer; may be repeated");
  app->add_flag("--hide-thinking", options->hide_thinking, "Show the answer without its reasoning");
  app->add_flag("-q,--quiet", options->quiet, "Only the answer: no plan, no ledger");
  app->add_option("--lang", options->language, "Language of the ledger: en or zh")
      ->capture_default_str();
  app->add_option("--json", options->json, "Write answer, usage and ledger as JSON; - for stdout");
  app->add_option("--trace", options->trace, "Write a Chrome trace that Perfetto opens");
  app->add_flag("--events,!--no-events", options->events,
                "Record where time goes; without, there is no ledger and no trace")
      ->capture_default_str();
}

}  // namespace fathom::cli
