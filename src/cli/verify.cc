// fathom verify MODEL: the model as it is served beside float32; names the first op that diverges.
#include "model/verify.h"

#include <random>
#include <thread>

#include "cli/command.h"
#include "model/load.h"
#include "ops/cpu_isa.h"
#include "text/tokenizer.h"

namespace fathom::cli {
namespace {

struct VerifyCommandOptions {
  std::string model;
  std::string dtype = "bf16";
  std::string kv_dtype = "bf16";
  std::string cpu_isa;
  std::string reference_isa = "scalar";
  std::string text;
  int tokens = 48;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  model::VerifyOptions verify;
};

Result<std::vector<int32_t>> TokensFor(const VerifyCommandOptions& options, int vocab_size) {
  if (!options.text.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer,
                            text::Tokenizer::LoadModel(options.model));
    return tokenizer.Encode(options.text, {.parse_special = false});
  }
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> id(0, vocab_size - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(options.tokens));
  for (int32_t& token : tokens) token = id(random);
  return tokens;
}

Result<int> Verify(const VerifyCommandOptions& options) {
  if (options.threads < 1) {
    return Err(Code::kInvalidArgument, "--threads {}: expected at least 1", options.threads);
  }
  const auto device = ops::MakeCpuDevice();
  ThreadPool pool(options.threads);
  FATHOM_ASSIGN_OR_RETURN(const auto* reference_cpu, ops::SelectCpu(options.reference_isa));
  FATHOM_ASSIGN_OR_RETURN(const auto* served_cpu, ops::SelectCpu(options.cpu_isa));
  model::LoadOptions load;
  load.num_threads = options.threads;
  load.max_step = {.num_tokens = 512, .num_sequences = 1, .num_logits = 512};
  load.precision = ops::Precision::kF32;
  load.kv_dtype = DType::kF32;
  FATHOM_ASSIGN_OR_RETURN(model::LoadedModel reference,
                          model::LoadModel(options.model, load, *device, *reference_cpu));
  load.precision = options.dtype == "f32" ? ops::Precision::kF32 : ops::Precision::kBF16;
  load.kv_dtype = options.kv_dtype == "f32" ? DType::kF32 : DType::kBF16;
  FATHOM_ASSIGN_OR_RETURN(model::LoadedModel served,
                          model::LoadModel(options.model, load, *device, *served_cpu));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                          TokensFor(options, served.model->vocab_size()));
  FATHOM_ASSIGN_OR_RETURN(
      const model::VerifyReport report,
      model::Verify(*reference.model, {.device = device.get(), .pool = &pool, .cpu = reference_cpu},
                    *served.model, {.device = device.get(), .pool = &pool, .cpu = served_cpu},
                    tokens, options.verify));
  fmt::print("{}: {} with a {} cache on {} beside f32 on {}, {} tokens, the last {} generated\n\n",
             served.model->name(), options.dtype, options.kv_dtype, ops::IsaOf(*served_cpu),
             ops::IsaOf(*reference_cpu), tokens.size(), options.verify.generated_tokens);
  fmt::print("{}", model::VerifyTable(report, options.verify));
  return report.first_divergent ? kExitGateFailed : kExitDone;
}

}  // namespace

void AddVerify(Commands& commands) {
  auto options = std::make_shared<VerifyCommandOptions>();
  CLI::App* app = commands.Add(
      "verify", "Compares every op of a model as served with float32; names the first to diverge",
      [options] { return Verify(*options); });
  app->add_option("model", options->model, "Directory of the model")->required();
  app->add_option("--dtype", options->dtype, "Arithmetic of matrix products to verify")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app->add_option("--kv-dtype", options->kv_dtype, "Element type of the KV cache to verify")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app->add_option("--cpu-isa", options->cpu_isa, "Kernels to verify (default: the best here)");
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
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Threads")->capture_default_str();
}

}  // namespace fathom::cli
