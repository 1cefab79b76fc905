#pragma once
// The event stream as a Chrome trace (JSON object format) that Perfetto and chrome://tracing open:
// steps with their ops inside them on the engine's track (a GPU's ops on a track of their own),
// requests as asynchronous tracks with their stages nested, and a flow from each request's arrival
// through its steps. Spans carry args.op: "attention", "prefix_lookup", "cache_miss", ...
//
// The file is well-formed after every flush: its closing part is rewritten behind each batch. When
// the size limit or the disk's end is reached the trace stops there and says so in otherData.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "observe/recorder.h"

namespace fathom::observe {

class TraceWriter : public Consumer {
 public:
  // `label`: what to call the process, e.g. "fathom serve tiny-deepseek".
  static Result<std::unique_ptr<TraceWriter>> Create(const std::string& path,
                                                     std::string_view label, uint64_t max_bytes);
  ~TraceWriter() override;

  void Consume(std::span<const event::Event> events) override;
  void OnDropped(uint64_t count) override;

  uint64_t bytes() const { return end_; }  // of the events written so far
  // Empty while all is well; "file size limit" or the operating system's words.
  const std::string& stopped() const { return stopped_; }

 private:
  TraceWriter(int fd, uint64_t max_bytes) : fd_(fd), max_bytes_(max_bytes) {}
  void Append(const event::Event& e);
  void RequestStage(const event::Event& e);
  void Item(std::string_view text);
  void Flush();
  std::string Tail() const;

  int fd_;
  uint64_t max_bytes_;
  uint64_t end_ = 0;  // where the closing part begins
  std::string pending_;
  uint64_t written_events_ = 0;
  uint64_t dropped_ = 0;
  std::string stopped_;
  int64_t origin_ns_ = 0;       // of the host clock; the trace starts near 0
  int64_t origin_wall_ns_ = 0;  // the same instant in UTC
  int64_t gpu_origin_ns_ = 0;   // of the GPU clock, at its first event
  std::unordered_map<uint64_t, std::string_view> stage_;  // open stage of each request
};

}  // namespace fathom::observe
