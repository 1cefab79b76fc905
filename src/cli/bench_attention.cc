// fathom bench attention: the CUDA attention kernels checked and timed on this machine's GPU, kept
// results beside peers, or with --explain what a shape costs and how it would be run, on any GPU
// and without one.
#include <nlohmann/json.hpp>

#include "base/write_file.h"
#include "bench/attention/run.h"
#include "cli/attention_cpu.h"
#include "cli/attention_results.h"
#include "cli/command.h"
#include "ops/cuda/explain.h"

namespace fathom::cli {
namespace {

using nlohmann::ordered_json;

struct BenchAttentionOptions {
  bool explain = false;
  bench::AttentionBenchOptions run;
  std::string op;
  std::string device = "cuda";
  CpuAttentionOptions cpu;
  // The shape to explain, or to time on the CPU.
  std::string device_spec = "h200";
  std::string heads = "32/8";
  std::string dims = "128";
  std::string lengths = "8k";
  int64_t queries = 0;
  int32_t page = 64;
  bool full = false;
  int64_t window = -1;
  int64_t anchors = 0;
  std::string dtype = "BF16";
  std::string cache = "bf16";
  std::string reduction = "balanced";
  std::vector<std::string> policies;
  double global_gb_per_s = 0;
  std::vector<std::string> results;
  std::string json;
};

ordered_json LevelsToJson(const cost::LevelBytes& bytes) {
  return {{"hbm", bytes.hbm},
          {"l2", bytes.l2},
          {"shared", bytes.shared},
          {"registers", bytes.registers}};
}

ordered_json ScheduleToJson(const ops::ScheduleReport& s) {
  return {{"mapping", s.mapping}, {"blocks", s.blocks},       {"slots", s.slots},
          {"waves", s.waves},     {"occupancy", s.occupancy}, {"balance", s.balance},
          {"busy", s.busy}};
}

ordered_json ToJson(const ops::Explanation& e) {
  ordered_json json = {{"schema", "fathom.attention_explain/1"},
                       {"shape", e.name},
                       {"gpu", e.gpu},
                       {"flops", e.floor.flops},
                       {"bytes", e.floor.bytes},
                       {"flops_per_byte", e.floor.flops / e.floor.bytes},
                       {"ridge_flops_per_byte", e.ridge},
                       {"roof", e.roofs.front().name},
                       {"floor_us", e.floor_us()}};
  for (const cost::Roof& roof : e.roofs) {
    json["roofs"].push_back({{"name", roof.name},
                             {"amount", roof.amount},
                             {"per_s", roof.per_s},
                             {"us", roof.seconds() * 1e6}});
  }
  json["unfused_bytes"] = LevelsToJson(e.unfused);
  json["plan"] = e.plan;
  if (e.kernel) {
    const ops::AttentionKernel& kernel = e.kernel->kernel;
    json["fused_bytes"] = LevelsToJson(e.kernel->fused);
    json["kernel"] = {{"family", kernel.family},
                      {"rows", kernel.rows},
                      {"keys", kernel.keys},
                      {"threads", kernel.threads},
                      {"shared_bytes", kernel.shared_bytes},
                      {"flops", e.kernel->flops},
                      {"shared_us", e.kernel->shared_us},
                      {"tiles", e.kernel->tiles},
                      {"dense_tiles", e.kernel->dense_tiles}};
    for (const ops::SharedAccess& access : e.kernel->shared) {
      json["shared_accesses"].push_back({{"what", access.what},
                                         {"main_loop", access.main_loop},
                                         {"wavefronts", access.found.count},
                                         {"excess", access.found.excess()},
                                         {"unswizzled", access.plain.count}});
    }
  }
  if (e.schedule) json["schedule"] = ScheduleToJson(*e.schedule);
  for (const ops::PolicyRow& row : e.policies) {
    json["policies"].push_back({{"name", row.name},
                                {"claim", row.claim},
                                {"rows", row.rows},
                                {"keys", row.keys},
                                {"shared_bytes", row.shared_bytes},
                                {"schedule", ScheduleToJson(row.schedule)},
                                {"obstacle", row.obstacle}});
  }
  if (e.measured_us > 0) {
    json["measured_us"] = e.measured_us;
    json["percent_of_roof"] = 100 * e.floor_us() / e.measured_us;
  }
  return json;
}

Result<const cost::Hardware*> FindGpu(const std::string& name) {
  if (const cost::Hardware* found = cost::FindHardware(name)) return found;
  std::string known;
  for (const cost::Hardware& hardware : cost::KnownHardware()) {
    known += (known.empty() ? "" : ", ") + std::string(hardware.name);
  }
  return Err(Code::kInvalidArgument, "--device-spec {}: expected one of {}", name, known);
}

Result<ops::AttentionCase> CaseOf(const BenchAttentionOptions& o) {
  ops::AttentionCase made{.decode = o.op != "prefill"};
  const auto of_option = [](const char* option, const std::string& text, Status parsed) -> Status {
    if (parsed) return parsed;
    return tl::unexpected(WithContext(parsed.error(), fmt::format("{} \"{}\"", option, text)));
  };
  FATHOM_TRY(of_option("--heads", o.heads, ops::ParseHeads(o.heads, &made)));
  FATHOM_TRY(of_option("--dims", o.dims, ops::ParseDims(o.dims, &made)));
  FATHOM_TRY(of_option("--lengths", o.lengths, ops::ParseLengths(o.lengths, o.queries, &made)));
  made.page_tokens = o.page;
  made.call.causal = !o.full;
  made.call.window = o.window;
  made.call.anchors = o.anchors;
  if (o.anchors > 0 && o.window < 0) {
    return Err(Code::kInvalidArgument, "--anchors {} without --window: every key is kept",
               o.anchors);
  }
  const std::optional<DType> dtype = DTypeFromName(o.dtype);
  if (!dtype) {
    return Err(Code::kInvalidArgument,
               "--dtype {}: expected BF16, F16, F32, F8_E4M3, I8, U8, I32, I64 or BOOL", o.dtype);
  }
  made.dtype = *dtype;
  made.call.cache = o.cache == "int8"  ? cost::CacheEncoding::kInt8
                    : o.cache == "fp8" ? cost::CacheEncoding::kFp8
                                       : cost::CacheEncoding::kBF16;
  return made;
}

Result<AttentionResults> LoadResults(const std::vector<std::string>& paths) {
  AttentionResults results;
  for (const std::string& path : paths) FATHOM_TRY(LoadAttentionResults(path, &results));
  return results;
}

Result<int> ExplainShape(const BenchAttentionOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(const cost::Hardware* hardware, FindGpu(o.device_spec));
  FATHOM_ASSIGN_OR_RETURN(const ops::AttentionCase made, CaseOf(o));
  ops::ExplainOptions options{.policies = o.policies, .global_gb_per_s = o.global_gb_per_s};
  options.reduction = o.reduction == "spans"             ? ops::Reduction::kSpans
                      : o.reduction == "batch-invariant" ? ops::Reduction::kBatchInvariant
                                                         : ops::Reduction::kBalanced;
  if (!o.run.tuning_path.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const ops::TuningTable table,
                            ops::LoadTuningTable(o.run.tuning_path, std::string(hardware->name)));
    const auto& call = made.call;
    const int rows = made.DecodeShape().max_query_tokens * (call.heads / call.kv_heads);
    options.decode_tuning = table.Decode(call.dim_qk, call.dim_v, rows);
    options.prefill_tuning = table.Prefill(call.dim_qk, call.dim_v);
  }
  if (!o.results.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const AttentionResults results, LoadResults(o.results));
    const std::string who = o.reduction == "balanced" ? "fathom" : "fathom " + o.reduction;
    if ((made.dtype != DType::kBF16 && made.dtype != DType::kF16) ||
        (made.decode && made.page_tokens != 64)) {
      return Err(Code::kInvalidArgument,
                 "--results: kept rows are of BF16 or F16 and, to decode, pages of 64; found "
                 "--dtype {} --page {}",
                 o.dtype, made.page_tokens);
    }
    const AttentionRow* row = results.Find(made.Name(), who);
    if (row == nullptr) {
      return Err(Code::kNotFound, "--results: no row \"{}\" of {} there", made.Name(), who);
    }
    if (cost::FindHardware(results.gpu) != hardware) {
      return Err(Code::kInvalidArgument, "--results: measured on {}, --device-spec is {}",
                 results.gpu, hardware->name);
    }
    options.measured_us = row->us;
  }
  FATHOM_ASSIGN_OR_RETURN(const ops::Explanation explanation,
                          ops::Explain(made, *hardware, options));
  if (o.json != "-") fmt::print("{}", ops::ToText(explanation));
  if (!o.json.empty()) FATHOM_TRY(WriteFile(o.json, ToJson(explanation).dump(2) + "\n"));
  return kExitDone;
}

