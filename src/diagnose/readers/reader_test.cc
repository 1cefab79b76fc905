// Detection by content, the small record formats, and what is no artifact.
#include "diagnose/readers/reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

std::string ErrorOf(std::string bytes) {
  Timeline timeline;
  Result<Input> input = Input::FromMemory("some file", std::move(bytes));
  const Result<SourceId> read = ReadArtifact(*input, timeline);
  EXPECT_FALSE(read);
  return read ? "" : read.error().message;
}

TEST(Reader, ForeignContentListsWhatWasLookedFor) {
  for (const char* text : {"hello\n", "", "{\"a\": 1}", "<html>", "1,2,3\n4,5,6\n"}) {
    const std::string message = ErrorOf(text);
    EXPECT_NE(message.find("some file: expected"), std::string::npos) << text;
    EXPECT_NE(message.find("Kineto"), std::string::npos) << text;
    EXPECT_NE(message.find("nvidia-smi dmon"), std::string::npos) << text;
  }
}

TEST(Reader, BinaryRecordingsNameTheirExportCommand) {
  EXPECT_NE(ErrorOf("PERFILE2 ....").find("perf script"), std::string::npos);
  EXPECT_NE(ErrorOf("NVR\x01....").find("ncu --import"), std::string::npos);
  EXPECT_NE(ErrorOf("QDSSARGO....").find("nsys export --type sqlite"), std::string::npos);
  // Three trace packets of one timestamp field each.
  const std::string packet("\x0a\x02\x40\x05", 4);
  EXPECT_NE(ErrorOf(packet + packet + packet).find("traceconv json"), std::string::npos);
}

TEST(Reader, EveryFormatIsFoundByContentAlone) {
  const std::pair<const char*, const char*> cases[] = {
      {"kineto/hta_triton_example.json.gz", "kineto"},
      {"nsys/nsightful_power_iteration.sqlite.gz", "nsys-sqlite"},
      {"ncu/nsightful_copy_blocked_details.csv", "ncu-csv"},
      {"ncu/ncu_bank_raw.csv.gz", "ncu-csv"},
      {"logs/vllm_v0_r1-distill-qwen32b_tp2.log", "vllm-log"},
      {"logs/sglang_old_style_deepseek_r1_fp4_tp8.log", "sglang-log"},
      {"logs/nccl_debug_info.log", "nccl-log"},
      {"metrics/vllm_v1_qwen3-0.6b.prom", "prometheus"},
      {"metrics/nvidia-smi_dmon_pu.txt", "nvidia-smi-dmon"},
      {"otlp/otlp_metrics_example.json", "otlp"},
      {"perf/dynolog_intel_pt_stress_ushort.txt", "perf-script"},
  };
  for (const auto& [file, format] : cases) {
    EXPECT_EQ(ReadFile(file).sources[0].format, format) << file;
  }
}

TEST(Reader, DirectoryIsReadInOrder) {
  const std::vector<std::string> paths = {DataPath("logs"), DataPath("otlp")};
  const Result<Timeline> timeline = ReadArtifacts(paths);
  ASSERT_TRUE(timeline) << timeline.error().message;
  EXPECT_EQ(timeline->sources.size(), 11u);
  EXPECT_EQ(timeline->sources[0].format, "nccl-log");
  EXPECT_EQ(timeline->sources[10].format, "otlp");
}

// A folder may hold anything: what is no artifact is left out and named.
TEST(Reader, ForeignFilesOfAFolderAreLeftOut) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("fathom_reader_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "README.md") << "Recorded with Nsight Systems.\n";
  std::ofstream(folder / "perf.data") << "PERFILE2....";
  const std::vector<std::string> paths = {folder.string()};
  const Result<Timeline> none = ReadArtifacts(paths);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  fs::copy(DataPath("otlp/otlp_trace_example.json"), folder / "spans.json");
  const Result<Timeline> timeline = ReadArtifacts(paths);
  ASSERT_TRUE(timeline) << timeline.error().message;
  EXPECT_EQ(timeline->sources.size(), 1u);
  ASSERT_EQ(timeline->skipped.size(), 2u);
  EXPECT_EQ(timeline->skipped[0].why, "");  // the README only speaks of a report
  EXPECT_NE(timeline->skipped[1].why.find("perf script"), std::string::npos);
  // The same file named by hand is an error.
  const std::vector<std::string> named = {(folder / "README.md").string()};
  EXPECT_FALSE(ReadArtifacts(named));
  fs::remove_all(folder);
}

