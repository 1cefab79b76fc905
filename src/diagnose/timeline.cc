#include "diagnose/timeline.h"

#include <cmath>
#include <iterator>

#include "base/check.h"

namespace fathom::diagnose {
namespace {

constexpr std::string_view kCategoryNames[] = {
    "cpu_op", "annotation", "gpu_annotation", "nvtx",       "python",  "runtime",
    "driver", "kernel",     "memcpy",         "memset",     "graph",   "sync",
    "event",  "overhead",   "profiler_range", "collective", "os_call", "schedule",
    "window", "instant",    "engine",         "other"};
static_assert(std::size(kCategoryNames) == kNumCategories);

constexpr std::string_view kCopyKindNames[] = {"unknown", "HtoD", "DtoH",    "DtoD",
                                               "PtoP",    "HtoH", "unified", "memset"};
static_assert(std::size(kCopyKindNames) == static_cast<size_t>(CopyKind::kMemset) + 1);

constexpr std::string_view kLogFieldNames[] = {"running",
                                               "waiting",
                                               "swapped",
                                               "kv_usage",
                                               "cpu_kv_usage",
                                               "prefix_hit_rate",
                                               "external_hit_rate",
                                               "mm_hit_rate",
                                               "cpu_prefix_hit_rate",
                                               "prompt_tokens_per_s",
                                               "decode_tokens_per_s",
                                               "tokens",
                                               "new_sequences",
                                               "new_tokens",
                                               "cached_tokens",
                                               "cuda_graph",
                                               "preemptions",
                                               "retracted",
                                               "corrupted",
                                               "accept_length",
                                               "accept_rate",
                                               "draft_tokens_per_s",
                                               "accepted_tokens_per_s",
                                               "full_usage",
                                               "swa_usage",
                                               "mamba_usage",
                                               "prealloc_requests",
                                               "inflight_requests",
                                               "transfer_requests",
                                               "iteration",
                                               "kv_capacity_tokens",
                                               "max_concurrency",
                                               "max_model_tokens",
                                               "graph_capture_s",
                                               "graph_capture_bytes",
                                               "compile_s",
                                               "weight_bytes",
                                               "kv_cache_bytes",
                                               "expert_balancedness",
                                               "blocks",
                                               "step_ms",
                                               "decode_sequences",
                                               "attention_ranks",
                                               "attention_replicas"};
static_assert(std::size(kLogFieldNames) == kNumLogFields);

struct DefectInfo {
  std::string_view name;
  bool drops;
};
constexpr DefectInfo kDefects[] = {
    {"truncated", false},       {"malformed", true},          {"recovered", false},
    {"control-byte", false},    {"bad-escape", false},        {"invalid-utf8", false},
    {"non-finite", false},      {"big-integer", false},       {"bad-time", true},
    {"zero-time", true},        {"negative-time", false},     {"unmatched-begin", true},
    {"unmatched-end", true},    {"blank-value", false},       {"unknown-record", true},
    {"impossible-value", true}, {"dropped-by-producer", true}};
static_assert(std::size(kDefects) == kNumDefects);

constexpr std::string_view kClockNames[] = {"none", "unix", "wall", "monotonic", "relative"};

}  // namespace

std::string_view CategoryName(Category category) {
  return kCategoryNames[static_cast<size_t>(category)];
}

std::string_view CopyKindName(CopyKind kind) { return kCopyKindNames[static_cast<size_t>(kind)]; }

std::string_view LogFieldName(LogField field) { return kLogFieldNames[static_cast<size_t>(field)]; }

std::string_view DefectName(Defect defect) { return kDefects[static_cast<size_t>(defect)].name; }

bool DefectDropsRecord(Defect defect) { return kDefects[static_cast<size_t>(defect)].drops; }

std::string_view ClockDomainName(ClockDomain domain) {
  return kClockNames[static_cast<size_t>(domain)];
}

uint64_t ReadStats::dropped() const {
  uint64_t total = 0;
  for (size_t i = 0; i < kNumDefects; ++i) {
    if (kDefects[i].drops) total += defects[i].count;
  }
  return total;
}

std::optional<double> Timeline::Value(const LogLine& line, LogField field) const {
  for (uint32_t i = 0; i < line.num_values; ++i) {
    const LogValue& value = log_values[line.first_value + i];
    if (value.field == field) return value.value;
  }
  return std::nullopt;
}

std::optional<double> Timeline::Metric(const ProfiledKernel& kernel, std::string_view name) const {
  const StringId id = strings.Find(name);
  if (id == 0) return std::nullopt;
  for (uint32_t i = 0; i < kernel.num_metrics; ++i) {
    const KernelMetric& metric = kernel_metrics[kernel.first_metric + i];
    if (metric.name == id && !std::isnan(metric.value)) return metric.value;
  }
  return std::nullopt;
}

std::vector<StackNode> Timeline::Stack(uint32_t node) const {
  std::vector<StackNode> frames;
  for (; node != kNone; node = stack_nodes[node].parent) frames.push_back(stack_nodes[node]);
  return frames;
}

SourceId Timeline::AddSource(std::string path, std::string format) {
  FATHOM_CHECK(sources.size() < UINT16_MAX);
  Source& source = sources.emplace_back();
  source.path = std::move(path);
  source.format = std::move(format);
  return static_cast<SourceId>(sources.size() - 1);
}

size_t Timeline::AddSlice(Category category, TrackId track, int64_t start_ns, int64_t dur_ns,
                          StringId name) {
  slices.start_ns.push_back(start_ns);
  slices.dur_ns.push_back(dur_ns);
  slices.name.push_back(name);
  slices.track.push_back(track);
  slices.correlation.push_back(0);
  slices.external.push_back(0);
  slices.detail.push_back(kNone);
  slices.category.push_back(category);
  return slices.size() - 1;
}

TrackId Timeline::AddTrack(const Track& track) {
  tracks.push_back(track);
  return static_cast<TrackId>(tracks.size() - 1);
}

uint32_t Timeline::AddSeries(const Series& row) {
  series.push_back(row);
  return static_cast<uint32_t>(series.size() - 1);
}

void Timeline::AddSample(uint32_t row, int64_t t_ns, double value) {
  samples.t_ns.push_back(t_ns);
  samples.value.push_back(value);
  samples.series.push_back(row);
}

size_t Timeline::StackKeyHash::operator()(const StackKey& key) const {
  uint64_t hash = uint64_t{key.parent} << 32 | key.symbol;
  hash = (hash ^ uint64_t{key.module} << 20) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

uint32_t Timeline::AddStackNode(uint32_t parent, StringId symbol, StringId module) {
  const auto next = static_cast<uint32_t>(stack_nodes.size());
  const auto [entry, added] = stack_index_.try_emplace(StackKey{parent, symbol, module}, next);
  if (added) stack_nodes.push_back({parent, symbol, module});
  return entry->second;
}

void Timeline::AddFact(SourceId source, std::string_view key, std::string_view text) {
  facts.push_back({strings.Intern(key), strings.Intern(text), std::nan(""), source});
}

void Timeline::AddFact(SourceId source, std::string_view key, double number) {
  facts.push_back({strings.Intern(key), 0, number, source});
}

}  // namespace fathom::diagnose