Result<int> TimeOnCpu(const BenchAttentionOptions& o) {
  constexpr double kTolerance = 1.5e-2;  // queries and probabilities are rounded to bf16
  FATHOM_ASSIGN_OR_RETURN(const ops::AttentionCase made, CaseOf(o));
  CpuAttentionOptions options = o.cpu;
  options.repeats = o.run.repeats;
  FATHOM_ASSIGN_OR_RETURN(const CpuAttentionResult r, RunCpuAttention(made, options));
  const bool good = r.error <= kTolerance;
  if (o.json != "-") {
    // What the caches can hold is no measure of memory.
    constexpr double kBeyondCaches = 256e6;
    const bool memory = r.gb_per_s * r.us * 1e3 >= kBeyondCaches;
    fmt::print(
        "{} on {} threads, {}: {:.1f} us, {:.1f} GB/s of keys and values ({}), {:.1f} "
        "GFLOP/s, error {:.1e}{}\n",
        made.Name(), r.threads, r.isa, r.us, r.gb_per_s,
        memory ? fmt::format("{:.1f} % of the {:.1f} GB/s read here",
                             100 * r.gb_per_s * 1e9 / r.roof_bytes_per_s, r.roof_bytes_per_s / 1e9)
               : "few enough for caches",
        r.gflops, r.error, good ? "" : " FAILED");
    if (r.dense_tiles > 0) {
      fmt::print("  {} of {} tiles of 64 keys visited\n", r.tiles, r.dense_tiles);
    }
  }
  if (!o.json.empty()) {
    const ordered_json json = {{"schema", "fathom.bench_attention_cpu/1"},
                               {"shape", made.Name()},
                               {"isa", r.isa},
                               {"threads", r.threads},
                               {"us", r.us},
                               {"gb_per_s", r.gb_per_s},
                               {"gflops", r.gflops},
                               {"error", r.error},
                               {"read_bytes_per_s", r.roof_bytes_per_s},
                               {"tiles", r.tiles},
                               {"dense_tiles", r.dense_tiles}};
    FATHOM_TRY(WriteFile(o.json, json.dump(2) + "\n"));
  }
  return good ? kExitDone : kExitGateFailed;
}

