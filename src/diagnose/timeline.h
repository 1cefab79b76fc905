#pragma once
// The timeline: everything that the inputs say, in columns, on one clock, with interned names.
//
// Readers (readers/) append rows; AlignClocks (clock.h) then puts all sources on one clock; rules
// and reports only read. Rows of a table are in the order of their input, not of time: sort an
// index where order matters. Every row leads to its Source, which says what can be trusted.
//
// Units: times are int64 ns (kNoTime when the input gives none), sizes bytes, ratios 0..1, counts
// as counted. Numbers that an input may leave out are NaN, ids -1 or 0 as documented: absent is
// never 0.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "diagnose/source.h"
#include "diagnose/string_table.h"

namespace fathom::diagnose {

using SourceId = uint16_t;
using TrackId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;  // "no row" for every index into a table

// ---------------------------------------------------------------------------------------------
// Slices: timed intervals of CPU threads and GPU streams.

enum class Category : uint8_t {
  kCpuOp,          // operator of the framework: detail -> ops
  kAnnotation,     // range marked by the program (record_function, step marker): detail -> ops
  kGpuAnnotation,  // the same range as seen by the GPU's stream
  kNvtx,           // NVTX range
  kPython,         // Python function or nn.Module call: detail -> python
  kRuntime,        // CUDA/HIP runtime API call: detail -> launches
  kDriver,         // CUDA driver API call: detail -> launches
  kKernel,         // detail -> kernels
  kMemcpy,         // detail -> copies
  kMemset,         // detail -> copies
  kGraph,          // a whole CUDA graph launch recorded as one opaque interval: detail -> kernels
  kSync,           // the GPU's view of a synchronisation: detail -> syncs
  kCudaEvent,      // cudaEventRecord as seen by the stream: detail -> syncs
  kOverhead,       // the profiler's own work
  kProfilerRange,  // range of a counter profiler
  kCollective,     // communication range that is no kernel: detail -> ops
  kOsCall,         // blocking call into the operating system (nsys OSRT)
  kSchedule,       // a thread off its CPU, from the switch away to the switch back
  kWindow,         // extent of the recording ("PyTorch Profiler (0)")
  kInstant,        // a moment, dur_ns = 0
  kEngine,         // Fathom's own spans (op, layer, step)
  kOther,
};
inline constexpr size_t kNumCategories = static_cast<size_t>(Category::kOther) + 1;
std::string_view CategoryName(Category category);
// Kernels, copies, memsets and opaque graphs: what keeps a GPU stream busy.
constexpr bool IsGpuWork(Category c) {
  return c == Category::kKernel || c == Category::kMemcpy || c == Category::kMemset ||
         c == Category::kGraph;
}

// Structure of arrays, [num_slices] each. Intervals of one thread nest; those of one stream may
// overlap (programmatic dependent launch), so busy time is a union of intervals, never a sum.
struct Slices {
  std::vector<int64_t> start_ns;
  std::vector<int64_t> dur_ns;
  std::vector<StringId> name;
  std::vector<TrackId> track;
  // Joins a kernel, copy or memset with the API call that launched it, within one source; 0 is
  // none. All kernels of one graph launch share the launch's.
  std::vector<uint64_t> correlation;
  // Joins GPU work and API calls with the CPU op that caused them ("External id"); 0 is none.
  std::vector<uint64_t> external;
  std::vector<uint32_t> detail;  // row of the table that `category` names, or kNone
  std::vector<Category> category;

