#include "diagnose/readers/nsys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "diagnose/readers/sqlite_table.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr int64_t kTimeLimit = int64_t{1} << 61;

// A global id packs hardware, VM, process and thread: 24 bits of process, 24 of thread.
int64_t PidOf(int64_t global_id) { return global_id / 0x1000000 % 0x1000000; }
int64_t TidOf(int64_t global_id) { return global_id % 0x1000000; }

// CUPTI_ActivityMemcpyKind.
CopyKind CopyKindOf(int64_t kind) {
  switch (kind) {
    case 1:
    case 3:
      return CopyKind::kHostToDevice;
    case 2:
    case 4:
      return CopyKind::kDeviceToHost;
    case 5:
    case 6:
    case 7:
    case 8:
      return CopyKind::kDeviceToDevice;
    case 9:
      return CopyKind::kHostToHost;
    case 10:
      return CopyKind::kPeer;
    case 11:
    case 12:
    case 13:
      return CopyKind::kUnified;
    default:
      return CopyKind::kUnknown;
  }
}

uint32_t Unsigned32(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}
int32_t Signed32(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

// "cudaLaunchKernel_v7000" without the version of its parameters.
std::string_view StripApiVersion(std::string_view name) {
  const size_t at = name.rfind("_v");
  if (at == std::string_view::npos || at + 2 == name.size()) return name;
  const std::string_view digits = name.substr(at + 2);
  return digits.size() >= 4 && digits.find_first_not_of("0123456789") == std::string_view::npos
             ? name.substr(0, at)
             : name;
}

class NsysReader {
 public:
  NsysReader(const SqliteDatabase& database, Timeline& timeline, SourceId source)
      : database_(database), timeline_(timeline), source_(source) {}

  Status Read() {
    ReadInfo();
    ReadDevices();
    ReadKernels();
    ReadGraphs();
    ReadCopies();
    ReadApi();
    ReadSyncs();
    ReadNvtx();
    ReadOsCalls();
    ReadOverhead("PROFILER_OVERHEAD");
    ReadOverhead("CUPTI_ACTIVITY_KIND_OVERHEAD");
    ReadSchedule();
    ReadCpuSamples();
    ReadGpuMetrics();
    ReadNicMetrics();
    ReadNames();
    Source& source = timeline_.sources[source_];
    if (source.stats.records == 0 && damaged_tables_ > 0) {
      return Err(Code::kDataLoss,
                 "expected an Nsight Systems export, found a database whose {} "
                 "tables cannot be read",
                 damaged_tables_);
    }
    if (first_ns_ <= last_ns_) {
      source.clock = ClockDomain::kRelative;
      source.first_ns = first_ns_;
      source.last_ns = last_ns_;
    }
    return {};
  }

 private:
  ReadStats& stats() { return timeline_.sources[source_].stats; }

  // The text of a StringIds row. The table also holds paths and environment, so that only what an
  // event names is taken.
  StringId StringOf(int64_t id) {
    const auto [entry, added] = string_ids_.try_emplace(id, 0);
    if (!added) return entry->second;
    if (lookup_ == nullptr) {
      sqlite3_stmt* statement = nullptr;
      sqlite3_prepare_v2(database_.handle(), "SELECT value FROM StringIds WHERE id = ?", -1,
                         &statement, nullptr);
      lookup_.reset(statement);
    }
    if (lookup_ == nullptr) return 0;
    sqlite3_reset(lookup_.get());
    sqlite3_bind_int64(lookup_.get(), 1, id);
    if (sqlite3_step(lookup_.get()) == SQLITE_ROW) {
      if (const unsigned char* text = sqlite3_column_text(lookup_.get(), 0)) {
        entry->second =
            timeline_.strings.Intern({reinterpret_cast<const char*>(text),
                                      static_cast<size_t>(sqlite3_column_bytes(lookup_.get(), 0))});
      }
    }
    return entry->second;
  }

  // API names, without their version.
  StringId ApiName(int64_t id) {
    const auto [entry, added] = api_names_.try_emplace(id, 0);
    if (added) {
      const std::string name(StripApiVersion(timeline_.Name(StringOf(id))));
      entry->second = timeline_.strings.Intern(name);
    }
    return entry->second;
  }

  // The profiled processes number their correlations each for itself.
  static uint64_t Correlation(int64_t global_id, int64_t correlation) {
    if (correlation <= 0) return 0;
    return static_cast<uint64_t>(PidOf(global_id)) << 32 | (correlation & 0xffffffff);
  }

  TrackId ThreadTrack(int64_t global_tid) {
    const auto [entry, added] = threads_.try_emplace(global_tid, 0);
    if (added) {
      Track track;
      track.source = source_;
      track.kind = TrackKind::kCpuThread;
      track.pid = PidOf(global_tid);
      track.tid = TidOf(global_tid);
      entry->second = timeline_.AddTrack(track);
    }
    return entry->second;
  }

  TrackId StreamTrack(int64_t global_pid, int64_t device, int64_t stream) {
    const auto [entry, added] =
        streams_.try_emplace(std::tuple(PidOf(global_pid), device, stream), 0);
    if (added) {
      Track track;
      track.source = source_;
      track.kind = TrackKind::kGpuStream;
      track.pid = PidOf(global_pid);
      track.device = Signed32(device);
      track.stream = stream;
      entry->second = timeline_.AddTrack(track);
    }
    return entry->second;
  }

  // Counts a row and checks its times; false when it must be dropped.
  bool Accept(int64_t start, int64_t end, bool gpu) {
    ++stats().records;
    if (start < -kTimeLimit || end > kTimeLimit || end < start) {
      stats().Count(Defect::kBadTime, stats().records);
      return false;
    }
    if (gpu && start == 0 && end == 0) {
      stats().Count(Defect::kZeroTime, stats().records);
      return false;
    }
    first_ns_ = std::min(first_ns_, start);
    last_ns_ = std::max(last_ns_, end);
    ++stats().kept;
    return true;
  }

  void Close(const SqliteTable& table) {
    if (!table.damaged()) return;
    ++damaged_tables_;
    stats().Count(Defect::kTruncated, stats().records);
  }

  void ReadInfo() {
    Source& source = timeline_.sources[source_];
    SqliteTable meta(database_, "META_DATA_EXPORT", {"name", "value"});
    while (meta.Next()) {
      if (meta.Text(0) == "EXPORT_SCHEMA_VERSION") source.schema = meta.Text(1);
      if (meta.Text(0) == "EXPORT_PRODUCT_VERSION") {
        source.producer = fmt::format("Nsight Systems {}", meta.Text(1));
      }
    }
    // Of the capture's options only this one: others hold command lines and environment.
    SqliteTable capture(database_, "META_DATA_CAPTURE", {"name", "value"});
    while (capture.Next()) {
      if (capture.Text(0) == "CUDA_GRAPH_TRACE_OPTIONS:MODE") {
        timeline_.AddFact(source_, "nsys.cuda_graph_trace", capture.Text(1));
      }
    }
    SqliteTable session(database_, "TARGET_INFO_SESSION_START_TIME",
                        {"utcEpochNs", "systemClockNs"});
    if (session.Next()) {
      const int64_t utc = session.Int(0, kNoTime);
      if (utc > 0 && utc < kTimeLimit) source.utc_anchor_ns = utc;
      if (!session.Null(1)) {
        timeline_.AddFact(source_, "nsys.system_clock_ns", static_cast<double>(session.Int(1)));
      }
    }
    SqliteTable diagnostics(database_, "DIAGNOSTIC_EVENT", {"severity", "text"});
    while (diagnostics.Next()) {
      constexpr int64_t kWarning = 2;
      constexpr int64_t kError = 3;
      if (diagnostics.Int(0) != kWarning && diagnostics.Int(0) != kError) continue;
      timeline_.AddFact(source_, "nsys.diagnostic", diagnostics.Text(1));
      const std::string_view text = diagnostics.Text(1);
      if (text.find("dropped") != std::string_view::npos ||
          text.find("lost") != std::string_view::npos ||
          text.find("might have been collected") != std::string_view::npos) {
        stats().Count(Defect::kDropped, 0);
      }
    }
  }

  void ReadDevices() {
    SqliteTable table(database_, "TARGET_INFO_GPU",
                      {"id", "name", "computeMajor", "computeMinor", "smCount", "threadsPerWarp",
                       "maxWarpsPerSm", "maxRegistersPerSm", "maxShmemPerSm",
                       "maxShmemPerBlockOptin", "totalMemory", "memoryBandwidth"});
    while (table.Next()) {
      DeviceInfo device;
      device.id = Signed32(table.Int(0, -1));
      device.name = table.Text(1);
      device.compute_major = Signed32(table.Int(2));
      device.compute_minor = Signed32(table.Int(3));
      device.num_sms = Signed32(table.Int(4));
      device.warp_size = Signed32(table.Int(5));
      device.max_threads_per_sm =
          Signed32(std::min<int64_t>(table.Int(6), 1024) * device.warp_size);
      device.registers_per_sm = Signed32(table.Int(7));
      device.shared_bytes_per_sm = table.Int(8);
      device.shared_bytes_per_block_optin = table.Int(9);
      device.memory_bytes = table.Int(10);
      device.memory_bytes_per_s = static_cast<double>(table.Int(11));
      timeline_.sources[source_].devices.push_back(device);
    }
    Close(table);
  }

  void ReadKernels() {
    SqliteTable table(database_, "CUPTI_ACTIVITY_KIND_KERNEL",
                      {"start",
                       "end",
                       "deviceId",
                       "streamId",
                       "correlationId",
                       "globalPid",
                       "demangledName",
                       "shortName",
                       "registersPerThread",
                       "gridX",
                       "gridY",
                       "gridZ",
                       "blockX",
                       "blockY",
                       "blockZ",
                       "staticSharedMemory",
                       "dynamicSharedMemory",
                       "localMemoryPerThread",
                       "graphNodeId",
                       "graphId",
                       "clusterX",
                       "clusterY",
                       "clusterZ",
                       "contextId"});
    while (table.Next()) {
      const int64_t start = table.Int(0);
      const int64_t end = table.Int(1);
      if (!Accept(start, end, /*gpu=*/true)) continue;
      KernelDetail detail;
      detail.registers_per_thread = Unsigned32(table.Int(8));
      detail.grid = {Unsigned32(table.Int(9)), Unsigned32(table.Int(10)),
                     Unsigned32(table.Int(11))};
      detail.block = {Unsigned32(table.Int(12)), Unsigned32(table.Int(13)),
                      Unsigned32(table.Int(14))};
      detail.shared_bytes = Unsigned32(std::min<int64_t>(table.Int(15), UINT32_MAX) +
                                       std::min<int64_t>(table.Int(16), UINT32_MAX));
      detail.local_bytes_per_thread = Unsigned32(table.Int(17));
      detail.graph_node_id = static_cast<uint64_t>(table.Int(18));
      detail.graph_id = static_cast<uint64_t>(table.Int(19));
      detail.in_graph = detail.graph_node_id != 0 || detail.graph_id != 0;
      const Dim3 cluster = {Unsigned32(table.Int(20)), Unsigned32(table.Int(21)),
                            Unsigned32(table.Int(22))};
      detail.cluster = static_cast<uint32_t>(std::min<uint64_t>(cluster.count(), UINT32_MAX));
      detail.context = Unsigned32(table.Int(23));
      timeline_.kernels.push_back(detail);
      const StringId name = StringOf(table.Null(6) ? table.Int(7) : table.Int(6));
      AddGpuSlice(Category::kKernel, table, name, timeline_.kernels.size() - 1);
    }
    Close(table);
  }

  // The first six columns of `table` are start, end, deviceId, streamId, correlationId, globalPid.
  void AddGpuSlice(Category category, const SqliteTable& table, StringId name, size_t detail) {
    const TrackId track = StreamTrack(table.Int(5), table.Int(2), table.Int(3));
    const size_t row =
        timeline_.AddSlice(category, track, table.Int(0), table.Int(1) - table.Int(0), name);
    timeline_.slices.correlation[row] = Correlation(table.Int(5), table.Int(4));
    timeline_.slices.detail[row] = static_cast<uint32_t>(detail);
  }

  // With --cuda-graph-trace=graph a launch is one interval and its kernels have no rows.
  void ReadGraphs() {
    SqliteTable table(database_, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                      {"start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                       "graphId", "contextId"});
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/true)) continue;
      KernelDetail detail;
      detail.graph_id = static_cast<uint64_t>(table.Int(6));
      detail.context = Unsigned32(table.Int(7));
      detail.in_graph = true;
      timeline_.kernels.push_back(detail);
      const StringId name = timeline_.strings.Intern(fmt::format("CUDA graph {}", table.Int(6)));
      AddGpuSlice(Category::kGraph, table, name, timeline_.kernels.size() - 1);
    }
    Close(table);
  }

  void ReadCopies() {
    SqliteTable copies(database_, "CUPTI_ACTIVITY_KIND_MEMCPY",
                       {"start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                        "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"});
    while (copies.Next()) {
      if (!Accept(copies.Int(0), copies.Int(1), /*gpu=*/true)) continue;
      constexpr int64_t kPageable = 0;
      CopyDetail detail;
      detail.bytes = static_cast<uint64_t>(std::max<int64_t>(copies.Int(6), 0));
      detail.kind = CopyKindOf(copies.Int(7));
      const int64_t host_side = detail.kind == CopyKind::kHostToDevice   ? copies.Int(8, -1)
                                : detail.kind == CopyKind::kDeviceToHost ? copies.Int(9, -1)
                                                                         : -1;
      detail.pageable_host = host_side == kPageable;
      detail.graph_node_id = static_cast<uint64_t>(copies.Int(10));
      timeline_.copies.push_back(detail);
      const StringId name =
          timeline_.strings.Intern(fmt::format("Memcpy {}", CopyKindName(detail.kind)));
      AddGpuSlice(Category::kMemcpy, copies, name, timeline_.copies.size() - 1);
    }
    Close(copies);
    SqliteTable sets(database_, "CUPTI_ACTIVITY_KIND_MEMSET",
                     {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
                      "graphNodeId"});
    const StringId memset_name = timeline_.strings.Intern("Memset");
    while (sets.Next()) {
      if (!Accept(sets.Int(0), sets.Int(1), /*gpu=*/true)) continue;
      CopyDetail detail;
      detail.bytes = static_cast<uint64_t>(std::max<int64_t>(sets.Int(6), 0));
      detail.kind = CopyKind::kMemset;
      detail.graph_node_id = static_cast<uint64_t>(sets.Int(7));
      timeline_.copies.push_back(detail);
      AddGpuSlice(Category::kMemset, sets, memset_name, timeline_.copies.size() - 1);
    }
    Close(sets);
  }

  void ReadApi() {
    SqliteTable table(database_, "CUPTI_ACTIVITY_KIND_RUNTIME",
                      {"start", "end", "globalTid", "correlationId", "nameId"});
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/false)) continue;
      const StringId name = ApiName(table.Int(4));
      // cuLaunchKernel is the driver's, cudaLaunchKernel the runtime's.
      const std::string_view text = timeline_.Name(name);
      const bool driver = text.starts_with("cu") && !text.starts_with("cuda");
      const size_t row = timeline_.AddSlice(driver ? Category::kDriver : Category::kRuntime,
                                            ThreadTrack(table.Int(2)), table.Int(0),
                                            table.Int(1) - table.Int(0), name);
      timeline_.slices.correlation[row] = Correlation(table.Int(2), table.Int(3));
    }
    Close(table);
  }

  void ReadSyncs() {
    SqliteTable table(
        database_, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "syncType"});
    // CUpti_ActivitySynchronizationType, in Kineto's words.
    constexpr std::string_view kKinds[] = {"Unknown", "Event Sync", "Stream Wait Event",
                                           "Stream Sync", "Context Sync"};
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/true)) continue;
      const int64_t type = table.Int(6);
      const StringId kind = timeline_.strings.Intern(
          kKinds[type > 0 && type < static_cast<int64_t>(std::size(kKinds)) ? type : 0]);
      timeline_.syncs.push_back({kind, table.Int(3, -1), 0});
      AddGpuSlice(Category::kSync, table, kind, timeline_.syncs.size() - 1);
    }
    Close(table);
  }

  // PyTorch's emit_nvtx writes "aten::view, op_id = 7, sizes = [[1, 8], []]": the op, its shapes.
  StringId NvtxName(std::string_view text, uint32_t* detail) {
    const size_t seq = text.find(", seq = ");
    const size_t op = text.find(", op_id = ");
    const size_t cut = std::min(seq, op);
    if (cut == std::string_view::npos) return timeline_.strings.Intern(text);
    if (const size_t sizes = text.find(", sizes = "); sizes != std::string_view::npos) {
      std::string_view list = text.substr(sizes + 10);
      list = list.substr(
          0, list.find("]],") == std::string_view::npos ? list.size() : list.find("]],") + 2);
      std::string packed;
      std::copy_if(list.begin(), list.end(), std::back_inserter(packed),
                   [](char byte) { return byte != ' '; });
      OpDetail op_detail;
      op_detail.input_dims = timeline_.strings.Intern(packed);
      timeline_.ops.push_back(op_detail);
      *detail = static_cast<uint32_t>(timeline_.ops.size() - 1);
    }
    return timeline_.strings.Intern(text.substr(0, cut));
  }

  void ReadNvtx() {
    SqliteTable table(database_, "NVTX_EVENTS",
                      {"start", "end", "eventType", "text", "textId", "globalTid"});
    constexpr int64_t kMark = 34;
    constexpr int64_t kPushPop = 59;
    constexpr int64_t kStartEnd = 60;
    while (table.Next()) {
      const int64_t type = table.Int(2);
      if (type != kMark && type != kPushPop && type != kStartEnd) {  // domains, names
        ++stats().records;
        ++stats().ignored;
        continue;
      }
      const int64_t start = table.Int(0);
      if (type != kMark && table.Null(1)) {
        ++stats().records;
        stats().Count(Defect::kUnmatchedBegin, stats().records);
        continue;
      }
      const int64_t end = type == kMark ? start : table.Int(1);
      if (!Accept(start, end, /*gpu=*/false)) continue;
      uint32_t detail = kNone;
      const StringId name = table.Null(3)
                                ? NvtxName(timeline_.Name(StringOf(table.Int(4))), &detail)
                                : NvtxName(table.Text(3), &detail);
      const size_t row = timeline_.AddSlice(type == kMark ? Category::kInstant : Category::kNvtx,
                                            ThreadTrack(table.Int(5)), start, end - start, name);
      timeline_.slices.detail[row] = detail;
    }
    Close(table);
  }

  void ReadOsCalls() {
    SqliteTable table(database_, "OSRT_API", {"start", "end", "globalTid", "nameId"});
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/false)) continue;
      timeline_.AddSlice(Category::kOsCall, ThreadTrack(table.Int(2)), table.Int(0),
                         table.Int(1) - table.Int(0), StringOf(table.Int(3)));
    }
    Close(table);
  }

  void ReadOverhead(std::string_view name) {
    SqliteTable table(database_, name, {"start", "end", "globalTid", "nameId"});
    const StringId unnamed = timeline_.strings.Intern("profiler overhead");
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/false)) continue;
      const int64_t duration = table.Int(1) - table.Int(0);
      timeline_.AddSlice(Category::kOverhead, ThreadTrack(table.Int(2)), table.Int(0), duration,
                         table.Null(3) ? unnamed : StringOf(table.Int(3)));
      timeline_.sources[source_].overhead_ns += duration;
    }
    Close(table);
  }

  // A thread is off its CPU from the event that schedules it out to the next that schedules it in.
  void ReadSchedule() {
    SqliteTable table(database_, "SCHED_EVENTS", {"start", "isSchedIn", "globalTid"}, "start");
    std::unordered_map<int64_t, int64_t> since;
    const StringId name = timeline_.strings.Intern("off CPU");
    while (table.Next()) {
      const int64_t start = table.Int(0);
      const int64_t thread = table.Int(2);
      if (!Accept(start, start, /*gpu=*/false)) continue;
      if (table.Int(1) == 0) {
        since[thread] = start;
      } else if (const auto out = since.find(thread); out != since.end()) {
        // Times of mixed types sort by type first: the order is not always that of the numbers.
        if (start < out->second) {
          stats().Count(Defect::kBadTime, stats().records);
        } else {
          timeline_.AddSlice(Category::kSchedule, ThreadTrack(thread), out->second,
                             start - out->second, name);
        }
        since.erase(out);
      }
    }
    Close(table);
  }

  void ReadCpuSamples() {
    // The stacks first: rows of one id are its frames, depth 0 innermost.
    std::unordered_map<int64_t, uint32_t> stacks;
    std::vector<std::pair<StringId, StringId>> frames;
    int64_t open = -1;
    const auto close = [&] {
      uint32_t node = kNone;
      for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
        node = timeline_.AddStackNode(node, frame->first, frame->second);
      }
      if (!frames.empty()) stacks[open] = node;
      frames.clear();
    };
    SqliteTable chains(database_, "SAMPLING_CALLCHAINS", {"id", "symbol", "module"}, "id");
    while (chains.Next()) {
      if (chains.Int(0) != open) {
        close();
        open = chains.Int(0);
      }
      frames.emplace_back(StringOf(chains.Int(1)), StringOf(chains.Int(2)));
    }
    close();
    Close(chains);
    SqliteTable events(database_, "COMPOSITE_EVENTS",
                       {"id", "start", "cpu", "globalTid", "cpuCycles"});
    const StringId event_name = timeline_.strings.Intern("nsys sample");
    while (events.Next()) {
      if (!Accept(events.Int(1), events.Int(1), /*gpu=*/false)) continue;
      StackSample sample;
      sample.t_ns = events.Int(1);
      sample.period = static_cast<uint64_t>(std::max<int64_t>(events.Int(4), 1));
      sample.pid = PidOf(events.Int(3));
      sample.tid = TidOf(events.Int(3));
      sample.cpu = static_cast<int16_t>(std::clamp<int64_t>(events.Int(2, -1), -1, INT16_MAX));
      sample.event = event_name;
      sample.source = source_;
      const auto stack = stacks.find(events.Int(0));
      if (stack != stacks.end()) sample.stack = stack->second;
      timeline_.stack_samples.push_back(sample);
    }
    Close(events);
  }

  void ReadGpuMetrics() {
    std::map<std::pair<int64_t, int64_t>, StringId> names;
    SqliteTable info(database_, "TARGET_INFO_GPU_METRICS", {"typeId", "metricId", "metricName"});
    while (info.Next()) {
      names[{info.Int(0), info.Int(1)}] = timeline_.strings.Intern(info.Text(2));
    }
    Close(info);
    std::map<std::pair<int64_t, int64_t>, uint32_t> series;
    SqliteTable table(database_, "GPU_METRICS", {"timestamp", "typeId", "metricId", "value"});
    while (table.Next()) {
      const int64_t t_ns = table.Int(0);
      if (!Accept(t_ns, t_ns, /*gpu=*/false)) continue;
      const std::pair key(table.Int(1), table.Int(2));
      const auto [entry, added] = series.try_emplace(key, 0);
      if (added) {
        Series row;
        row.source = source_;
        row.kind = SeriesKind::kGauge;
        row.name = names.count(key) != 0
                       ? names[key]
                       : timeline_.strings.Intern(fmt::format("GPU metric {}", key.second));
        row.device = Signed32(key.first & 0xff);
        entry->second = timeline_.AddSeries(row);
      }
      timeline_.AddSample(entry->second, t_ns, static_cast<double>(table.Int(3)));
    }
    Close(table);
  }

  void ReadNicMetrics() {
    std::map<std::pair<int64_t, int64_t>, std::pair<StringId, StringId>> names;
    SqliteTable info(database_, "TARGET_INFO_NETWORK_METRICS",
                     {"metricsListId", "metricsIdx", "name", "unit"});
    while (info.Next()) {
      names[{info.Int(0), info.Int(1)}] = {timeline_.strings.Intern(info.Text(2)),
                                           timeline_.strings.Intern(info.Text(3))};
    }
    Close(info);
    std::map<int64_t, int64_t> nics;
    SqliteTable map(database_, "NIC_ID_MAP", {"globalId", "nicId"});
    while (map.Next()) nics[map.Int(0)] = map.Int(1);
    Close(map);
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, uint32_t> series;
    SqliteTable table(
        database_, "NET_NIC_METRIC",
        {"start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"});
    while (table.Next()) {
      if (!Accept(table.Int(0), table.Int(1), /*gpu=*/false)) continue;
      const std::tuple key(table.Int(2), table.Int(3), table.Int(4), table.Int(5));
      const auto [entry, added] = series.try_emplace(key, 0);
      if (added) {
        const auto name = names.find({table.Int(4), table.Int(5)});
        Series row;
        row.source = source_;
        row.kind = SeriesKind::kGauge;
        row.name = name == names.end()
                       ? timeline_.strings.Intern(fmt::format("NIC metric {}", table.Int(5)))
                       : name->second.first;
        row.unit = name == names.end() ? 0 : name->second.second;
        row.labels = timeline_.strings.Intern(fmt::format("port=\"{}\"", table.Int(3)));
        const auto nic = nics.find(table.Int(2));
        row.device = Signed32(nic == nics.end() ? -1 : nic->second);
        entry->second = timeline_.AddSeries(row);
      }
      // An interval's reading belongs to its middle.
      timeline_.AddSample(entry->second, table.Int(0) + (table.Int(1) - table.Int(0)) / 2,
                          table.Real(6));
    }
    Close(table);
  }

  void ReadNames() {
    std::unordered_map<int64_t, StringId> processes;
    SqliteTable table(database_, "PROCESSES", {"pid", "name"});
    while (table.Next()) processes[table.Int(0)] = timeline_.strings.Intern(table.Text(1));
    Close(table);
    SqliteTable threads(database_, "ThreadNames", {"nameId", "globalTid"});
    while (threads.Next()) {
      const auto track = threads_.find(threads.Int(1));
      if (track != threads_.end()) {
        timeline_.tracks[track->second].thread_name = StringOf(threads.Int(0));
      }
    }
    Close(threads);
    for (Track& track : timeline_.tracks) {
      if (track.source != source_) continue;
      const auto name = processes.find(track.pid);
      if (name != processes.end()) track.process_name = name->second;
    }
  }

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  const SqliteDatabase& database_;
  Timeline& timeline_;
  const SourceId source_;
  std::unique_ptr<sqlite3_stmt, Finalize> lookup_;
  std::unordered_map<int64_t, StringId> string_ids_;
  std::unordered_map<int64_t, StringId> api_names_;
  std::unordered_map<int64_t, TrackId> threads_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, TrackId> streams_;
  int damaged_tables_ = 0;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
};

int DetectNsys(std::string_view prefix) {
  return prefix.starts_with(std::string_view("SQLite format 3\0", 16)) ? 50 : 0;
}

Status ReadNsys(Input& input, Timeline& timeline, SourceId source) {
  FATHOM_ASSIGN_OR_RETURN(const SqliteDatabase database, SqliteDatabase::Open(input));
  if (!database.HasTable("StringIds")) {
    return Err(Code::kInvalidArgument,
               "expected an Nsight Systems export, found an SQLite database without its table "
               "StringIds");
  }
  FATHOM_TRY(NsysReader(database, timeline, source).Read());
  timeline.sources[source].stats.bytes = database.bytes();
  if (input.damaged()) {
    timeline.sources[source].stats.Count(Defect::kTruncated, input.bytes_read());
  }
  return {};
}

}  // namespace

const Reader kNsysReader = {"nsys-sqlite", "Nsight Systems SQLite export", DetectNsys, ReadNsys};

}  // namespace fathom::diagnose