// Kept results beside their peers: needs no GPU.
Result<int> ShowResults(const BenchAttentionOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(AttentionResults results, LoadResults(o.results));
  if (o.op != "" && o.op != "decode" && o.op != "prefill") {
    return Err(Code::kInvalidArgument, "--results --op {}: the table has decode and prefill", o.op);
  }
  std::erase_if(results.rows, [&o](const AttentionRow& row) {
    return (!o.op.empty() && row.decode != (o.op == "decode")) ||
           row.shape.find(o.run.only) == std::string::npos;
  });
  if (results.rows.empty()) {
    return Err(Code::kNotFound, "--results: no row there whose name contains \"{}\"", o.run.only);
  }
  const cost::Hardware* hardware = cost::FindHardware(results.gpu);
  if (hardware == nullptr) {
    return Err(Code::kInvalidArgument, "--results: measured on \"{}\", whose roofs are not known",
               results.gpu);
  }
  fmt::print("{}; roofs {:.2f} TB/s, {:.0f} TFLOP/s bf16", results.gpu,
             hardware->memory_bytes_per_s / 1e12, hardware->bf16_flops_per_s / 1e12);
  for (const auto& [name, version] : results.versions) fmt::print("; {} {}", name, version);
  fmt::print("\nratio: best peer's time / Fathom's\n\n{}",
             CompareTable(results, hardware->memory_bytes_per_s, hardware->bf16_flops_per_s));
  return kExitDone;
}

