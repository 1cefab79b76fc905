#pragma once
// A model without engine or session, for the commands that look at the model itself.
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "cli/model_options.h"
#include "model/load.h"
#include "model/step_runner.h"
#include "ops/device.h"

namespace fathom::cli {

struct BareModel {
  std::string directory;
  std::unique_ptr<ops::Device> device;
  const kernels::cpu::KernelTable* cpu = nullptr;
  std::unique_ptr<ThreadPool> pool;
  model::LoadedModel loaded;

  model::StepRunner::Setup Setup() const {
    return {.device = device.get(), .pool = pool.get(), .cpu = cpu};
  }
};

// The positional MODEL and what running it takes.
void BindBareModel(CLI::App& app, ModelOptions& options);
Result<BareModel> LoadBareModel(const ModelOptions& options);

}  // namespace fathom::cli