TEST(Reader, AFolderGivesEachRecordingOnce) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("fathom_once_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const auto copy = [&](const char* data, const char* name) {
    fs::copy(DataPath(data), folder / name, fs::copy_options::overwrite_existing);
  };
  copy("kineto/llama_cudagraph_decode.json.gz", "b.json.gz");
  {
    auto input = Input::Open((folder / "b.json.gz").string());
    ASSERT_TRUE(input);
    std::ofstream(folder / "c.json") << *input->ReadAll(1 << 24);
  }
  copy("nsys/nsysai_h100_2gpu_1s.sqlite.gz", "e.sqlite.gz");
  {
    auto input = Input::Open((folder / "e.sqlite.gz").string());
    ASSERT_TRUE(input);
    std::ofstream(folder / "a.sqlite") << input->ReadAll(1 << 24)->substr(0, 300'000);
  }
  const std::vector<std::string> paths = {folder.string()};
  const Result<Timeline> timeline = ReadArtifacts(paths);
  ASSERT_TRUE(timeline) << timeline.error().message;
  // The cut database is a part of the whole one.
  ASSERT_EQ(timeline->sources.size(), 2u);
  EXPECT_EQ(timeline->sources[0].format, "kineto");
  EXPECT_EQ(timeline->sources[1].format, "nsys-sqlite");
  ASSERT_EQ(timeline->skipped.size(), 2u);
  EXPECT_NE(timeline->skipped[0].why.find("e.sqlite.gz, cut short"), std::string::npos);
  EXPECT_NE(timeline->skipped[1].why.find("the same recording as"), std::string::npos);
  // Named, both are errors.
  const std::vector<std::string> twice = {(folder / "b.json.gz").string(),
                                          (folder / "c.json").string()};
  ASSERT_FALSE(ReadArtifacts(twice));
  EXPECT_NE(ReadArtifacts(twice).error().message.find("the same recording as"), std::string::npos);
  // A folder beside one of its files, or in another one: each file once, in either order.
  for (const std::vector<std::string>& both :
       {std::vector{folder.string(), (folder / "c.json").string()},
        std::vector{(folder / "c.json").string(), folder.string()},
        std::vector{folder.string(), folder.parent_path().string() + "/" +
                                         folder.filename().string() + "/../" +
                                         folder.filename().string()}}) {
    const Result<Timeline> once = ReadArtifacts(both);
    ASSERT_TRUE(once) << once.error().message;
    EXPECT_EQ(once->sources.size(), 2u);
  }
  const std::vector<std::string> cut = {(folder / "a.sqlite").string()};
  EXPECT_FALSE(ReadArtifacts(cut));
  fs::remove_all(folder);
}

class Copies : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("fathom_copies_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const char* name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  Timeline Read() const {
    const std::vector<std::string> paths = {folder_.string()};
    auto timeline = ReadArtifacts(paths);
    EXPECT_TRUE(timeline) << timeline.error().message;
    return std::move(*timeline);
  }
  static std::string Log(int lines, int last_running = 0) {
    std::string text;
    for (int i = 0; i < lines; ++i) {
      text += fmt::format(
          "INFO 01-01 {:02}:{:02}:{:02} [x.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
          "Avg generation throughput: 1.0 tokens/s, Running: {} reqs, Waiting: 0 reqs\n",
          i / 3600, i / 60 % 60, i % 60, i + 1 < lines ? 7 : last_running);
    }
    return text;
  }
  std::filesystem::path folder_;
};