enum Mode : uint8_t { kRun = 1, kTable = 2, kExplain = 4, kCpu = 8 };

// An option that would be ignored is refused.
Status CheckTogether(const BenchAttentionOptions& o, const CLI::App& app, Mode mode) {
  constexpr struct {
    const char* option;
    int goes_with;  // modes
  } kOptions[] = {{"--check", kRun},
                  {"--time", kRun},
                  {"--small", kRun},
                  {"--autotune", kRun},
                  {"--repeats", kRun | kCpu},
                  {"--only", kRun | kTable},
                  {"--tuning", kRun | kExplain},
                  {"--results", kTable | kExplain},
                  {"--json", kRun | kExplain | kCpu},
                  {"--device", kRun | kCpu},
                  {"--threads", kCpu},
                  {"--cpu-isa", kCpu},
                  {"--device-spec", kExplain},
                  {"--heads", kExplain | kCpu},
                  {"--dims", kExplain | kCpu},
                  {"--lengths", kExplain | kCpu},
                  {"--queries", kExplain | kCpu},
                  {"--page", kExplain | kCpu},
                  {"--full", kExplain | kCpu},
                  {"--window", kExplain | kCpu},
                  {"--anchors", kExplain | kCpu},
                  {"--dtype", kExplain | kCpu},
                  {"--cache", kExplain | kCpu},
                  {"--reduction", kExplain},
                  {"--policy", kExplain},
                  {"--global-gb-per-s", kExplain}};
  const char* const doing = mode == kExplain ? "--explain"
                            : mode == kCpu   ? "--device cpu"
                            : mode == kTable ? "--results alone (a table of kept rows)"
                                             : "running on the GPU";
  std::string refused;
  std::string legal;
  for (const auto& [option, goes_with] : kOptions) {
    if ((goes_with & mode) != 0) {
      legal += fmt::format(" {}", option);
    } else if (app.count(option) > 0) {
      refused += fmt::format(" {}", option);
    }
  }
  if (!refused.empty()) {
    return Err(Code::kInvalidArgument, "{} does not take{}; it takes --op{}", doing, refused,
               legal);
  }
  if (mode == kCpu && (o.dtype != "BF16" || o.cache != "bf16" || o.page == 0)) {
    return Err(
        Code::kInvalidArgument,
        "--device cpu: found --dtype {} --cache {} --page {}, expected BF16, bf16 and a page "
        "of 16, 32, 64 or 128 tokens",
        o.dtype, o.cache, o.page);
  }
  return {};
}

Result<int> BenchAttention(BenchAttentionOptions o, const CLI::App& app) {
  const auto wanted = [&o](const char* op) { return o.op.empty() || o.op == op; };
  o.run.decode = wanted("decode");
  o.run.prefill = wanted("prefill");
  o.run.write = wanted("write");
  o.run.backward = wanted("backward");
  o.run.merge = wanted("merge");
  o.run.micro = wanted("micro");
  if ((o.explain || o.device == "cpu") && !o.op.empty() && o.op != "decode" && o.op != "prefill") {
    return Err(Code::kInvalidArgument,
               "--op {}: --explain and --device cpu know decode and prefill only", o.op);
  }
  const bool asked = o.run.check || o.run.time || !o.run.autotune_path.empty();
  const Mode mode = o.explain                      ? kExplain
                    : o.device == "cpu"            ? kCpu
                    : !o.results.empty() && !asked ? kTable
                                                   : kRun;
  FATHOM_TRY(CheckTogether(o, app, mode));
  if (mode == kExplain) return ExplainShape(o);
  if (mode == kCpu) return TimeOnCpu(o);
  if (mode == kTable) return ShowResults(o);
  if (!asked) o.run.check = o.run.time = true;
  FATHOM_ASSIGN_OR_RETURN(const bench::AttentionBenchResult result,
                          bench::RunAttentionBench(o.run));
  if (!o.json.empty()) FATHOM_TRY(WriteFile(o.json, result.json.dump(1) + "\n"));
  return result.failures > 0 ? kExitGateFailed : kExitDone;
}

}  // namespace