  size_t size() const { return start_ns.size(); }
  int64_t end_ns(size_t i) const { return start_ns[i] + dur_ns[i]; }
};

enum class TrackKind : uint8_t { kCpuThread, kGpuStream, kOther };

// One thread of a process, or one stream of a GPU.
struct Track {
  SourceId source = 0;
  TrackKind kind = TrackKind::kOther;
  int64_t pid = -1;     // process; -1 when the input has a word instead ("Spans")
  int64_t tid = -1;     // thread; may be negative in the input
  int32_t device = -1;  // GPU, for kGpuStream
  int64_t stream = -1;  // for kGpuStream
  StringId process_name = 0;
  StringId thread_name = 0;
};

struct Dim3 {
  uint32_t x = 0, y = 0, z = 0;  // all 0: not recorded
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct KernelDetail {
  Dim3 grid;
  Dim3 block;
  uint32_t registers_per_thread = 0;  // 0: not recorded
  uint32_t shared_bytes = 0;          // static + dynamic, a block
  uint32_t local_bytes_per_thread = 0;
  uint32_t cluster = 0;   // thread blocks a cluster; 0: not recorded
  uint64_t graph_id = 0;  // 0: launched outside a graph, or not recorded
  uint64_t graph_node_id = 0;
  uint32_t collective = kNone;  // row of collectives, where the input describes it
  uint32_t context = 0;
  // The producer says that the kernel was replayed from a graph (ROCm's "Dispatch Task", or a
  // graph or node id).
  bool in_graph = false;
};

enum class CopyKind : uint8_t {
  kUnknown,
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,
  kPeer,
  kHostToHost,
  kUnified,
  kMemset
};
std::string_view CopyKindName(CopyKind kind);

struct CopyDetail {
  uint64_t bytes = 0;
  uint64_t graph_node_id = 0;
  CopyKind kind = CopyKind::kUnknown;
  bool pageable_host = false;  // the host side is pageable memory (copies synchronise)
};

// Arguments of an operator. Lists are kept as the trace's JSON text ("[[1, 8, 4097, 128], []]"):
// they repeat from step to step, and equal shapes have equal ids.
struct OpDetail {
  StringId input_dims = 0;
  StringId input_types = 0;
  StringId input_strides = 0;
  StringId call_stack = 0;  // "a.py(1): f;b.py(2): g" in older traces
  StringId module_hierarchy = 0;
  StringId kernel_hash = 0;  // Triton's specialisation
  StringId kernel_file = 0;
  uint32_t collective = kNone;  // row of collectives, for record_param_comms
};

struct PythonDetail {
  uint32_t id = 0;      // unique in the source
  uint32_t parent = 0;  // id of the caller; 0: none recorded
};

// What an API call launched or moved, where the trace says so (ROCm does, CUPTI does not).
struct LaunchDetail {
  StringId kernel_name = 0;
  Dim3 grid;
  Dim3 block;
  uint64_t bytes = 0;
  CopyKind kind = CopyKind::kUnknown;
};

struct SyncDetail {
  StringId kind = 0;  // "Stream Sync", "Event Sync", "Context Sync", "Stream Wait Event"
  int64_t wait_on_stream = -1;
  uint64_t wait_on_correlation = 0;  // of the cudaEventRecord that is waited for
};

struct CollectiveDetail {
  StringId name = 0;   // "allreduce", "_allgather_base"
  StringId dtype = 0;  // "BFloat16"
  StringId group_name = 0;
  StringId group_description = 0;
  StringId group_ranks = 0;  // as written
  int64_t in_elements = -1;
  int64_t out_elements = -1;
  int32_t group_size = -1;
  int32_t src_rank = -1;
  int32_t dst_rank = -1;
  int64_t sequence = -1;
  uint64_t comm_id = 0;
};

// ---------------------------------------------------------------------------------------------
// Series: sampled numbers (Prometheus, DCGM, dmon, nsys GPU metrics, allocator, live sampler).

enum class SeriesKind : uint8_t { kGauge, kCounter, kHistogramBucket, kUnknown };

struct Series {
  SourceId source = 0;
  SeriesKind kind = SeriesKind::kUnknown;
  StringId name = 0;    // as the producer names it: "vllm:num_requests_running", "sm", "SM Active"
  StringId labels = 0;  // canonical: keys sorted, `a="x",le="0.3"`; without the device label
  StringId unit = 0;    // "%", "MB/s", as stated
  int32_t device = -1;  // GPU or NIC index, where the series belongs to one
};

struct Samples {  // [num_samples] each
  std::vector<int64_t> t_ns;
  std::vector<double> value;
  std::vector<uint32_t> series;

