#include "observe/trace_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "observe/ledger.h"

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;

constexpr int kPid = 1;
constexpr int kEngineTrack = 1;
constexpr int kDeliveryTrack = 2;
constexpr int kFirstGpuTrack = 100;

// Everything or an errno.
int WriteAll(int fd, std::string_view data, uint64_t offset) {
  while (!data.empty()) {
    const ssize_t n = pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    data.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return 0;
}

std::string TrackName(int track, std::string_view name) {
  return fmt::format(
      R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", kPid, track,
      name);
}

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::Create(const std::string& path,
                                                         std::string_view label,
                                                         uint64_t max_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Err(Code::kInvalidArgument, "trace file {}: {}", path, std::strerror(errno));
  }
  std::unique_ptr<TraceWriter> writer(new TraceWriter(fd, max_bytes));
  writer->origin_ns_ = NowNs();
  writer->origin_wall_ns_ = WallNowNs();
  const std::string head = "{\"traceEvents\":[";
  if (const int error = WriteAll(fd, head, 0); error != 0) {
    return Err(Code::kResourceExhausted, "trace file {}: {}", path, std::strerror(error));
  }
  writer->end_ = head.size();
  const std::string name =
      nlohmann::json(label).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  writer->Item(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})",
                           kPid, name));
  writer->Item(TrackName(kEngineTrack, "engine: steps and ops"));
  writer->Item(TrackName(kDeliveryTrack, "text and network"));
  writer->Flush();
  if (!writer->stopped_.empty()) {
    return Err(Code::kResourceExhausted, "trace file {}: {}", path, writer->stopped_);
  }
  return writer;
}

TraceWriter::~TraceWriter() {
  Flush();
  close(fd_);
}

void TraceWriter::Consume(std::span<const Event> events) {
  if (!stopped_.empty()) return;
  for (const Event& e : events) Append(e);
  Flush();
}

void TraceWriter::OnDropped(uint64_t count) {
  dropped_ += count;
  Flush();
}

void TraceWriter::Item(std::string_view text) {
  if (written_events_++ > 0) pending_ += ",\n";
  pending_ += text;
}

std::string TraceWriter::Tail() const {
  return fmt::format(
      "],\n\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schema\":\"fathom.trace/1\",\"events\":{},"
      "\"dropped_events\":{},\"stopped\":\"{}\",\"origin_unix_ns\":\"{}\"}}}}\n",
      written_events_, dropped_, stopped_, origin_wall_ns_);
}

void TraceWriter::Flush() {
  if (stopped_.empty() && end_ + pending_.size() > max_bytes_) stopped_ = "file size limit";
  if (stopped_.empty()) {
    if (const int error = WriteAll(fd_, pending_, end_); error != 0) {
      stopped_ = std::strerror(error);
    } else {
      end_ += pending_.size();
    }
  }
  // What was cut off frees the room that the closing part takes. Should even that fail, readers of
  // the format accept an array that is not closed.
  pending_.clear();
  if (ftruncate(fd_, static_cast<off_t>(end_)) == 0) (void)WriteAll(fd_, Tail(), end_);
}

void TraceWriter::Append(const Event& e) {
  if (e.clock == event::ClockDomain::kGpu && gpu_origin_ns_ == 0) {
    // No common origin is known: the device's first event is put where the host is now.
    gpu_origin_ns_ = e.start_ns - (NowNs() - origin_ns_);
  }
  const int64_t origin = e.clock == event::ClockDomain::kGpu ? gpu_origin_ns_ : origin_ns_;
  const double ts = static_cast<double>(e.start_ns - origin) * 1e-3;
  const double dur = static_cast<double>(e.duration_ns) * 1e-3;
  auto span = [&](int track, std::string_view name, std::string_view category,
                  std::string_view args) {
    Item(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":"{}",)"
                     R"("cat":"{}","args":{{{}}}}})",
                     kPid, track, ts, dur, name, category, args));
  };
  switch (e.kind) {
    case Kind::kStep:
      span(kEngineTrack, fmt::format("step {}", e.step_id), "step",
           fmt::format(R"("op":"step","step":{},"tokens":{},"prompt_tokens":{},"off_cpu_us":{})",
                       e.step_id, e.value, e.aux, e.off_cpu_us));
      break;
    case Kind::kSchedule:
      span(kEngineTrack, "schedule", "schedule",
           fmt::format(R"("op":"schedule","step":{},"sequences":{})", e.step_id, e.value));
      break;
    case Kind::kOp: {
      const int track =
          e.clock == event::ClockDomain::kGpu ? kFirstGpuTrack + e.device : kEngineTrack;
      const std::string_view op = NameOf(e.op);
      span(track, e.layer >= 0 ? fmt::format("{} L{}", op, e.layer) : std::string(op), "op",
           fmt::format(R"("op":"{}","layer":{},"step":{},"bytes":{},"flops":{})", op, e.layer,
                       e.step_id, e.value, e.aux));
      break;
    }
    case Kind::kDetokenize:
    case Kind::kNetworkWrite:
      span(kDeliveryTrack, NameOf(e.kind), "delivery",
           fmt::format(R"("op":"{}","request":{},"{}":{})", NameOf(e.kind), e.request_id,
                       e.kind == Kind::kDetokenize ? "tokens" : "bytes", e.value));
      break;
    case Kind::kWaitForCpu:
      if (e.request_id != 0) return RequestStage(e);
      span(kEngineTrack, "wait_for_cpu", "wait",
           fmt::format(R"("op":"wait_for_cpu","step":{},"off_cpu_us":{})", e.step_id,
                       e.value / 1000));
      break;
    case Kind::kModelLoad:
      span(kEngineTrack, "model_load", "load",
           fmt::format(R"("op":"model_load","bytes":{})", e.value));
      break;
    case Kind::kStepSequence:
      Item(fmt::format(R"({{"ph":"t","pid":{},"tid":{},"ts":{:.3f},"name":"request",)"
                       R"("cat":"flow","id":{}}})",
                       kPid, kEngineTrack, ts, e.request_id));
      break;
    case Kind::kCount:
      break;
    default:
      RequestStage(e);
  }
}

