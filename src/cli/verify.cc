// fathom verify MODEL: the model as it is served beside float32; names the first op that diverges.
#include "model/verify.h"

#include <random>

#include "cli/bare_model.h"
#include "cli/command.h"
#include "ops/cpu_isa.h"
#include "text/tokenizer.h"

namespace fathom::cli {
namespace {

struct VerifyCommandOptions {
  ModelOptions model;
  std::string reference_isa = "scalar";
  std::string text;
  int tokens = 48;
  model::VerifyOptions verify;
};

Result<std::vector<int32_t>> TokensFor(const VerifyCommandOptions& options,
                                       const BareModel& served) {
  if (!options.text.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer,
                            text::Tokenizer::LoadModel(served.directory));
    return tokenizer.Encode(options.text, {.parse_special = false});
  }
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> id(0, served.loaded.model->vocab_size() - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(options.tokens));
  for (int32_t& token : tokens) token = id(random);
  return tokens;
}

Result<int> Verify(const VerifyCommandOptions& options) {
  ModelOptions reference_options = options.model;
  reference_options.cpu_isa = options.reference_isa;
  reference_options.cpu_gemm = "native";
  reference_options.dtype = reference_options.kv_dtype = "f32";
  FATHOM_ASSIGN_OR_RETURN(BareModel reference, LoadBareModel(reference_options));
  FATHOM_ASSIGN_OR_RETURN(BareModel served, LoadBareModel(options.model));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, TokensFor(options, served));
  FATHOM_ASSIGN_OR_RETURN(
      const model::VerifyReport report,
      model::Verify(*reference.loaded.model, reference.Setup(), *served.loaded.model,
                    served.Setup(), tokens, options.verify));
  fmt::print("{}: {} with a {} cache on {} beside f32 on {}, {} tokens, the last {} generated\n\n",
             served.loaded.model->name(), options.model.dtype, options.model.kv_dtype,
             ops::IsaOf(*served.cpu), ops::IsaOf(*reference.cpu), tokens.size(),
             options.verify.generated_tokens);
  fmt::print("{}", model::VerifyTable(report, options.verify));
  return report.first_divergent ? kExitGateFailed : kExitDone;
}

}  // namespace

void AddVerify(Commands& commands) {
  auto options = std::make_shared<VerifyCommandOptions>();
  CLI::App* app = commands.Add(
      "verify", "Compares every op of a model as served with float32; names the first to diverge",
      [options] { return Verify(*options); });
  BindBareModel(*app, options->model);
  app->add_option("--reference-isa", options->reference_isa, "Kernels of the reference")
      ->capture_default_str();
  app->add_option("--text", options->text, "Text to run (default: random tokens)");
  app->add_option("--tokens", options->tokens, "Random tokens to run")
      ->check(CLI::Range(2, 512))
      ->capture_default_str();
  app->add_option("--generated", options->verify.generated_tokens,
                  "Of them, tokens that take the decode path")
      ->capture_default_str();
  app->add_option("--tolerance", options->verify.tolerance,
                  "Relative error that counts as divergence")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        return value > 0 && value < 1e9 && *end == 0 ? std::string() : "expected a number above 0";
      })
      ->capture_default_str();
}

}  // namespace fathom::cli