  size_t size() const { return t_ns.size(); }
};

// ---------------------------------------------------------------------------------------------
// Server logs: one row a line that states facts; the numbers are a sparse list.

enum class LogKind : uint8_t {
  kStats,       // periodic engine statistics (vLLM)
  kSpecDecode,  // speculative decoding statistics (vLLM)
  kPrefill,     // SGLang "Prefill batch"
  kDecode,      // SGLang "Decode batch"
  kIteration,   // one step (vLLM with --enable-logging-iteration-details)
  kStartup,     // capacity, graph capture, memory: facts of the engine's start
  kEvent,       // preemption, retraction, abort, recompilation, warnings: `text` says which
};

enum class LogField : uint8_t {
  kRunning,  // requests in the running batch
  kWaiting,  // requests queued
  kSwapped,
  kKvUsage,           // 0..1
  kCpuKvUsage,        // 0..1
  kPrefixHitRate,     // 0..1
  kExternalHitRate,   // 0..1
  kMmHitRate,         // 0..1
  kCpuPrefixHitRate,  // 0..1
  kPromptTokensPerS,
  kDecodeTokensPerS,
  kTokens,  // tokens held in the KV cache
  kNewSequences,
  kNewTokens,
  kCachedTokens,
  kCudaGraph,    // 1: the batch ran from a graph, 0: it did not
  kPreemptions,  // since the last line
  kRetracted,
  kCorrupted,
  kAcceptLength,  // tokens a speculative step, with the target's own
  kAcceptRate,    // 0..1
  kDraftTokensPerS,
  kAcceptedTokensPerS,
  kFullUsage,         // SGLang hybrid models: full-attention pool, 0..1
  kSwaUsage,          // sliding-window pool, 0..1
  kMambaUsage,        // 0..1
  kPreallocRequests,  // PD disaggregation
  kInflightRequests,
  kTransferRequests,
  kIteration,
  kKvCapacityTokens,    // start-up
  kMaxConcurrency,      // start-up
  kMaxModelTokens,      // start-up
  kGraphCaptureS,       // start-up
  kGraphCaptureBytes,   // start-up
  kCompileS,            // start-up: torch.compile
  kWeightBytes,         // start-up
  kKvCacheBytes,        // start-up
  kExpertBalancedness,  // mean / max tokens of the ranks, 0..1
  kBlocks,              // start-up: KV pages of the pool
  kStepMs,              // wall time of a kIteration
  kDecodeSequences,     // of a kIteration, each with a token or more to generate
  kAttentionRanks,      // start-up: ranks that share a sequence's heads, each with its whole cache
  kAttentionReplicas,   // start-up: groups of them, each with sequences of its own
};
inline constexpr size_t kNumLogFields = static_cast<size_t>(LogField::kAttentionReplicas) + 1;
std::string_view LogFieldName(LogField field);

struct LogValue {
  LogField field;
  double value;
};

struct LogLine {
  int64_t t_ns = kNoTime;
  uint64_t line = 0;  // 1-based
  SourceId source = 0;
  LogKind kind = LogKind::kEvent;
  int32_t engine = -1;       // vLLM engine index or SGLang data-parallel rank; -1: not stated
  int32_t rank = -1;         // tensor-parallel rank
  uint32_t first_value = 0;  // [first_value, first_value + num_values) of log_values
  uint32_t num_values = 0;
  StringId text = 0;  // kEvent: what happened; kStartup: the line without its prefix
};

// ---------------------------------------------------------------------------------------------
// Sampled stacks (perf, nsys CPU samples).

// A node of the tree of all stacks: a frame called from its parent.
struct StackNode {
  uint32_t parent = kNone;  // kNone: outermost frame
  StringId symbol = 0;
  StringId module = 0;  // shared object or "[kernel.kallsyms]"
};

// Where a sampled load or store was served, from perf's data source.
enum class MemoryLevel : uint8_t {
  kUnknown,
  kL1,
  kLfb,
  kL2,
  kL3,
  kLocalRam,
  kRemoteRam,
  kRemoteCache,
  kOther
};

struct StackSample {
  int64_t t_ns = kNoTime;
  uint64_t period = 1;   // weight: events that the sample stands for
  uint64_t address = 0;  // of the access, memory samples only
  int64_t pid = -1;
  int64_t tid = -1;
  uint32_t stack = kNone;       // innermost node of stack_nodes
  uint32_t latency_cycles = 0;  // memory samples only
  StringId command = 0;
  StringId event = 0;  // "cycles", "cpu/mem-loads,ldlat=30/P"
  SourceId source = 0;
  int16_t cpu = -1;
  MemoryLevel level = MemoryLevel::kUnknown;
  bool store = false;
  bool hit_modified = false;  // HITM
};

// ---------------------------------------------------------------------------------------------
// Requests, spans, schedules.

struct Span {  // OpenTelemetry
  int64_t start_ns = kNoTime;
  int64_t end_ns = kNoTime;
  StringId trace_id = 0;   // hex
  StringId span_id = 0;    // hex
  StringId parent_id = 0;  // hex; 0: root
  StringId name = 0;
  StringId service = 0;
  uint32_t first_attribute = 0;  // [first_attribute, +num_attributes) of attributes
  uint32_t num_attributes = 0;
  SourceId source = 0;
};

struct Attribute {
  StringId key = 0;
  StringId text = 0;  // strings as they are; numbers and booleans as written
  double number = 0;  // NaN when the value is no number; booleans are 0 or 1
};

// One generation request, from an OTLP span or a server's own record. Seconds; NaN: not stated.
struct Request {
  int64_t arrival_ns = kNoTime;
  double ttft_s, e2e_s, queue_s, prefill_s, decode_s;
  double prompt_tokens, cached_tokens, completion_tokens;
  StringId id = 0;
  StringId model = 0;
  uint32_t span = kNone;
  SourceId source = 0;
};

// One line of a scheduler log {seq_id, phase, start_us, end_us, graph_id}.
struct ScheduleInterval {
  int64_t start_ns = kNoTime;
  int64_t end_ns = kNoTime;
  StringId sequence = 0;
  StringId phase = 0;     // "prefill", "decode", ... as written
  StringId graph_id = 0;  // 0: none
  SourceId source = 0;
};

// ---------------------------------------------------------------------------------------------
// Communication logs, expert loads, kernel metrics, memory accesses.

// One NCCL call that a debug log shows.
struct CollectiveCall {
  int64_t t_ns = kNoTime;
  uint64_t op_count = 0;
  uint64_t count = 0;         // elements
  uint64_t bytes = 0;         // count x size of the datatype; 0 when the type is unknown
  StringId name = 0;          // "AllReduce"
  StringId communicator = 0;  // as written
  StringId host = 0;  // as written: tells ranks of one node apart from others, never printed
  int64_t pid = -1;
  int32_t device = -1;
  int32_t num_ranks = -1;
  int32_t datatype = -1;  // ncclDataType_t
  SourceId source = 0;
};

// How NCCL connected two ranks.
struct Transport {
  int32_t from_rank = -1;
  int32_t to_rank = -1;
  int32_t channel = -1;
  StringId via = 0;  // "P2P/IPC", "SHM/direct", "NET/IB/0", "NET/Socket/0"
  StringId host = 0;
  SourceId source = 0;
};

struct ExpertLoad {
  int64_t t_ns = kNoTime;
  double tokens = 0;
  int32_t layer = -1;
  int32_t expert = -1;
  int32_t rank = -1;
  SourceId source = 0;
};

// One kernel that Nsight Compute replayed, and its metrics.
struct ProfiledKernel {
  int64_t id = -1;
  StringId name = 0;
  StringId section_set = 0;  // "details" or "raw": the page
  Dim3 grid;
  Dim3 block;
  int64_t stream = -1;
  int32_t device = -1;
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  uint32_t first_metric = 0;  // [first_metric, +num_metrics) of kernel_metrics
  uint32_t num_metrics = 0;
  uint32_t first_advice = 0;  // [first_advice, +num_advice) of kernel_advice
  uint32_t num_advice = 0;
  SourceId source = 0;
};

struct KernelMetric {
  StringId name = 0;     // "dram__bytes_read.sum"; on details pages "DRAM Throughput"
  StringId section = 0;  // details page: "Memory Workload Analysis"
  StringId unit = 0;  // base unit after scaling: "ns", "byte", "%", "byte/s", "hz"; "" for counts
  StringId text = 0;  // the field, when it is no number
  double value = 0;   // in `unit`; NaN when absent or no number
};

struct KernelAdvice {  // a rule's result on the details page
  StringId rule = 0;
  StringId type = 0;  // "OPT", "INF", "WRN"
  StringId text = 0;
  double estimated_speedup_pct = 0;  // NaN: not stated
};

// One line of a memory-access event file {token_id, emit_ts, hbm_addr, latency}.
struct AccessEvent {
  int64_t t_ns = kNoTime;
  int64_t token = -1;
  uint64_t address = 0;
  int64_t latency_ns = -1;
  SourceId source = 0;
};

// A statement of an input that is no time series: a setting, a capacity, a share of a report.
struct Fact {
  StringId key = 0;   // "kv_cache.size_tokens", "c2c.llc_misses_remote_dram_hitm"
  StringId text = 0;  // as written
  double number = 0;  // NaN when no number
  SourceId source = 0;
};
// The name of the model that a server was started with.
inline constexpr std::string_view kModelFact = "server.model";

// ---------------------------------------------------------------------------------------------

// A file of a folder that is no artifact.
struct SkippedFile {
  std::string path;
  std::string why;  // what it is and how to export it, where that is known; else ""
};

class Timeline {
 public:
  StringTable strings;
  std::vector<Source> sources;
  std::vector<SkippedFile> skipped;

