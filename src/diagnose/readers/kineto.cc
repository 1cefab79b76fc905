#include "diagnose/readers/kineto.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "diagnose/readers/chrome_event.h"
#include "diagnose/readers/kineto_header.h"

namespace fathom::diagnose {
namespace {

using json::Cursor;
using json::Scan;
using json::Token;
using F = EventField;

// An event, or one top-level value, that goes on for longer than this is broken.
constexpr size_t kMaxRecordBytes = 16 << 20;
// More than the white space and first key that mark the boundary of two events.
constexpr size_t kMaxBoundaryBytes = 4096;

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
    {"fathom", Category::kEngine},
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

class KinetoReader {
 public:
  KinetoReader(Input& input, Timeline& timeline, SourceId source)
      : input_(input),
        window_(input),
        timeline_(timeline),
        source_(source),
        first_slice_(timeline.slices.size()),
        first_track_(timeline.tracks.size()),
        first_sample_(timeline.samples.size()),
        first_python_(timeline.python.size()),
        unknown_(timeline.strings.Intern("unknown")) {}

  Status Read() {
    const uint64_t repaired = timeline_.strings.invalid_utf8();
    FATHOM_TRY(window_.More());
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (window_.text().starts_with(kByteOrderMark)) window_.Consume(kByteOrderMark.size());
    FATHOM_TRY(SkipToValue());
    if (Peek() == '[') {
      window_.Consume(1);
      FATHOM_TRY(ReadEvents());
    } else {
      window_.Consume(1);  // the brace: Detect has seen it
      FATHOM_TRY(ReadTopLevel());
    }
    if (const uint64_t bad = timeline_.strings.invalid_utf8() - repaired; bad > 0) {
      stats().Count(Defect::kInvalidUtf8, 0, bad);
    }
    Finish();
    return {};
  }

 private:
  ReadStats& stats() { return timeline_.sources[source_].stats; }
  char Peek() const { return window_.size() > 0 ? *window_.begin() : '\0'; }

  // Leaves the window on the next byte that is no space, if there is one.
  Status SkipToValue() {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      SkipSpace(c);
      window_.ConsumeTo(c.p);
      if (window_.size() > 0) return {};
      FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
      if (!more) return {};
    }
  }

  // Scans with `scan(cursor)` at the window's front, reading more as long as that asks for it. The
  // cursor that is returned is valid in the window. kMore: the input ended first.
  template <class ScanFunction>
  Result<std::pair<Scan, const char*>> ScanRecord(const ScanFunction& scan) {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      const Scan result = scan(c);
      if (result != Scan::kMore) return std::pair(result, c.p);
      if (window_.size() > kMaxRecordBytes) return std::pair(Scan::kBad, c.p);
      FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
      if (!more) return std::pair(Scan::kMore, window_.end());
    }
  }

  Status ReadTopLevel() {
    for (;;) {
      FATHOM_TRY(SkipToValue());
      if (Peek() == ',') {
        window_.Consume(1);
        continue;
      }
      if (Peek() != '"') {
        if (Peek() != '}') Cut();
        return {};
      }
      Token key;
      FATHOM_ASSIGN_OR_RETURN(const auto scanned, ScanRecord([&](Cursor& c) {
                                ++c.p;
                                const Scan scan = ScanString(c, key);
                                if (scan != Scan::kOk) return scan;
                                SkipSpace(c);
                                if (c.p >= c.end) return Scan::kMore;
                                return *c.p++ == ':' ? Scan::kOk : Scan::kBad;
                              }));
      if (scanned.first != Scan::kOk) {
        Cut();
        return {};
      }
      const std::string name(key.view());
      window_.ConsumeTo(scanned.second);
      FATHOM_TRY(SkipToValue());
      if (name == "traceEvents" && Peek() == '[') {
        window_.Consume(1);
        FATHOM_TRY(ReadEvents());
        continue;
      }
      FATHOM_ASSIGN_OR_RETURN(const auto value, ScanRecord([](Cursor& c) { return SkipValue(c); }));
      if (value.first != Scan::kOk) {
        Cut();
        return {};
      }
      if (IsKinetoHeaderKey(name)) {
        const std::string_view text(window_.begin(),
                                    static_cast<size_t>(value.second - window_.begin()));
        ReadKinetoHeaderValue(name, text, header_, timeline_.sources[source_]);
      }
      window_.ConsumeTo(value.second);
    }
  }