// Of a recording that lies there whole and cut short, whichever sorts first, the whole one counts.
TEST_F(Copies, TheLongestIsRead) {
  for (const int lines : {20, 600, 6000}) {  // in the first bytes, in the prefix, beyond it
    SetUp();
    const std::string whole = Log(lines);
    Write("a.log", whole.substr(0, whole.size() * 2 / 3));
    Write("b.log", whole);
    Write("c.log", whole.substr(0, whole.size() * 5 / 6));
    Write("d.log", whole);
    const Timeline t = Read();
    ASSERT_EQ(t.sources.size(), 1u) << lines;
    EXPECT_EQ(t.sources[0].path, (folder_ / "b.log").string());
    EXPECT_EQ(t.log_lines.size(), static_cast<size_t>(lines));
    ASSERT_EQ(t.skipped.size(), 3u);
    EXPECT_NE(t.skipped[0].why.find("b.log, cut short"), std::string::npos) << t.skipped[0].why;
    EXPECT_NE(t.skipped[1].why.find("b.log, cut short"), std::string::npos) << t.skipped[1].why;
    EXPECT_TRUE(t.skipped[2].why.ends_with("b.log")) << t.skipped[2].why;
  }
}

// What begins alike and goes on differently is not one recording, however late it differs.
TEST_F(Copies, TheWholeContentTells) {
  Write("a.log", Log(6000, 1));
  Write("b.log", Log(6000, 2));
  const Timeline t = Read();
  EXPECT_EQ(t.sources.size(), 2u);
  EXPECT_EQ(t.log_lines.size(), 12000u);
  EXPECT_TRUE(t.skipped.empty());
}

TEST_F(Copies, NamedCopiesAreErrors) {
  const std::string whole = Log(50);
  const std::string cut = Write("cut.log", whole.substr(0, whole.size() / 2));
  const std::vector<std::string> paths = {cut, Write("whole.log", whole)};
  const auto timeline = ReadArtifacts(paths);
  ASSERT_FALSE(timeline);
  EXPECT_NE(timeline.error().message.find("the same recording as " + paths[1] + ", cut short"),
            std::string::npos)
      << timeline.error().message;
}

TEST(Reader, ScheduleLog) {
  const Timeline t = ReadText(
      "{\"seq_id\": 4, \"phase\": \"prefill\", \"start_us\": 1000.5, \"end_us\": 2000, "
      "\"graph_id\": null}\n"
      "{\"seq_id\": 4, \"phase\": \"decode\", \"start_us\": 2187.25, \"end_us\": 3000, "
      "\"graph_id\": \"g32\"}\n"
      "{\"seq_id\": 4, \"phase\": \"decode\", \"start_us\": 9, \"end_us\": 3}\n{\"seq_id\": \n");
  EXPECT_EQ(t.sources[0].format, "schedule");
  ASSERT_EQ(t.schedule.size(), 2u);
  EXPECT_EQ(t.schedule[0].start_ns, 1000500);
  EXPECT_EQ(t.schedule[0].graph_id, 0u);
  EXPECT_EQ(t.schedule[1].start_ns - t.schedule[0].end_ns, 187250);
  EXPECT_EQ(t.Name(t.schedule[1].graph_id), "g32");
  EXPECT_EQ(t.Name(t.schedule[1].sequence), "4");
  EXPECT_EQ(DefectCountOf(t, Defect::kBadTime), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 1u);
}

TEST(Reader, AccessEvents) {
  const Timeline csv = ReadText(
      "token_id,emit_ts,hbm_addr,latency\n0,1000,0x7f00000000c0,480\n1,2000,4096,500\n2,x,1,1\n");
  ASSERT_EQ(csv.access_events.size(), 2u);
  EXPECT_EQ(csv.access_events[0].address, 0x7f00000000c0u);
  EXPECT_EQ(csv.access_events[0].latency_ns, 480);
  EXPECT_EQ(csv.access_events[1].token, 1);
  EXPECT_EQ(DefectCountOf(csv, Defect::kBadTime), 1u);
  const Timeline json =
      ReadText(R"([{"token_id": 3, "emit_ts_us": 1.5, "hbm_addr": "0xc0", "latency_us": 0.25}])");
  ASSERT_EQ(json.access_events.size(), 1u);
  EXPECT_EQ(json.access_events[0].t_ns, 1500);
  EXPECT_EQ(json.access_events[0].latency_ns, 250);
}