  std::vector<Track> tracks;
  Slices slices;
  std::vector<KernelDetail> kernels;
  std::vector<CopyDetail> copies;
  std::vector<OpDetail> ops;
  std::vector<PythonDetail> python;
  std::vector<LaunchDetail> launches;
  std::vector<SyncDetail> syncs;
  std::vector<CollectiveDetail> collectives;

  std::vector<Series> series;
  Samples samples;

  std::vector<LogLine> log_lines;
  std::vector<LogValue> log_values;

  std::vector<StackNode> stack_nodes;
  std::vector<StackSample> stack_samples;

  std::vector<Span> spans;
  std::vector<Attribute> attributes;
  std::vector<Request> requests;
  std::vector<ScheduleInterval> schedule;

  std::vector<CollectiveCall> collective_calls;
  std::vector<Transport> transports;
  std::vector<ExpertLoad> expert_loads;
  std::vector<ProfiledKernel> profiled_kernels;
  std::vector<KernelMetric> kernel_metrics;
  std::vector<KernelAdvice> kernel_advice;
  std::vector<AccessEvent> access_events;
  std::vector<Fact> facts;

  std::string_view Name(StringId id) const { return strings.Get(id); }
  std::string_view SliceName(size_t slice) const { return strings.Get(slices.name[slice]); }
  const Track& SliceTrack(size_t slice) const { return tracks[slices.track[slice]]; }
  const Source& SliceSource(size_t slice) const { return sources[SliceTrack(slice).source]; }