  // The input ends too early: one fact, however many levels notice it.
  void Cut() {
    if (stats()[Defect::kTruncated].count == 0) {
      stats().Count(Defect::kTruncated, window_.offset());
    }
  }

  // The window is behind the array's bracket; afterwards behind its closing one, or at the end.
  Status ReadEvents() {
    for (;;) {
      Cursor c{window_.begin(), window_.end()};
      while (c.p < c.end && (*c.p == ',' || json::EndsScalar(*c.p)) && *c.p != ']' && *c.p != '}') {
        ++c.p;
      }
      window_.ConsumeTo(c.p);
      if (c.p >= c.end) {
        FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
        if (more) continue;
        Cut();
        return {};
      }
      if (*c.p == ']') {
        window_.Consume(1);
        return {};
      }
      FATHOM_ASSIGN_OR_RETURN(const auto scanned, ScanRecord([&](Cursor& cursor) {
                                return *cursor.p == '{' ? ScanEvent(cursor, event_) : Scan::kBad;
                              }));
      if (scanned.first == Scan::kOk) {
        ++stats().records;
        Commit();
        window_.ConsumeTo(scanned.second);
        continue;
      }
      FATHOM_ASSIGN_OR_RETURN(const bool go_on, Recover(scanned.first == Scan::kMore));
      if (!go_on) return {};
    }
  }

  // Keeps what it can of the broken event at the window's front and moves to the next one. False
  // when there is none.
  Result<bool> Recover(bool ended) {
    size_t boundary = FindEventBoundary(window_.text(), 1);
    bool more = true;
    while (boundary == std::string_view::npos && window_.size() <= kMaxRecordBytes) {
      // A boundary cut by the window's end is found when its rest is there.
      const size_t from =
          window_.size() > kMaxBoundaryBytes ? window_.size() - kMaxBoundaryBytes : 1;
      FATHOM_ASSIGN_OR_RETURN(more, window_.More());
      if (!more) break;
      boundary = FindEventBoundary(window_.text(), from);
    }
    const bool last = boundary == std::string_view::npos;
    const size_t length = last ? window_.size() : boundary;
    ++stats().records;
    RecoverEvent(window_.text().substr(0, length), event_);
    const uint64_t kept = stats().kept;
    const bool complete = event_.phase != 0 && event_.has_ts &&
                          (event_.phase != 'X' || (event_.has_dur && event_.name.begin != nullptr));
    if (complete) Commit();
    if (last && ended) {
      Cut();
    } else {
      stats().Count(stats().kept > kept ? Defect::kRecovered : Defect::kMalformed,
                    window_.offset());
    }
    window_.Consume(length);
    return !last || more;
  }

  void Commit();
  void CommitSlice(Category category, int64_t start_ns, int64_t dur_ns);
  void CommitCounter();
  void CommitMemory();
  void CommitMetadata();
  void BeginEnd();

  uint32_t AddDetail(Category category);
  uint32_t AddCollective();
  StringId Text(const Token& token);
  StringId List(const Token& token);  // a JSON array without its spaces
  TrackId TrackOf(Category category);
  TrackId MakeTrack(Category category, std::string_view pid, std::string_view tid);
  uint32_t SeriesOf(std::string_view name, std::string_view labels, int32_t device);
  void Finish();
  void NameTracks();

  struct OpenSlice {
    Category category;
    StringId name;
    int64_t start_ns;
    uint64_t offset;
  };
  struct TrackCacheEntry {
    uint64_t hash = 0;
    TrackId track = kNone;
  };

