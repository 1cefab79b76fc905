#include "observe/trace_writer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.h"

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;

std::string TempPath(const std::string& name) {
  return std::filesystem::temp_directory_path() /
         (name + std::to_string(static_cast<long>(getpid())) + ".json");
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::vector<Event> Request(uint64_t id) {
  const int64_t t = NowNs();
  auto at = [&](Kind kind, int64_t us, uint64_t value = 0) {
    return Event{.start_ns = t + us * 1000, .request_id = id, .value = value, .kind = kind};
  };
  Event lookup = at(Kind::kPrefixLookup, 3, 64);
  lookup.duration_ns = 1000;
  lookup.aux = 100;
  Event op = {.start_ns = t + 6000,
              .duration_ns = 2000,
              .step_id = 1,
              .layer = 3,
              .kind = Kind::kOp,
              .op = event::Op::kAttention};
  Event step = {.start_ns = t + 5000,
                .duration_ns = 5000,
                .step_id = 1,
                .value = 100,
                .aux = 100,
                .kind = Kind::kStep};
  return {at(Kind::kRequestArrived, 0),
          at(Kind::kQueued, 2, 100),
          lookup,
          at(Kind::kCacheMiss, 4, 64),
          at(Kind::kScheduled, 5),
          op,
          step,
          at(Kind::kToken, 10),
          at(Kind::kPreempted, 11),
          at(Kind::kScheduled, 12),
          at(Kind::kToken, 13, 1),
          at(Kind::kFinished, 14, 2),
          at(Kind::kResponded, 15)};
}

TEST(TraceWriter, IsWellFormedAfterEveryFlushAndNestsStages) {
  const std::string path = TempPath("fathom_trace");
  auto writer = TraceWriter::Create(path, "a \"quoted\" label", 1 << 20);
  ASSERT_TRUE(writer) << writer.error().message;
  EXPECT_TRUE(nlohmann::json::accept(ReadFile(path)));
  (*writer)->Consume(Request(7));
  const auto trace = nlohmann::json::parse(ReadFile(path));
  (*writer)->Consume(Request(8));
  writer->reset();
  EXPECT_TRUE(nlohmann::json::accept(ReadFile(path)));

  std::map<std::string, int> open;
  std::vector<std::string> order;
  double step_begin = 0, step_end = 0, op_begin = 0, op_end = 0;
  bool lookup = false, miss = false, flow_begin = false, flow_end = false;
  for (const auto& e : trace["traceEvents"]) {
    const std::string phase = e["ph"], name = e.value("name", "");
    if (phase == "b" && name != "request") order.push_back(name);
    if (phase == "b") open[name]++;
    if (phase == "e") open[name]--;
    if (name == "step 1") step_begin = e["ts"], step_end = step_begin + e["dur"].get<double>();
    if (name == "attention L3") op_begin = e["ts"], op_end = op_begin + e["dur"].get<double>();
    lookup |= phase == "b" && e["args"].value("op", "") == "prefix_lookup";
    miss |= phase == "n" && e["args"].value("op", "") == "cache_miss";
    flow_begin |= phase == "s";
    flow_end |= phase == "f";
  }
  for (const auto& [name, count] : open) EXPECT_EQ(count, 0) << name;
  EXPECT_EQ(order,
            (std::vector<std::string>{"received", "queue", "prefix_lookup", "prefill", "decode",
                                      "preempted", "recompute", "decode", "respond"}));
  EXPECT_GE(op_begin, step_begin);
  EXPECT_LE(op_end, step_end);
  EXPECT_TRUE(lookup && miss && flow_begin && flow_end);
  std::remove(path.c_str());
}

TEST(TraceWriter, StopsAtTheSizeLimitWithAReadableFile) {
  const std::string path = TempPath("fathom_trace_limit");
  auto writer = TraceWriter::Create(path, "x", 8192);
  ASSERT_TRUE(writer);
  for (uint64_t id = 1; id < 50; ++id) (*writer)->Consume(Request(id));
  EXPECT_EQ((*writer)->stopped(), "file size limit");
  writer->reset();
  EXPECT_LE(std::filesystem::file_size(path), 8192u + 512u);
  const auto trace = nlohmann::json::parse(ReadFile(path));
  EXPECT_EQ(trace["otherData"]["stopped"], "file size limit");
  EXPECT_GT(trace["traceEvents"].size(), 20u);
  std::remove(path.c_str());
}

TEST(TraceWriter, ReportsAFullDiskAndAnUnwritablePath) {
  if (std::filesystem::exists("/dev/full")) {
    const auto full = TraceWriter::Create("/dev/full", "x", 1 << 20);
    ASSERT_FALSE(full);
    EXPECT_NE(full.error().message.find("No space left"), std::string::npos);
  }
  const auto missing = TraceWriter::Create("/nonexistent/trace.json", "x", 1 << 20);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/nonexistent/trace.json"), std::string::npos);
}

}  // namespace
}  // namespace fathom::observe