TEST(Reader, ExpertLoads) {
  const Timeline csv = ReadText("layer_id,expert_id,count\n3,0,100\n3,1,200\n3,-1,5\n");
  ASSERT_EQ(csv.expert_loads.size(), 2u);
  EXPECT_EQ(csv.expert_loads[1].layer, 3);
  EXPECT_EQ(csv.expert_loads[1].expert, 1);
  EXPECT_EQ(csv.expert_loads[1].tokens, 200);
  EXPECT_EQ(DefectCountOf(csv, Defect::kMalformed), 1u);
  const Timeline quoted = ReadText(R"("a ""quoted"" name",layer,expert,tokens)"
                                   "\n,3,1,7\n");
  ASSERT_EQ(quoted.expert_loads.size(), 1u);
  EXPECT_EQ(quoted.expert_loads[0].tokens, 7);
  const Timeline flat = ReadText("{\"rank\": 0, \"logical_count\": [[1, 2, 3], [4, 5, 6]]}");
  ASSERT_EQ(flat.expert_loads.size(), 6u);
  EXPECT_EQ(flat.expert_loads[5].layer, 1);
  EXPECT_EQ(flat.expert_loads[5].expert, 2);
  EXPECT_EQ(flat.expert_loads[5].tokens, 6);
  const Timeline dumps = ReadText("{\"logical_count\": [[[1, 2]], [[3, 4]]]}");
  ASSERT_EQ(dumps.expert_loads.size(), 4u);
  EXPECT_EQ(dumps.expert_loads[3].layer, 0);
  const Timeline absurd = ReadText("layer,expert,tokens\n0,0,1e308\n0,1,-3\n0,2,9\n");
  ASSERT_EQ(absurd.expert_loads.size(), 1u);
  EXPECT_EQ(DefectCountOf(absurd, Defect::kMalformed), 2u);
}

// Nothing recurses as deep as its input nests.
TEST(Reader, DeepNestingIsReadOrRefused) {
  constexpr size_t kLevels = 300000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  const std::string event = R"({"ph":"X","name":"k","ts":1,"dur":2,"pid":1,"tid":1)";
  const std::string span =
      R"({"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"a","startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":[{"key":"k","value":)";
  const std::string buckets =
      R"({"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","histogram":{"dataPoints":[{"timeUnixNano":"1","bucketCounts":["1"],"explicitBounds":[)";
  const std::string interval = R"({"seq_id":1,"phase":"decode","start_us":1,"end_us":2})";
  const std::string access = R"({"token_id":1,"emit_ts":1,"hbm_addr":2,"latency":2})";
  for (const std::string& text : {
           R"({"traceEvents":[)" + event + R"(}],"deviceProperties":)" + deep + "}",
           R"({"traceEvents":[)" + event + R"(},)" + event + R"(,"args":{"a":)" + deep + "}}]}",
           R"({"traceEvents":[)" + event + R"(}],"distributedInfo":{"pg_config":)" + deep + "}}",
           span + R"({"arrayValue":)" + deep + "}}]}]}]}]}",
           span + R"({"intValue":)" + deep + "}}]}]}]}]}",
           buckets + deep + "]}]}}]}]}]}",
           R"({"schema":"fathom.samples/1","gpus":)" + deep + "}\n",
           R"({"logical_count":)" + deep + "}",
           interval + "\n" + interval.substr(0, interval.size() - 1) + R"(,"x":)" + deep + "}\n",
           access + "\n" + access.substr(0, access.size() - 1) + R"(,"x":)" + deep + "}\n",
       }) {
    const Timeline t = ReadText(text);
    EXPECT_NE(t.sources[0].format, "none") << text.substr(0, 60);
  }
  const Timeline attribute = ReadText(span + R"({"arrayValue":)" + deep + "}}]}]}]}]}");
  ASSERT_EQ(attribute.attributes.size(), 1u);
  EXPECT_EQ(attribute.Name(attribute.attributes[0].text), "[nested too deeply]");
}

}  // namespace
}  // namespace fathom::diagnose
