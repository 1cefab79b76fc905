#pragma once
// From a model directory to something that answers: `fathom run`, `fathom serve` and the C ABI
// start here. Configuration, tokenizer and weights are validated, the memory is planned (and the
// plan shown) before anything is allocated.
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "cost/memory_plan.h"
#include "engine/engine.h"
#include "event/ring.h"
#include "model/load.h"
#include "ops/comm.h"
#include "ops/device.h"
#include "session/session.h"

namespace fathom::session {

struct LoadOptions {
  std::string name;              // that clients see; empty: the directory's
  std::string device = "cpu";    // ops::MakeDevice
  std::string cpu_isa;           // kernels::cpu::Select; empty: the best this CPU runs
  int32_t num_threads = 0;       // 0: the CPUs this process may run on
  std::string chat_template;     // a family of text::ChatTemplate::Families; empty: the model's own
  engine::EngineOptions engine;  // num_pages 0: as many as the memory plan has
  // max_step, num_threads and context_tokens are taken from the fields above.
  model::LoadOptions model;
  event::Sink sink;
};

// A session and everything it stands on.
class LoadedSession {
 public:
  ~LoadedSession();

  Session& session() { return *session_; }
  const cost::MemoryPlan& memory() const { return memory_; }
  const std::string& cpu_isa() const { return cpu_isa_; }
  int32_t num_threads() const { return pool_->num_threads(); }
  const engine::EngineOptions& engine_options() const { return engine_options_; }

 private:
  friend Result<std::unique_ptr<LoadedSession>> LoadSession(const std::string&, LoadOptions);
  LoadedSession() = default;

  std::unique_ptr<ops::Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  ops::Comm comm_;
  std::string cpu_isa_;
  cost::MemoryPlan memory_;
  engine::EngineOptions engine_options_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<engine::Engine> engine_;  // destroyed first: it calls the session's listeners
};

Result<std::unique_ptr<LoadedSession>> LoadSession(const std::string& directory,
                                                   LoadOptions options);

}  // namespace fathom::session
