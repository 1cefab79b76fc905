#include "cli/bare_model.h"

#include "cli/fields.h"
#include "ops/cpu_isa.h"

namespace fathom::cli {

void BindBareModel(CLI::App& app, ModelOptions& options) {
  app.add_option("model", options.model, "Model directory; without it the shipped tiny model");
  OptionBinder binder(app);
  VisitModelFields(binder, options);
}

Result<BareModel> LoadBareModel(const ModelOptions& options) {
  BareModel bare;
  FATHOM_ASSIGN_OR_RETURN(bare.directory, ModelDirectory(options.model, kShippedModel));
  FATHOM_ASSIGN_OR_RETURN(session::LoadOptions load, ToLoadOptions(options));
  FATHOM_ASSIGN_OR_RETURN(const int threads, ThreadsFor(load.num_threads));
  FATHOM_ASSIGN_OR_RETURN(bare.device, ops::MakeDevice(load.device));
  FATHOM_ASSIGN_OR_RETURN(bare.cpu, ops::SelectCpu(load.cpu_isa));
  bare.pool = std::make_unique<ThreadPool>(threads);
  load.model.num_threads = bare.pool->num_threads();
  FATHOM_ASSIGN_OR_RETURN(bare.loaded,
                          model::LoadModel(bare.directory, load.model, *bare.device, *bare.cpu));
  return bare;
}

}  // namespace fathom::cli