void AddBenchAttention(Commands& commands) {
  auto o = std::make_shared<BenchAttentionOptions>();
  auto self = std::make_shared<const CLI::App*>();
  CLI::App* app = commands.Group("bench", "Benchmarks")
                      .Add("attention",
                           "CUDA attention kernels: checked and timed on this GPU, or explained "
                           "for any (--explain)",
                           [o, self] { return BenchAttention(*o, **self); });
  *self = app;
  app->add_option(
         "--op", o->op,
         "decode, prefill, write, backward, merge or micro (strides and gathers); default: all "
         "(--explain: decode)")
      ->check(CLI::IsMember({"decode", "prefill", "write", "backward", "merge", "micro"}));
  app->add_flag("--check", o->run.check, "Compare with references on every check case");
  app->add_flag("--time", o->run.time, "Time the benchmark shapes");
  app->add_option("--repeats", o->run.repeats, "Timed replays a shape; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--only", o->run.only, "Only cases whose name contains this");
  app->add_flag("--small", o->run.small, "Only cases small enough for a sanitizer");
  app->add_option("--autotune", o->run.autotune_path,
                  "Time every tuning candidate and write this GPU's table there");
  app->add_option("--tuning", o->run.tuning_path, "Tuning table to plan with");
  app->add_option("--results", o->results,
                  "Measured results (JSON of this command or of bench/attention/peers.py): alone, "
                  "a table beside peers; with --explain, the percentage reached")
      ->delimiter(',');
  app->add_option("--json", o->json, "Also write JSON there; - is standard output");

  app->add_option("--device", o->device,
                  "cuda: all benchmark shapes on this GPU; cpu: the shape given below, dense or "
                  "sparse, on this CPU")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  app->add_option("--threads", o->cpu.threads, "CPU threads; 0: all")->capture_default_str();
  app->add_option("--cpu-isa", o->cpu.cpu_isa, "Force CPU kernels; empty: the best");

  constexpr int kMaxTokens = 1 << 30;
  const char* group = "One shape (--explain needs no GPU; --device cpu)";
  app->add_flag("--explain", o->explain, "What the shape costs, what bounds it, how it is planned")
      ->group(group);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str()->group(group);
  };
  option("--device-spec", o->device_spec, "GPU whose data sheet counts");
  option("--heads", o->heads, "Query heads, or QUERY/KV");
  option("--dims", o->dims,
         "Head dim, QK/V, or mla (decode: 576/512, one kv head; prefill: 192/128 "
         "made from latents)");
  option("--lengths", o->lengths, "Keys of the sequences: [COUNTx]KEYS,... with k = 1024");
  option("--queries", o->queries, "Query tokens of each sequence; 0: 1 to decode, all to prefill")
      ->check(CLI::Range(0, kMaxTokens));
  option("--page", o->page, "Tokens of a page; 0: contiguous (prefill)")
      ->check(CLI::Range(0, kMaxTokens));
  app->add_flag("--full", o->full, "No causal mask")->group(group);
  option("--window", o->window, "Keep keys at most this far from the query; -1: all")
      ->check(CLI::Range(-1, kMaxTokens));
  option("--anchors", o->anchors, "... and the first so many")->check(CLI::Range(0, kMaxTokens));
  option("--dtype", o->dtype, "Of queries, cache and outputs: BF16 or F16");
  option("--cache", o->cache, "bf16, int8 or fp8")->check(CLI::IsMember({"bf16", "int8", "fp8"}));
  option("--reduction", o->reduction, "balanced, batch-invariant or spans")
      ->check(CLI::IsMember({"balanced", "batch-invariant", "spans"}));
  app->add_option("--policy", o->policies, "Only these of the planning policies")
      ->delimiter(',')
      ->group(group);
  option("--global-gb-per-s", o->global_gb_per_s,
         "Measured bandwidth for policy handbook-io; 0: the data sheet's")
      ->check(CLI::Range(0.0, 1e6));
}

}  // namespace fathom::cli