  // The number that a log line gives for `field`.
  std::optional<double> Value(const LogLine& line, LogField field) const;
  // The metric of a profiled kernel by exact name.
  std::optional<double> Metric(const ProfiledKernel& kernel, std::string_view name) const;
  // The frames of a stack, innermost first.
  std::vector<StackNode> Stack(uint32_t node) const;

  // Appending (readers). AddSlice returns the row.
  SourceId AddSource(std::string path, std::string format);
  size_t AddSlice(Category category, TrackId track, int64_t start_ns, int64_t dur_ns,
                  StringId name);
  TrackId AddTrack(const Track& track);
  uint32_t AddSeries(const Series& series);  // a new row each call: readers keep their own index
  void AddSample(uint32_t series, int64_t t_ns, double value);
  // The node for `symbol` of `module` called from `parent` (kNone: outermost), shared by all
  // stacks.
  uint32_t AddStackNode(uint32_t parent, StringId symbol, StringId module);
  void AddFact(SourceId source, std::string_view key, std::string_view text);
  void AddFact(SourceId source, std::string_view key, double number);

 private:
  struct StackKey {
    uint32_t parent;
    StringId symbol;
    StringId module;
    bool operator==(const StackKey&) const = default;
  };
  struct StackKeyHash {
    size_t operator()(const StackKey& key) const;
  };
  std::unordered_map<StackKey, uint32_t, StackKeyHash> stack_index_;
};

}  // namespace fathom::diagnose