// Stages follow each other on the request's track: received, queue, prefill, decode, (preempted,
// recompute, decode,) respond.
void TraceWriter::RequestStage(const Event& e) {
  const double ts = static_cast<double>(e.start_ns - origin_ns_) * 1e-3;
  const double end = static_cast<double>(e.start_ns + e.duration_ns - origin_ns_) * 1e-3;
  auto mark = [&](char phase, double at, std::string_view name, std::string_view args) {
    Item(fmt::format(R"({{"ph":"{}","pid":{},"tid":{},"ts":{:.3f},"name":"{}","cat":"request",)"
                     R"("id":{},"args":{{{}}}}})",
                     phase, kPid, kDeliveryTrack, at, name, e.request_id, args));
  };
  const auto found = stage_.find(e.request_id);
  if (found == stage_.end() && e.kind != Kind::kRequestArrived && e.kind != Kind::kQueued) return;
  auto enter = [&](std::string_view next) {
    std::string_view& stage = stage_[e.request_id];
    if (stage == next) return;
    if (!stage.empty()) mark('e', ts, stage, "");
    if (!next.empty()) mark('b', ts, next, "");
    stage = next;
  };
  auto begin = [&](std::string_view args) {
    mark('b', ts, "request", args);
    Item(fmt::format(R"({{"ph":"s","pid":{},"tid":{},"ts":{:.3f},"name":"request","cat":"flow",)"
                     R"("id":{}}})",
                     kPid, kEngineTrack, ts, e.request_id));
  };
  switch (e.kind) {
    case Kind::kRequestArrived:
      begin(fmt::format(R"("body_bytes":{})", e.value));
      enter("received");
      break;
    case Kind::kQueued:
      if (found == stage_.end()) begin("");
      enter("queue");
      break;
    case Kind::kTokenize:
      mark('b', ts, "tokenize", fmt::format(R"("op":"tokenize","tokens":{})", e.value));
      mark('e', end, "tokenize", "");
      break;
    case Kind::kParse:
    case Kind::kWaitForCpu:
    case Kind::kLedger:
      mark('b', ts, NameOf(e.kind), fmt::format(R"("op":"{}")", NameOf(e.kind)));
      mark('e', end, NameOf(e.kind), "");
      break;
    case Kind::kPrefixLookup:
      mark('b', ts, "prefix_lookup",
           fmt::format(R"("op":"prefix_lookup","found":{},"asked":{})", e.value, e.aux));
      mark('e', end, "prefix_lookup", "");
      break;
    case Kind::kCacheMiss:
    case Kind::kKvVersionMismatch:
      mark('n', ts, NameOf(e.kind),
           fmt::format(R"("op":"{}","cause":"{}",)", NameOf(e.kind),
                       NameOf(static_cast<event::MissCause>(e.flags))) +
               (e.kind == Kind::kCacheMiss
                    ? fmt::format(R"("first_divergent_token":{},"recomputed_tokens":{})", e.value,
                                  e.aux)
                    : fmt::format(R"("entries":{})", e.value)));
      break;
    case Kind::kScheduled:
      enter(found->second == "preempted" ? "recompute" : "prefill");
      break;
    case Kind::kPreempted:
      enter("preempted");
      break;
    case Kind::kToken:
      enter("decode");
      mark('n', ts, "token", fmt::format(R"("index":{},"step":{})", e.value, e.step_id));
      break;
    case Kind::kFinished:
      enter("respond");
      mark('n', ts, "finished",
           fmt::format(R"("reason":"{}","tokens":{})", FinishReasonName(e.flags), e.value));
      break;
    case Kind::kResponded:
      enter("");
      mark('e', ts, "request", "");
      Item(fmt::format(R"({{"ph":"f","bp":"e","pid":{},"tid":{},"ts":{:.3f},"name":"request",)"
                       R"("cat":"flow","id":{}}})",
                       kPid, kEngineTrack, ts, e.request_id));
      stage_.erase(e.request_id);
      break;
    default:
      break;
  }
}

}  // namespace fathom::observe
