#include "diagnose/readers/chrome_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace fathom::diagnose {
namespace {

using json::Token;
using F = EventField;

struct CategoryEntry {
  std::string_view text;
  Category category;
};
// Kineto's names, and those of PyTorch up to 1.8 and of other back ends.
constexpr CategoryEntry kCategories[] = {
    {"cpu_op", Category::kCpuOp},
    {"python_function", Category::kPython},
    {"kernel", Category::kKernel},
    {"cuda_runtime", Category::kRuntime},
    {"cuda_driver", Category::kDriver},
    {"gpu_memcpy", Category::kMemcpy},
    {"gpu_memset", Category::kMemset},
    {"user_annotation", Category::kAnnotation},
    {"gpu_user_annotation", Category::kGpuAnnotation},
    {"cpu_instant_event", Category::kInstant},
    {"overhead", Category::kOverhead},
    {"cuda_sync", Category::kSync},
    {"cuda_event", Category::kCudaEvent},
    {"cuda_profiler_range", Category::kProfilerRange},
    {"collective_comm", Category::kCollective},
    {"hip_runtime", Category::kRuntime},
    {"hip_driver", Category::kDriver},
    {"xpu_runtime", Category::kRuntime},
    {"xpu_driver", Category::kDriver},
    {"mtia_runtime", Category::kRuntime},
    {"Trace", Category::kWindow},
    {"Operator", Category::kCpuOp},
    {"Runtime", Category::kRuntime},
    {"Kernel", Category::kKernel},
    {"Memcpy", Category::kMemcpy},
    {"Memset", Category::kMemset},
    // Fathom's own.
    {"step", Category::kAnnotation},
    {"op", Category::kEngine},
    {"schedule", Category::kEngine},
    {"delivery", Category::kEngine},
    {"load", Category::kEngine},
};

Category FindCategory(std::string_view text) {
  for (const CategoryEntry& entry : kCategories) {
    if (entry.text == text) return entry.category;
  }
  return Category::kOther;
}

bool OnGpuTrack(Category category) {
  return IsGpuWork(category) || category == Category::kGpuAnnotation ||
         category == Category::kSync || category == Category::kCudaEvent;
}

// The first integer in "7", "stream 7", "GPU 0 Counters"; absent otherwise.
int64_t FirstInteger(std::string_view text, int64_t absent) {
  size_t i = 0;
  while (i < text.size() && (text[i] < '0' || text[i] > '9')) ++i;
  if (i > 0 && i < text.size() && text[i - 1] == '-') --i;
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data() + i, text.data() + text.size(), value);
  return error == std::errc() && stop != text.data() + i ? value : absent;
}

// A whole integer, or absent.
int64_t WholeInteger(std::string_view text, int64_t absent) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? value : absent;
}

CopyKind CopyKindOf(std::string_view name) {
  constexpr std::pair<std::string_view, CopyKind> kKinds[] = {{"HtoD", CopyKind::kHostToDevice},
                                                              {"DtoH", CopyKind::kDeviceToHost},
                                                              {"DtoD", CopyKind::kDeviceToDevice},
                                                              {"PtoP", CopyKind::kPeer},
                                                              {"HtoH", CopyKind::kHostToHost}};
  for (const auto& [text, kind] : kKinds) {
    if (name.find(text) != std::string_view::npos) return kind;
  }
  return CopyKind::kUnknown;
}

