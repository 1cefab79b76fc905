#include "cli/model_options.h"

#include <filesystem>
#include <vector>

#include "base/strings.h"
#include "cli/fields.h"
#include "model/rope_scaling.h"

namespace fathom::cli {

void BindModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("model", options.model,
                 "Model directory (config.json, safetensors, tokenizer.json); without it the "
                 "shipped tiny model");
  BindFields(app, options);
}

Result<std::string> ModelDirectory(const std::string& asked, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!asked.empty()) {
    if (fs::exists(fs::path(asked) / "config.json", error)) return asked;
    const char* found = fs::is_directory(asked, error) ? "found one without config.json"
                        : fs::exists(asked, error)     ? "found a file"
                                                       : "which does not exist";
    return Err(
        Code::kNotFound,
        "{}: expected a model directory, {}. Name one as Hugging Face lays it out "
        "(config.json, *.safetensors, tokenizer.json), or leave MODEL out for the shipped {}",
        asked, found, name);
  }
  // Beside an installed program, in the source tree that it was built in, in the current folder.
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  const std::vector<fs::path> places = {program / "../share/fathom/models" / name,
                                        program / "../../../models" / name,
                                        fs::path("models") / name};
  std::string looked;
  for (const fs::path& place : places) {
    const std::string path = place.lexically_normal().string();
    if (fs::exists(place / "config.json", error)) return path;
    looked += (looked.empty() ? "" : ", ") + path;
  }
  return Err(Code::kNotFound, "the shipped model {} is not in {}; name a model directory", name,
             looked);
}

Result<session::LoadOptions> ToLoadOptions(const ModelOptions& options) {
  session::LoadOptions load;
  load.device = options.device;
  load.cpu_isa = options.cpu_isa;
  load.num_threads = options.threads;
  load.chat_template = options.chat_template;
  load.engine.max_context_tokens = options.context;
  load.engine.prefix_cache = options.prefix_cache;
  if (options.dtype == "f32") {
    load.model.precision = ops::Precision::kF32;
  } else if (options.dtype == "bf16") {
    load.model.precision = ops::Precision::kBF16;
  } else {
    return Err(Code::kInvalidArgument, "--dtype {}: expected bf16 or f32", options.dtype);
  }
  if (options.cpu_gemm == "onednn") {
    load.model.gemm = ops::Gemm::kOneDnn;
  } else if (options.cpu_gemm != "native") {
    return Err(Code::kInvalidArgument, "--cpu-gemm {}: expected native or onednn",
               options.cpu_gemm);
  }
  if (options.kv_dtype == "f32") {
    load.model.kv_dtype = DType::kF32;
  } else if (options.kv_dtype == "bf16") {
    load.model.kv_dtype = DType::kBF16;
  } else {
    return Err(Code::kInvalidArgument, "--kv-dtype {}: expected bf16 or f32", options.kv_dtype);
  }
  load.model.page_tokens = options.page_tokens;
  if (!options.max_memory.empty()) {
    auto bytes = ParseBytes(options.max_memory);
    if (!bytes) return tl::unexpected(WithContext(bytes.error(), "--max-memory"));
    load.model.max_memory_bytes = *bytes;
  }
  if (options.context < 0) {
    return Err(Code::kInvalidArgument, "--context {}: expected 0 or more tokens", options.context);
  }
  if (!options.rope_scaling.empty()) {
    auto rope = model::ParseRopeScaling(options.rope_scaling);
    if (!rope) return tl::unexpected(WithContext(rope.error(), "--rope-scaling"));
    load.model.rope_scaling = *rope;
  }
  return load;
}

}  // namespace fathom::cli