  Input& input_;
  Window window_;
  Timeline& timeline_;
  const SourceId source_;
  const size_t first_slice_;
  const size_t first_track_;
  const size_t first_sample_;
  const size_t first_python_;
  const StringId unknown_;
  KinetoHeader header_;
  ChromeEvent event_;

  std::map<std::tuple<bool, std::string, std::string>, TrackId> tracks_;
  TrackCacheEntry track_cache_[64];
  std::unordered_map<TrackId, std::vector<OpenSlice>> open_;  // phases B and E
  std::map<std::tuple<std::string, std::string, int32_t>, uint32_t> series_;
  std::map<std::string, StringId> process_names_;                         // by pid
  std::map<std::pair<std::string, std::string>, StringId> thread_names_;  // by pid, tid
  StringTable raw_lists_;              // argument lists as written...
  std::vector<StringId> list_ids_{0};  // ...and the id of each without its spaces
};

StringId KinetoReader::Text(const Token& token) {
  if (!token.escaped) return timeline_.strings.Intern(token.view());
  bool bad_escape = false;
  const StringId id = timeline_.strings.Intern(json::Unescape(token.view(), &bad_escape));
  if (bad_escape) stats().Count(Defect::kBadEscape, window_.offset());
  return id;
}

StringId KinetoReader::List(const Token& token) {
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

TrackId KinetoReader::TrackOf(Category category) {
  const std::string_view pid = event_.pid.view();
  const std::string_view tid = event_.tid.view();
  // The stream of GPU work is told by its args; the tid may be "stream 7 (sync)".
  const uint64_t stream =
      OnGpuTrack(category) ? static_cast<uint64_t>(event_.Int(F::kStream, -2)) : ~uint64_t{0};
  uint64_t hash = stream * 0x9e3779b97f4a7c15u + OnGpuTrack(category);
  for (const char byte : pid) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  hash *= 31;
  for (const char byte : tid) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  TrackCacheEntry& entry = track_cache_[(hash ^ hash >> 32) % std::size(track_cache_)];
  if (entry.track == kNone || entry.hash != hash) entry = {hash, MakeTrack(category, pid, tid)};
  return entry.track;
}

TrackId KinetoReader::MakeTrack(Category category, std::string_view pid, std::string_view tid) {
  Track track;
  track.source = source_;
  const bool gpu = OnGpuTrack(category);
  if (gpu) {
    track.kind = TrackKind::kGpuStream;
    track.device = Signed32(event_.Int(F::kDevice, FirstInteger(pid, -1)));
    track.stream = event_.Int(F::kStream, FirstInteger(tid, -1));
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

uint32_t KinetoReader::AddCollective() {
  if (!event_.has(F::kCollectiveName)) return kNone;
  CollectiveDetail detail;
  detail.name = Text(event_.Text(F::kCollectiveName));
  detail.dtype = Text(event_.Text(F::kDtype));
  detail.group_name = Text(event_.Text(F::kGroupName));
  detail.group_description = Text(event_.Text(F::kGroupDescription));
  detail.group_ranks = Text(event_.Text(F::kGroupRanks));
  detail.in_elements = event_.Int(F::kInElements, -1);
  detail.out_elements = event_.Int(F::kOutElements, -1);
  detail.group_size = Signed32(event_.Int(F::kGroupSize, -1));
  detail.src_rank = Signed32(event_.Int(F::kSrcRank, -1));
  detail.dst_rank = Signed32(event_.Int(F::kDstRank, -1));
  detail.sequence = event_.Int(F::kSequence, -1);
  detail.comm_id = static_cast<uint64_t>(event_.Int(F::kCommId, 0));
  timeline_.collectives.push_back(detail);
  return static_cast<uint32_t>(timeline_.collectives.size() - 1);
}

uint32_t KinetoReader::AddDetail(Category category) {
  const auto last = [](const auto& table) { return static_cast<uint32_t>(table.size() - 1); };
  const std::string_view kind = event_.Text(F::kKind).view();
  switch (category) {
    case Category::kKernel: {
      KernelDetail detail;
      detail.grid = event_.grid;
      detail.block = event_.block;
      detail.registers_per_thread = Unsigned32(event_.Int(F::kRegisters, 0));
      detail.shared_bytes = Unsigned32(event_.Int(F::kSharedBytes, 0));
      detail.context = Unsigned32(event_.Int(F::kContext, 0));
      detail.graph_id = static_cast<uint64_t>(event_.Int(F::kGraphId, 0));
      detail.graph_node_id = static_cast<uint64_t>(event_.Int(F::kGraphNodeId, 0));
      detail.in_graph =
          detail.graph_id != 0 || detail.graph_node_id != 0 || kind == "Dispatch Task";
      detail.collective = AddCollective();
      timeline_.kernels.push_back(detail);
      return last(timeline_.kernels);
    }
    case Category::kMemcpy:
    case Category::kMemset: {
      CopyDetail detail;
      detail.bytes = static_cast<uint64_t>(event_.Int(F::kBytes, 0));
      detail.graph_node_id = static_cast<uint64_t>(event_.Int(F::kGraphNodeId, 0));
      detail.kind =
          category == Category::kMemset ? CopyKind::kMemset : CopyKindOf(event_.name.view());
      detail.pageable_host = event_.name.view().find("Pageable") != std::string_view::npos;
      timeline_.copies.push_back(detail);
      return last(timeline_.copies);
    }
    case Category::kCpuOp:
    case Category::kAnnotation:
    case Category::kCollective: {
      OpDetail detail;
      detail.input_dims = List(event_.Text(F::kInputDims));
      detail.input_types = List(event_.Text(F::kInputTypes));
      detail.input_strides = List(event_.Text(F::kInputStrides));
      detail.call_stack = Text(event_.Text(F::kCallStack));
      detail.module_hierarchy = Text(event_.Text(F::kModuleHierarchy));
      detail.kernel_hash = Text(event_.Text(F::kKernelHash));
      detail.kernel_file = Text(event_.Text(F::kKernelFile));
      detail.collective = AddCollective();
      if ((detail.input_dims | detail.call_stack | detail.kernel_hash | detail.input_types |
           detail.module_hierarchy) == 0 &&
          detail.collective == kNone) {
        return kNone;
      }
      timeline_.ops.push_back(detail);
      return last(timeline_.ops);
    }
    case Category::kPython:
      if (!event_.has(F::kPythonId)) return kNone;
      timeline_.python.push_back(
          {Unsigned32(event_.Int(F::kPythonId, 0)), Unsigned32(event_.Int(F::kPythonParent, 0))});
      return last(timeline_.python);
    case Category::kRuntime:
    case Category::kDriver: {
      if (!event_.has(F::kKernel) && !event_.has(F::kBytes) && !event_.has(F::kGrid)) return kNone;
      LaunchDetail detail;
      detail.kernel_name = Text(event_.Text(F::kKernel));
      detail.grid = event_.grid;
      detail.block = event_.block;
      detail.bytes = static_cast<uint64_t>(event_.Int(F::kBytes, 0));
      detail.kind = CopyKindOf(kind);
      timeline_.launches.push_back(detail);
      return last(timeline_.launches);
    }
    case Category::kSync:
    case Category::kCudaEvent:
      timeline_.syncs.push_back(
          {Text(event_.Text(F::kSyncKind)), event_.Int(F::kWaitOnStream, -1),
           static_cast<uint64_t>(std::max<int64_t>(event_.Int(F::kWaitOnCorrelation, 0), 0))});
      return last(timeline_.syncs);
    default:
      return kNone;
  }
}

void KinetoReader::CommitSlice(Category category, int64_t start_ns, int64_t dur_ns) {
  if (dur_ns < 0) {
    stats().Count(Defect::kNegativeTime, window_.offset());
    dur_ns = 0;
  }
  if (start_ns == 0 && OnGpuTrack(category)) {
    stats().Count(Defect::kZeroTime, window_.offset());
    return;
  }
  const StringId name = Text(event_.name);
  const TrackId track = TrackOf(category);
  const uint32_t detail = AddDetail(category);
  Slices& slices = timeline_.slices;
  slices.start_ns.push_back(start_ns);
  slices.dur_ns.push_back(dur_ns);
  slices.name.push_back(name);
  slices.track.push_back(track);
  slices.correlation.push_back(static_cast<uint64_t>(event_.Int(F::kCorrelation, 0)));
  slices.external.push_back(static_cast<uint64_t>(event_.Int(F::kExternalId, 0)));
  slices.detail.push_back(detail);
  slices.category.push_back(category);
  ++stats().kept;
  Source& source = timeline_.sources[source_];
  if (category == Category::kOverhead) source.overhead_ns += dur_ns;
  if (name == unknown_) ++source.unknown_names;
}

void KinetoReader::Commit() {
  if (event_.defects.any()) {
    for (size_t i = 0; i < kNumDefects; ++i) {
      if (event_.defects[i]) stats().Count(static_cast<Defect>(i), window_.offset());
    }
  }
  switch (event_.phase) {
    case 'X':
    case 'B':
    case 'E':
    case 'i':
    case 'I':
    case 'C':
      break;
    case 'M':
      CommitMetadata();
      return;
    case 's':
    case 't':
    case 'f':  // flows: kernels are joined by correlation
      ++stats().ignored;
      return;
    default:
      stats().Count(Defect::kUnknownRecord, window_.offset());
      return;
  }
  if (!event_.has_ts || event_.bad_time) {
    stats().Count(Defect::kBadTime, window_.offset());
    return;
  }
  switch (event_.phase) {
    case 'X':
      CommitSlice(FindCategory(event_.category.view()), event_.ts_ns, event_.dur_ns);
      break;
    case 'C':
      CommitCounter();
      break;
    case 'B':
    case 'E':
      BeginEnd();
      break;
    default:
      if (event_.has(F::kMemoryBytes)) {
        CommitMemory();
      } else {
        CommitSlice(Category::kInstant, event_.ts_ns, 0);
      }
  }
}

void KinetoReader::BeginEnd() {
  const Category category = FindCategory(event_.category.view());
  std::vector<OpenSlice>& open = open_[TrackOf(category)];
  if (event_.phase == 'B') {
    open.push_back({category, Text(event_.name), event_.ts_ns, window_.offset()});
    return;
  }
  if (open.empty()) {
    stats().Count(Defect::kUnmatchedEnd, window_.offset());
    return;
  }
  const OpenSlice begin = open.back();
  open.pop_back();
  const size_t row = timeline_.slices.size();
  CommitSlice(begin.category, begin.start_ns, event_.ts_ns - begin.start_ns);
  if (timeline_.slices.size() > row) timeline_.slices.name[row] = begin.name;
}

uint32_t KinetoReader::SeriesOf(std::string_view name, std::string_view labels, int32_t device) {
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
void KinetoReader::CommitCounter() {
  const Token name_token = event_.name;
  bool bad_escape = false;
  const std::string name = json::Unescape(name_token.view(), &bad_escape);
  const auto device = Signed32(FirstInteger(event_.pid.view(), -1));
  const bool gpu = event_.pid.view().find("GPU") != std::string_view::npos;
  if (event_.args.begin == nullptr) return;
  Cursor c{event_.args.begin + 1, event_.args.end};
  for (;;) {
    while (c.p < c.end && *c.p != '"' && *c.p != '}') ++c.p;
    if (c.p >= c.end || *c.p == '}') return;
    ++c.p;
    Token key;
    if (ScanString(c, key) != Scan::kOk) return;
    SkipSpace(c);
    if (c.p < c.end && *c.p == ':') ++c.p;
    SkipSpace(c);
    const char* const begin = c.p;
    if (SkipValue(c) != Scan::kOk) return;
    double value = 0;
    const json::Number number = json::ToDouble({begin, static_cast<size_t>(c.p - begin)}, &value);
    if (number == json::Number::kOk) {
      std::string full = name;
      if (!key.view().empty()) full.append(".").append(key.view());
      timeline_.AddSample(SeriesOf(full, "", gpu ? device : -1), event_.ts_ns, value);
      ++stats().kept;
    } else if (number == json::Number::kNonFinite) {
      stats().Count(Defect::kNonFinite, window_.offset());
    }
  }
}

// The allocator's "[memory]" instants. Device types are c10::DeviceType: 0 is the CPU.
void KinetoReader::CommitMemory() {
  const bool cpu = event_.Int(F::kDeviceType, 0) == 0;
  const auto device = cpu ? -1 : Signed32(event_.Int(F::kDeviceId, -1));
  const std::string_view labels = cpu ? R"(memory="host")" : R"(memory="device")";
  const auto add = [&](std::string_view name, EventField field) {
    if (!event_.has(field)) return;
    timeline_.AddSample(SeriesOf(name, labels, device), event_.ts_ns,
                        static_cast<double>(event_.Int(field, 0)));
  };
  add("allocator.bytes", F::kMemoryBytes);
  add("allocator.allocated_bytes", F::kTotalAllocated);
  add("allocator.reserved_bytes", F::kTotalReserved);
  ++stats().kept;
}

void KinetoReader::CommitMetadata() {
  ++stats().ignored;
  const std::string_view what = event_.name.view();
  if (!event_.has(F::kArgName)) return;
  const std::string pid(event_.pid.view());
  if (what == "process_name") {
    process_names_[pid] = Text(event_.Text(F::kArgName));
  } else if (what == "thread_name") {
    thread_names_[{pid, std::string(event_.tid.view())}] = Text(event_.Text(F::kArgName));
  }
}

void KinetoReader::NameTracks() {
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

void KinetoReader::Finish() {
  Source& source = timeline_.sources[source_];
  Slices& slices = timeline_.slices;
  for (const auto& [track, open] : open_) {
    for (const OpenSlice& begin : open) {
      source.stats.Count(Defect::kUnmatchedBegin, begin.offset);
    }
  }
  NameTracks();
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  for (size_t i = first_slice_; i < slices.size(); ++i) {
    slices.start_ns[i] += header_.base_ns;
    first = std::min(first, slices.start_ns[i]);
    last = std::max(last, slices.end_ns(i));
  }
  for (size_t i = first_sample_; i < timeline_.samples.size(); ++i) {
    timeline_.samples.t_ns[i] += header_.base_ns;
    first = std::min(first, timeline_.samples.t_ns[i]);
    last = std::max(last, timeline_.samples.t_ns[i]);
  }
  // Without a base, times are microseconds since 1970 (16 digits) or since some origin.
  constexpr int64_t kYear2001 = 1'000'000'000'000'000'000;
  source.clock = ClockDomain::kRelative;
  if (first <= last) {
    source.first_ns = first;
    source.last_ns = last;
    if (first > kYear2001) source.clock = ClockDomain::kUnix;
  }
  if (source.clock == ClockDomain::kUnix) source.utc_anchor_ns = 0;
  if (timeline_.python.size() > first_python_) source.with_stack = true;
  if (input_.damaged()) Cut();
  source.stats.bytes = input_.bytes_read();
}

// Chrome traces start with a brace or bracket and soon name their events' keys.
int DetectKineto(std::string_view prefix) {
  const size_t start = prefix.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (start == std::string_view::npos) return 0;
  prefix.remove_prefix(start);
  const auto holds = [&](std::string_view text) {
    return prefix.find(text) != std::string_view::npos;
  };
  if (prefix[0] == '[') return holds("\"ph\"") && holds("\"ts\"") ? 80 : 0;
  if (prefix[0] != '{') return 0;
  if (holds("\"traceEvents\"")) return 100;
  return holds("\"schemaVersion\"") && holds("\"deviceProperties\"") ? 90 : 0;
}

Status ReadKineto(Input& input, Timeline& timeline, SourceId source) {
  return KinetoReader(input, timeline, source).Read();
}

}  // namespace

const Reader kKinetoReader = {"kineto", "PyTorch profiler (Kineto) or other Chrome trace JSON",
                              DetectKineto, ReadKineto};

}  // namespace fathom::diagnose