uint32_t Unsigned32(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

int32_t Signed32(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

}  // namespace

ChromeTimelineWriter::ChromeTimelineWriter(Timeline& timeline, SourceId source)
    : timeline_(timeline),
      source_(source),
      first_slice_(timeline.slices.size()),
      first_sample_(timeline.samples.size()),
      first_python_(timeline.python.size()),
      first_span_(timeline.spans.size()),
      first_request_(timeline.requests.size()),
      unknown_(timeline.strings.Intern("unknown")),
      async_(timeline, source) {}

StringId ChromeTimelineWriter::Text(const Token& token) {
  if (!token.escaped) return timeline_.strings.Intern(token.view());
  bool bad_escape = false;
  const StringId id = timeline_.strings.Intern(json::Unescape(token.view(), &bad_escape));
  if (bad_escape) Count(Defect::kBadEscape);
  return id;
}

// Fathom marks a step by its tokens: it is named as SGLang would, so that its phase is known.
StringId ChromeTimelineWriter::NameOf(const ChromeEvent& event) {
  if (event.category.view() != "step" || !event.has(F::kTokens)) return Text(event.name);
  const int64_t tokens = event.Int(F::kTokens, 0);
  const int64_t prompt = event.Int(F::kPromptTokens, 0);
  return timeline_.strings.Intern(prompt == 0        ? fmt::format("step[DECODE bs={}]", tokens)
                                  : prompt == tokens ? fmt::format("step[EXTEND toks={}]", tokens)
                                                     : fmt::format("step[MIXED toks={}]", tokens));
}

StringId ChromeTimelineWriter::List(const Token& token) {
  const StringId raw = raw_lists_.Intern(token.view());
  if (raw < list_ids_.size()) return list_ids_[raw];
  std::string packed;
  bool quoted = false;
  for (const char byte : token.view()) {
    if (byte == '"') quoted = !quoted;
    if (quoted || (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t')) packed += byte;
  }
  list_ids_.resize(raw_lists_.size());
  return list_ids_[raw] = timeline_.strings.Intern(packed);
}

TrackId ChromeTimelineWriter::TrackOf(const ChromeEvent& event, Category category) {
  const std::string_view pid = event.pid.view();
  const std::string_view tid = event.tid.view();
  // The stream of GPU work is told by its args; the tid may be "stream 7 (sync)".
  const uint64_t stream =
      OnGpuTrack(category) ? static_cast<uint64_t>(event.Int(F::kStream, -2)) : ~uint64_t{0};
  uint64_t hash = stream * 0x9e3779b97f4a7c15u + OnGpuTrack(category);
  for (const char byte : pid) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  hash *= 31;
  for (const char byte : tid) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  TrackCacheEntry& entry = track_cache_[(hash ^ hash >> 32) % std::size(track_cache_)];
  if (entry.track == kNone || entry.hash != hash) entry = {hash, MakeTrack(event, category)};
  return entry.track;
}

TrackId ChromeTimelineWriter::MakeTrack(const ChromeEvent& event, Category category) {
  const std::string_view pid = event.pid.view();
  const std::string_view tid = event.tid.view();
  Track track;
  track.source = source_;
  const bool gpu = OnGpuTrack(category);
  if (gpu) {
    track.kind = TrackKind::kGpuStream;
    track.device = Signed32(event.Int(F::kDevice, FirstInteger(pid, -1)));
    track.stream = event.Int(F::kStream, FirstInteger(tid, -1));
    const auto [entry, added] = tracks_.try_emplace(
        std::tuple(true, std::to_string(track.device), std::to_string(track.stream)), kNone);
    if (added) entry->second = timeline_.AddTrack(track);
    return entry->second;
  }
  track.pid = WholeInteger(pid, -1);
  track.tid = WholeInteger(tid, -1);
  track.kind = track.pid >= 0 ? TrackKind::kCpuThread : TrackKind::kOther;
  const auto [entry, added] =
      tracks_.try_emplace(std::tuple(false, std::string(pid), std::string(tid)), kNone);
  if (added) entry->second = timeline_.AddTrack(track);
  return entry->second;
}

uint32_t ChromeTimelineWriter::AddCollective(const ChromeEvent& event) {
  if (!event.has(F::kCollectiveName)) return kNone;
  CollectiveDetail detail;
  detail.name = Text(event.Text(F::kCollectiveName));
  detail.dtype = Text(event.Text(F::kDtype));
  detail.group_name = Text(event.Text(F::kGroupName));
  detail.group_description = Text(event.Text(F::kGroupDescription));
  detail.group_ranks = Text(event.Text(F::kGroupRanks));
  detail.in_elements = event.Int(F::kInElements, -1);
  detail.out_elements = event.Int(F::kOutElements, -1);
  detail.group_size = Signed32(event.Int(F::kGroupSize, -1));
  detail.src_rank = Signed32(event.Int(F::kSrcRank, -1));
  detail.dst_rank = Signed32(event.Int(F::kDstRank, -1));
  detail.sequence = event.Int(F::kSequence, -1);
  detail.comm_id = static_cast<uint64_t>(event.Int(F::kCommId, 0));
  timeline_.collectives.push_back(detail);
  return static_cast<uint32_t>(timeline_.collectives.size() - 1);
}

uint32_t ChromeTimelineWriter::AddDetail(const ChromeEvent& event, Category category) {
  const auto last = [](const auto& table) { return static_cast<uint32_t>(table.size() - 1); };
  const std::string_view kind = event.Text(F::kKind).view();
  switch (category) {
    case Category::kKernel: {
      KernelDetail detail;
      detail.grid = event.grid;
      detail.block = event.block;
      detail.registers_per_thread = Unsigned32(event.Int(F::kRegisters, 0));
      detail.shared_bytes = Unsigned32(event.Int(F::kSharedBytes, 0));
      detail.context = Unsigned32(event.Int(F::kContext, 0));
      detail.graph_id = static_cast<uint64_t>(event.Int(F::kGraphId, 0));
      detail.graph_node_id = static_cast<uint64_t>(event.Int(F::kGraphNodeId, 0));
      detail.in_graph =
          detail.graph_id != 0 || detail.graph_node_id != 0 || kind == "Dispatch Task";
      detail.collective = AddCollective(event);
      timeline_.kernels.push_back(detail);
      return last(timeline_.kernels);
    }
    case Category::kMemcpy:
    case Category::kMemset: {
      CopyDetail detail;
      detail.bytes = static_cast<uint64_t>(event.Int(F::kBytes, 0));
      detail.graph_node_id = static_cast<uint64_t>(event.Int(F::kGraphNodeId, 0));
      detail.kind =
          category == Category::kMemset ? CopyKind::kMemset : CopyKindOf(event.name.view());
      detail.pageable_host = event.name.view().find("Pageable") != std::string_view::npos;
      timeline_.copies.push_back(detail);
      return last(timeline_.copies);
    }
    case Category::kCpuOp:
    case Category::kAnnotation:
    case Category::kCollective: {
      OpDetail detail;
      detail.input_dims = List(event.Text(F::kInputDims));
      detail.input_types = List(event.Text(F::kInputTypes));
      detail.input_strides = List(event.Text(F::kInputStrides));
      detail.call_stack = Text(event.Text(F::kCallStack));
      detail.module_hierarchy = Text(event.Text(F::kModuleHierarchy));
      detail.kernel_hash = Text(event.Text(F::kKernelHash));
      detail.kernel_file = Text(event.Text(F::kKernelFile));
      detail.collective = AddCollective(event);
      if ((detail.input_dims | detail.call_stack | detail.kernel_hash | detail.input_types |
           detail.module_hierarchy) == 0 &&
          detail.collective == kNone) {
        return kNone;
      }
      timeline_.ops.push_back(detail);
      return last(timeline_.ops);
    }
    case Category::kPython:
      if (!event.has(F::kPythonId)) return kNone;
      timeline_.python.push_back(
          {Unsigned32(event.Int(F::kPythonId, 0)), Unsigned32(event.Int(F::kPythonParent, 0))});
      return last(timeline_.python);
    case Category::kRuntime:
    case Category::kDriver: {
      if (!event.has(F::kKernel) && !event.has(F::kBytes) && !event.has(F::kGrid)) return kNone;
      LaunchDetail detail;
      detail.kernel_name = Text(event.Text(F::kKernel));
      detail.grid = event.grid;
      detail.block = event.block;
      detail.bytes = static_cast<uint64_t>(event.Int(F::kBytes, 0));
      detail.kind = CopyKindOf(kind);
      timeline_.launches.push_back(detail);
      return last(timeline_.launches);
    }
    case Category::kSync:
    case Category::kCudaEvent:
      timeline_.syncs.push_back(
          {Text(event.Text(F::kSyncKind)), event.Int(F::kWaitOnStream, -1),
           static_cast<uint64_t>(std::max<int64_t>(event.Int(F::kWaitOnCorrelation, 0), 0))});
      return last(timeline_.syncs);
    default:
      return kNone;
  }
}

void ChromeTimelineWriter::AddSlice(const ChromeEvent& event, Category category, int64_t start_ns,
                                    int64_t dur_ns) {
  if (dur_ns < 0) {
    Count(Defect::kNegativeTime);
    dur_ns = 0;
  }
  if (start_ns == 0 && OnGpuTrack(category)) {
    Count(Defect::kZeroTime);
    return;
  }
  const StringId name = NameOf(event);
  const TrackId track = TrackOf(event, category);
  const uint32_t detail = AddDetail(event, category);
  Slices& slices = timeline_.slices;
  slices.start_ns.push_back(start_ns);
  slices.dur_ns.push_back(dur_ns);
  slices.name.push_back(name);
  slices.track.push_back(track);
  slices.correlation.push_back(static_cast<uint64_t>(event.Int(F::kCorrelation, 0)));
  slices.external.push_back(static_cast<uint64_t>(event.Int(F::kExternalId, 0)));
  slices.detail.push_back(detail);
  slices.category.push_back(category);
  ++stats().kept;
  Source& source = timeline_.sources[source_];
  if (category == Category::kOverhead) source.overhead_ns += dur_ns;
  if (name == unknown_) ++source.unknown_names;
}

void ChromeTimelineWriter::Add(const ChromeEvent& event, uint64_t offset) {
  offset_ = offset;
  if (event.defects.any()) {
    for (size_t i = 0; i < kNumDefects; ++i) {
      if (event.defects[i]) stats().Count(static_cast<Defect>(i), offset_);
    }
  }
  switch (event.phase) {
    case 'X':
    case 'B':
    case 'E':
    case 'i':
    case 'I':
    case 'C':
    case 'b':
    case 'e':
    case 'n':
      break;
    case 'M':
      AddMetadata(event);
      return;
    case 's':
    case 't':
    case 'f':  // flows: kernels are joined by correlation
      ++stats().ignored;
      return;
    default:
      Count(Defect::kUnknownRecord);
      return;
  }
  if (!event.has_ts || event.bad_time) {
    Count(Defect::kBadTime);
    return;
  }
  switch (event.phase) {
    case 'X':
      AddSlice(event, FindCategory(event.category.view()), event.ts_ns, event.dur_ns);
      break;
    case 'C':
      AddCounter(event);
      break;
    case 'B':
    case 'E':
      BeginOrEnd(event);
      break;
    case 'b':
    case 'e':
    case 'n':
      async_.Add(event, offset);
      break;
    default:
      if (event.has(F::kMemoryBytes)) {
        AddMemory(event);
      } else {
        AddSlice(event, Category::kInstant, event.ts_ns, 0);
      }
  }
}

void ChromeTimelineWriter::BeginOrEnd(const ChromeEvent& event) {
  const Category category = FindCategory(event.category.view());
  std::vector<OpenSlice>& open = open_[TrackOf(event, category)];
  if (event.phase == 'B') {
    open.push_back({category, Text(event.name), event.ts_ns, offset_});
    return;
  }
  if (open.empty()) {
    Count(Defect::kUnmatchedEnd);
    return;
  }
  const OpenSlice begin = open.back();
  open.pop_back();
  const size_t row = timeline_.slices.size();
  AddSlice(event, begin.category, begin.start_ns, event.ts_ns - begin.start_ns);
  if (timeline_.slices.size() > row) timeline_.slices.name[row] = begin.name;
}

uint32_t ChromeTimelineWriter::SeriesOf(std::string_view name, std::string_view labels,
                                        int32_t device) {
  const auto [entry, added] =
      series_.try_emplace(std::tuple(std::string(name), std::string(labels), device), 0);
  if (added) {
    Series row;
    row.source = source_;
    row.kind = SeriesKind::kGauge;
    row.name = timeline_.strings.Intern(name);
    row.labels = timeline_.strings.Intern(labels);
    row.device = device;
    entry->second = timeline_.AddSeries(row);
  }
  return entry->second;
}

// {"args": {"": 123}} under the event's name, or several counters by key.
void ChromeTimelineWriter::AddCounter(const ChromeEvent& event) {
  const Token name_token = event.name;
  bool bad_escape = false;
  const std::string name = json::Unescape(name_token.view(), &bad_escape);
  const auto device = Signed32(FirstInteger(event.pid.view(), -1));
  const bool gpu = event.pid.view().find("GPU") != std::string_view::npos;
  ForEachArg(event.args, [&](std::string_view key, std::string_view text, bool quoted) {
    double value = 0;
    const json::Number number = quoted ? json::Number::kNone : json::ToDouble(text, &value);
    if (number == json::Number::kOk) {
      std::string full = name;
      if (!key.empty()) full.append(".").append(key);
      timeline_.AddSample(SeriesOf(full, "", gpu ? device : -1), event.ts_ns, value);
      ++stats().kept;
    } else if (number == json::Number::kNonFinite) {
      Count(Defect::kNonFinite);
    }
  });
}

// The allocator's "[memory]" instants. Device types are c10::DeviceType: 0 is the CPU.
void ChromeTimelineWriter::AddMemory(const ChromeEvent& event) {
  const bool cpu = event.Int(F::kDeviceType, 0) == 0;
  const auto device = cpu ? -1 : Signed32(event.Int(F::kDeviceId, -1));
  const std::string_view labels = cpu ? R"(memory="host")" : R"(memory="device")";
  const auto add = [&](std::string_view name, EventField field) {
    if (!event.has(field)) return;
    timeline_.AddSample(SeriesOf(name, labels, device), event.ts_ns,
                        static_cast<double>(event.Int(field, 0)));
  };
  add("allocator.bytes", F::kMemoryBytes);
  add("allocator.allocated_bytes", F::kTotalAllocated);
  add("allocator.reserved_bytes", F::kTotalReserved);
  ++stats().kept;
}

void ChromeTimelineWriter::AddMetadata(const ChromeEvent& event) {
  ++stats().ignored;
  const std::string_view what = event.name.view();
  if (!event.has(F::kArgName)) return;
  const std::string pid(event.pid.view());
  if (what == "process_name") {
    process_names_[pid] = Text(event.Text(F::kArgName));
  } else if (what == "thread_name") {
    thread_names_[{pid, std::string(event.tid.view())}] = Text(event.Text(F::kArgName));
  }
}

void ChromeTimelineWriter::NameTracks() {
  for (const auto& [key, row] : tracks_) {
    const auto& [gpu, pid, tid] = key;
    Track& track = timeline_.tracks[row];
    if (const auto name = process_names_.find(pid); name != process_names_.end()) {
      track.process_name = name->second;
    }
    if (const auto name = thread_names_.find({pid, tid}); name != thread_names_.end()) {
      track.thread_name = name->second;
    }
  }
}

// ROCm numbers the devices of its kernels with the CPUs counted in and the described ones without:
// where one is described and one has work, they are the same.
void ChromeTimelineWriter::NumberOnlyDevice() {
  Source& source = timeline_.sources[source_];
  if (source.devices.size() != 1 || source.devices[0].is_cuda()) return;
  int32_t used = -1;
  for (const auto& [key, row] : tracks_) {
    const Track& track = timeline_.tracks[row];
    if (track.kind != TrackKind::kGpuStream || track.device < 0) continue;
    if (used >= 0 && used != track.device) return;
    used = track.device;
  }
  if (used >= 0) source.devices[0].id = used;
}

void ChromeTimelineWriter::Finish(const KinetoHeader& header) {
  Source& source = timeline_.sources[source_];
  for (const auto& [track, open] : open_) {
    for (const OpenSlice& begin : open) {
      source.stats.Count(Defect::kUnmatchedBegin, begin.offset);
    }
  }
  async_.Finish();
  NameTracks();
  NumberOnlyDevice();
  if (header.is_fathom) source.format = "fathom-trace";
  if (timeline_.python.size() > first_python_) source.with_stack = true;

  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  const auto shift = [&](int64_t& t_ns) {
    t_ns += header.base_ns;
    first = std::min(first, t_ns);
    last = std::max(last, t_ns);
  };
  for (size_t i = first_slice_; i < timeline_.slices.size(); ++i) {
    shift(timeline_.slices.start_ns[i]);
    last = std::max(last, timeline_.slices.end_ns(i));
  }
  for (size_t i = first_sample_; i < timeline_.samples.size(); ++i)
    shift(timeline_.samples.t_ns[i]);
  for (size_t i = first_span_; i < timeline_.spans.size(); ++i) {
    shift(timeline_.spans[i].start_ns);
    shift(timeline_.spans[i].end_ns);
  }
  for (size_t i = first_request_; i < timeline_.requests.size(); ++i) {
    shift(timeline_.requests[i].arrival_ns);
  }
  source.clock = ClockDomain::kRelative;
  if (first > last) return;
  source.first_ns = first;
  source.last_ns = last;
  // Without a base, times are microseconds since 1970 (16 digits) or since some origin.
  constexpr int64_t kYear2001 = 1'000'000'000'000'000'000;
  if (first > kYear2001) {
    source.clock = ClockDomain::kUnix;
    source.utc_anchor_ns = 0;
  }
}

}  // namespace fathom::diagnose
