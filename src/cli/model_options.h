#pragma once
// The options that every command which loads a model shares, and where the shipped models lie.
#include <string>

#include "base/result.h"
#include "cli/command.h"
#include "session/load.h"

namespace fathom::cli {

struct ModelOptions {
  std::string model;  // a directory; empty: the shipped tiny model
  std::string device = "cpu";
  std::string cpu_isa;
  std::string cpu_gemm = "native";
  int threads = 0;
  std::string dtype = "bf16";
  std::string kv_dtype = "bf16";
  int page_tokens = 64;
  std::string max_memory;
  int context = 0;
  std::string rope_scaling;
  std::string chat_template;
  bool prefix_cache = true;
};

// The field lists behind --help and parsing (fields.h): what running a model takes, and what
// serving it takes besides.
template <class Visitor>
void VisitModelFields(Visitor& visit, ModelOptions& o) {
  visit("device", o.device, "Where the model runs: cpu or cuda");
  visit("cpu-isa", o.cpu_isa, "Force kernels: scalar, avx2, avx512 or avx512bf16; empty: the best");
  visit("cpu-gemm", o.cpu_gemm,
        "Products of many rows: native, or onednn (more memory; bits depend on the batch)");
  visit("threads", o.threads, "CPU threads; 0: all that this process may use");
  visit("dtype", o.dtype, "Arithmetic of matrix products: bf16 or f32");
  visit("kv-dtype", o.kv_dtype, "Type of the KV cache: bf16 or f32");
  visit("page-tokens", o.page_tokens, "Tokens of a KV page: 16, 32, 64 or 128");
  visit("max-memory", o.max_memory, "Refuse to use more memory than this, e.g. 8GiB");
  visit("rope-scaling", o.rope_scaling,
        "Replace the model's: none, linear, dynamic, yarn or llama3 with parameters, e.g. "
        "yarn,factor=4,original=4096");
}
template <class Visitor>
void VisitFields(Visitor& visit, ModelOptions& o) {
  VisitModelFields(visit, o);
  visit("context", o.context, "Longest sequence in tokens; 0: the model's, or what fits");
  visit("chat-template", o.chat_template, "Family to use when the model's own is not known");
  visit("prefix-cache", o.prefix_cache, "Share the pages of equal prompt beginnings");
}

// Adds the positional MODEL and all fields to a command.
void BindModelOptions(CLI::App& app, ModelOptions& options);

// The directory to load: the one asked for, or the shipped `models/NAME` beside the program. The
// error lists where it was looked for.
Result<std::string> ModelDirectory(const std::string& asked, const std::string& name);

// Checked and turned into what session::LoadSession takes.
Result<session::LoadOptions> ToLoadOptions(const ModelOptions& options);

inline constexpr const char* kShippedModel = "tiny-deepseek";

}  // namespace fathom::cli
