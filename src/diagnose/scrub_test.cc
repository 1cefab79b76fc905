#include "diagnose/scrub.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

namespace fs = std::filesystem;

class Scrub : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / (std::string("fathom_scrub_") + std::to_string(getpid()) + "_" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The scrubbed copy of a file with these bytes.
  std::string Clean(std::string_view bytes) {
    const fs::path in = folder_ / "in";
    const fs::path out = folder_ / "out";
    std::ofstream(in, std::ios::binary) << bytes;
    fs::remove(out);
    const Result<ScrubSummary> summary = ScrubFile(in.string(), out.string());
    EXPECT_TRUE(summary) << summary.error().message;
    if (!summary) return "";
    std::ostringstream text;
    text << std::ifstream(out, std::ios::binary).rdbuf();
    EXPECT_EQ(text.str().size(), summary->bytes_written);
    return text.str();
  }

  fs::path folder_;
};

// Everything that must not survive, in whatever place it was planted.
constexpr const char* kPlanted[] = {"alice",      "zebra-host",  "hunter2",   "s3cretproject",
                                    "10.1.2.3",   "deadbeef",    "fe80::1ff", "hf_abcdefgh",
                                    "attackplan", "example.org", "aa:bb:cc"};

void ExpectNothingLeft(const std::string& clean) {
  for (const char* secret : kPlanted) {
    EXPECT_EQ(clean.find(secret), std::string::npos) << secret << " in\n" << clean.substr(0, 3000);
  }
}

TEST_F(Scrub, Trace) {
  const std::string clean = Clean(
      R"({"traceName": "/home/alice/s3cretproject/t.json", "hostname": "zebra-host",
"INFO": ["INFO: zebra-host:12 \n/data/s3cretproject/run.log by alice"],
"trace_id": "deadbeefdeadbeefdeadbeefdeadbeef",
"traceEvents": [
{"ph": "X", "cat": "python_function", "name": "\/home\/alice\/s3cretproject\/model.py(270): repeat_kv", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
{"ph": "X", "cat": "python_function", "name": "C:\\Users\\alice\\s3cretproject\\x.py(1): f", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2},
{"ph": "X", "cat": "python_function", "name": "/home/alice/v/lib/python3.11/site-packages/torch/nn/modules/module.py(1773): _call_impl", "pid": 1, "tid": 1, "ts": 2, "dur": 1},
{"ph": "X", "cat": "cpu_op", "name": "triton_add", "pid": 1, "tid": 1, "ts": 3, "dur": 1,
 "args": {"kernel_file": "/tmp/torchinductor_alice/ab/cab.py", "kernel_kwargs": "XBLOCK=2,R0_BLOCK=2048", "user": "alice"}},
{"ph": "X", "cat": "kernel", "name": "void at::native::(anonymous namespace)::add<4, std::array<char*, 1ul> >(int, float*)/2", "pid": 0, "tid": 7, "ts": 3, "dur": 1, "args": {"stream": 7}}
]})");
  ExpectNothingLeft(clean);
  const Timeline t = ReadText(clean);
  EXPECT_EQ(t.slices.size(), 5u);
  EXPECT_EQ(t.sources[0].stats.dropped(), 0u);
  EXPECT_THAT(std::string(t.SliceName(0)),
              testing::MatchesRegex("/path/[0-9]+.py\\(270\\): repeat_kv"));
  EXPECT_EQ(t.SliceName(2), "site-packages/torch/nn/modules/module.py(1773): _call_impl");
  EXPECT_EQ(
      t.SliceName(4),
      "void at::native::(anonymous namespace)::add<4, std::array<char*, 1ul> >(int, float*)/2");
  EXPECT_THAT(clean, testing::HasSubstr("XBLOCK=2,R0_BLOCK=2048"));
}

TEST_F(Scrub, NamesLearnedLateAreReplacedEarly) {
  std::string text =
      "[2025-12-26 06:08:40 TP0] Decode batch, #running-req: 1 by alice_x on zebra-host\n";
  for (int i = 0; i < 40000; ++i)
    text += "[2025-12-26 06:08:40 TP0] Decode batch, #running-req: 1\n";
  text += "zebra-host:1:2 [0] NCCL INFO Channel 00 : 0[1e0] -> 1[1e0] [send] via NET/IB/0\n";
  text += "loading /home/alice/x\n";
  ExpectNothingLeft(Clean(text));
}

TEST_F(Scrub, ServerLog) {
  const std::string clean = Clean(
      "INFO 03-22 18:54:28 [api.py:1] args: model='/data/s3cretproject/r1 v2/w.bin', "
      "token=hf_abcdefghijklmnop "
      "API_PASSWORD=hunter2 LANG=xx_YY.zz NCCL_IB_HCA=mlx5_0 CUDA_VISIBLE_DEVICES=0,1\n"
      "INFO 03-22 18:54:56 [logger.py:39] Received request "
      "chatcmpl-deadbeefdeadbeefdeadbeefdeadbeef: prompt: 'the attackplan isn\\'t \"simple\"', "
      "params: "
      "SamplingParams(n=1, temperature=0.6)\n"
      "INFO 03-22 18:54:57 10.1.2.3:4711 - \"POST /v1/chat/completions HTTP/1.1\" 200 from "
      "fe80::1ff:fe23:4567:890a via aa:bb:cc:dd:ee:ff mail bob.alice@example.org at "
      "http://zebra.example.org:8000/x?y=1 Bearer hunter2hunter2\n"
      "INFO 03-22 18:54:40 [metrics.py:481] Avg prompt throughput: 1.4 tokens/s, Running: 0 reqs, "
      "GPU "
      "KV cache usage: 0.5%\n");
  ExpectNothingLeft(clean);
  EXPECT_EQ(clean.find("xx_YY"), std::string::npos);
  EXPECT_THAT(clean, testing::HasSubstr("NCCL_IB_HCA=mlx5_0 CUDA_VISIBLE_DEVICES=0,1"));
  EXPECT_THAT(clean, testing::HasSubstr("Avg prompt throughput: 1.4 tokens/s, Running: 0 reqs"));
  EXPECT_THAT(clean, testing::HasSubstr("params: SamplingParams(n=1, temperature=0.6)"));
}

TEST_F(Scrub, NcclKeepsRanksAndNodesApart) {
  const std::string clean = Clean(
      "zebra-host:1465:1471 [0] NCCL INFO Channel 00 : 0[1e0] -> 1[1e0] [send] via NET/Socket/0\n"
      "zebra-host2:46:51 [0] NCCL INFO Channel 01 : 0[1e0] -> 1[1e0] [receive] via NET/Socket/0\n");
  ExpectNothingLeft(clean);
  const Timeline t = ReadText(clean);
  ASSERT_EQ(t.transports.size(), 2u);
  EXPECT_NE(t.transports[0].host, t.transports[1].host);
}

TEST_F(Scrub, Metrics) {
  const std::string clean = Clean(
      "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
      "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-deadbeef-dead-beef-dead-beefdeadbeef\",Hostname="
      "\"zebra-host\","
      "pod=\"alice-s3cretproject-0\",modelName=\"NVIDIA H200\"} 88\n");
  ExpectNothingLeft(clean);
  EXPECT_THAT(clean, testing::HasSubstr("modelName=\"NVIDIA H200\"} 88"));
}

TEST_F(Scrub, Otlp) {
  const std::string clean = Clean(
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"zebra-host"}}]},
"scopeSpans":[{"spans":[{"traceId":"deadbeefdeadbeefdeadbeefdeadbeef","spanId":"00f067aa0ba902b7","name":"llm_request",
"startTimeUnixNano":"1790000000000000000","endTimeUnixNano":"1790000003940000000","attributes":[
{"key":"gen_ai.prompt","value":{"stringValue":"the attackplan of alice"}},
{"key":"gen_ai.usage.prompt_tokens","value":{"intValue":"17"}}]}]}]}]})");
  ExpectNothingLeft(clean);
  const Timeline t = ReadText(clean);
  ASSERT_EQ(t.requests.size(), 1u);
  EXPECT_EQ(t.requests[0].prompt_tokens, 17);
  EXPECT_EQ(t.Name(t.spans[0].trace_id).size(), 32u);
}

TEST_F(Scrub, NsightCompute) {
  const std::string clean = Clean(
      "alice says hunter2\n==PROF== Connected to process 648 (/home/alice/s3cretproject/bank)\n"
      "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel "
      "Name\",\"Context\",\"Stream\",\"Block "
      "Size\",\"Grid Size\",\"Device\",\"CC\",\"a\"\n"
      "\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"%\"\n"
      "\"0\",\"1\",\"p\",\"zebra-host\",\"k\",\"1\",\"7\",\"(1, 1, 1)\",\"(2, 1, "
      "1)\",\"0\",\"9.0\",\"5\"\n");
  ExpectNothingLeft(clean);
  EXPECT_EQ(ReadText(clean).profiled_kernels.size(), 1u);
}

TEST_F(Scrub, Perf) {
  const std::string clean = Clean(
      "# hostname : zebra-host\npython3   520  1077.632971:    5025125 cpu-clock: \n"
      "\tffffffff82249ae4 sized_strscpy+0xc4 ([kernel.kallsyms])\n"
      "\t           d4ad7 __GI___execve+0x7 (/usr/lib/x86_64-linux-gnu/libc.so.6)\n"
      "\t           d4ad7 work+0x7 (/home/alice/s3cretproject/engine)\n\n");
  ExpectNothingLeft(clean);
  const Timeline t = ReadText(clean);
  ASSERT_EQ(t.stack_samples.size(), 1u);
  const std::vector<StackNode> stack = t.Stack(t.stack_samples[0].stack);
  ASSERT_EQ(stack.size(), 3u);
  EXPECT_EQ(t.Name(stack[1].module), "/usr/lib/x86_64-linux-gnu/libc.so.6");
}

TEST_F(Scrub, LongLinesAreCutBetweenObjects) {
  std::string text = R"({"traceEvents":[)";
  for (int i = 0; i < 60000; ++i) {
    text +=
        R"({"ph":"X","cat":"python_function","name":"/home/alice/s3cretproject/m.py(1): f","pid":1,"tid":1,"ts":1,"dur":1},)";
  }
  text += R"({"ph":"X","cat":"cpu_op","name":"last","pid":1,"tid":1,"ts":1,"dur":1}]})";
  const std::string clean = Clean(text);
  ExpectNothingLeft(clean);
  EXPECT_EQ(ReadText(clean).slices.size(), 60001u);
}

TEST_F(Scrub, NsightSystems) {
  const fs::path in = folder_ / "export.sqlite";
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(in.c_str(), &db), SQLITE_OK);
  char* error = nullptr;
  ASSERT_EQ(sqlite3_exec(db, R"(
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'API_PASSWORD=hunter2'), (3, '/home/alice/s3cretproject/lib.so');
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
      correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 250, 0, 7, 5, 33554432, 1);
    CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER);
    INSERT INTO SAMPLING_CALLCHAINS VALUES (1, 1, 3, 0);
    CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
    INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'zebra-host'), ('ENV', 'TOKEN=hf_abcdefghijkl');
    CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
    INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:WORKING_DIR', '/home/alice'), ('CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Graph');
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
    INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'range of alice', NULL, 33554433);
  )",
                         nullptr, nullptr, &error),
            SQLITE_OK)
      << error;
  sqlite3_close(db);
  std::ostringstream original;
  original << std::ifstream(in, std::ios::binary).rdbuf();
  const std::string clean = Clean(original.str());
  ExpectNothingLeft(clean);
  const Timeline t = ReadText(clean);
  EXPECT_EQ(t.SliceName(0), "gemm");
  EXPECT_NE(FindSlice(t, "range of user-1"), kNone);
  ASSERT_EQ(t.facts.size(), 1u);
  EXPECT_EQ(t.Name(t.facts[0].text), "Graph");
}

TEST_F(Scrub, RealExportKeepsItsEvents) {
  const fs::path out = folder_ / "out.sqlite";
  const std::string in = DataPath("nsys/nsightful_power_iteration.sqlite.gz");
  const Result<ScrubSummary> summary = ScrubFile(in, out.string());
  ASSERT_TRUE(summary) << summary.error().message;
  const Timeline before = ReadFile("nsys/nsightful_power_iteration.sqlite.gz");
  const Timeline after = MustRead(Input::Open(out.string()));
  EXPECT_EQ(before.slices.start_ns, after.slices.start_ns);
  EXPECT_EQ(before.stack_samples.size(), after.stack_samples.size());
  EXPECT_LT(summary->bytes_written, before.sources[0].stats.bytes);
}

TEST_F(Scrub, NeitherOverwritesNorInvents) {
  const fs::path in = folder_ / "in";
  const fs::path out = folder_ / "out";
  std::ofstream(in) << "no artifact";
  EXPECT_FALSE(ScrubFile(in.string(), out.string()));
  EXPECT_FALSE(fs::exists(out));
  std::ofstream(in) << "# TYPE a gauge\na 1\n";
  std::ofstream(out) << "precious";
  const Result<ScrubSummary> refused = ScrubFile(in.string(), out.string());
  ASSERT_FALSE(refused);
  EXPECT_EQ(fs::file_size(out), 8u);
  EXPECT_FALSE(ScrubFile("-", out.string()));
}

// The settings that servers print at their start.
TEST_F(Scrub, SettingsOfServers) {
  const std::string clean = Clean(
      "[2025-08-18 02:44:10] server_args=ServerArgs(model_path='/data/s3cretproject/DeepSeek-V3', "
      "host='10.1.2.3', api_key='hunter2', admin_api_key=\"hunter2\", api_key=None, "
      "dist_init_addr='zebra-host.corp:5000', tp_size=8, dp_size=1)\n"
      "[2025-08-18 02:44:11] max_total_num_tokens=10, context_len=4\n"
      "INFO 02-01 06:05:05 [api_server.py:2] non-default args: {'api_key': ['hunter2', "
      "'hunter2b'], 'model': '/data/s3cretproject/x', 'hf_token': 'hf_abc', 'port': 8000}\n"
      "INFO 02-01 06:05:09 [x.py:1] connected to zebra-host.corp as rank 0\n");
  ExpectNothingLeft(clean);
  EXPECT_THAT(clean, testing::HasSubstr("api_key='[removed]', admin_api_key=\"[removed]\", "
                                        "api_key=None"));
  EXPECT_THAT(clean,
              testing::HasSubstr("{'api_key': ['[removed]', '[removed]'], 'model': '/path/"));
  EXPECT_THAT(clean, testing::HasSubstr("'hf_token': '[removed]', 'port': 8000}"));
  EXPECT_THAT(clean, testing::HasSubstr("tp_size=8, dp_size=1)"));
  EXPECT_THAT(clean, testing::Not(testing::HasSubstr("corp")));
}

// Each form in which programs and shells print a credential, and what is left of it.
TEST_F(Scrub, CredentialsInEveryForm) {
  constexpr std::pair<const char*, const char*> kForms[] = {
      {"launch --api-key hunter2 --port 80", "launch --api-key [removed] --port 80"},
      {"launch --admin-api-key=hunter2 -v", "launch --admin-api-key=[removed] -v"},
      {"['--api-key', 'hunter2', '--port']", "['--api-key', '[removed]', '--port']"},
      {R"(env {\"api_key\": \"hunter2\", \"a\": 1})",
       R"(env {\"api_key\": \"[removed]\", \"a\": 1})"},
      {R"({\"hf_token\": \"a\\\"hunter2\"})", R"({\"hf_token\": \"[removed]\"})"},
      {R"({\\\"hf_token\\\": \\\"hunter2\\\"})", R"({\\\"hf_token\\\": \\\"[removed]\\\"})"},
      {"'x-api-key': 'hunter2'", "'x-api-key': '[removed]'"},
      {R"("api-key": "hunter2")", R"("api-key": "[removed]")"},
      {"apiKey='hunter2', a", "apiKey='[removed]', a"},
      {"'API_KEY': 'hunter2'", "'API_KEY': '[removed]'"},
      {"token='hunter2', a", "token='[removed]', a"},
      {"huggingface_token='hunter2'", "huggingface_token='[removed]'"},
      {"api_token='hunter2'", "api_token='[removed]'"},
      {"aws_secret_access_key='hunter2'", "aws_secret_access_key='[removed]'"},
      {"secret='hunter2'", "secret='[removed]'"},
      {"private_key='hunter2'", "private_key='[removed]'"},
      {"api_key=hunter2, tp=8", "api_key=[removed], tp=8"},
      {"api_key=('hunter2', 'hunter2b')", "api_key=('[removed]', '[removed]')"},
      {"api_key=[None, 'hunter2']", "api_key=[None, '[removed]']"},
      {"api_key=b'hunter2', a", "api_key=b'[removed]', a"},
      {"api_key=SecretStr('hunter2'), a", "api_key=SecretStr('[removed]'), a"},
      {"api_key='hunt\\'hunter2', a", "api_key='[removed]', a"},
      {"Authorization: Basic hunter2", "Authorization: Basic [removed]"},
      {"authorization=[Basic hunter2, b] end",
       "authorization=[[removed] [removed], [removed]] end"},
      {"'Authorization': 'Basic hunter2'", "'Authorization': '[removed]'"},
      {R"({"password": 4711, "a": 1})", R"({"password": 0, "a": 1})"},
  };
  constexpr const char* kLine = "[2025-08-18 02:44:11] max_total_num_tokens=10, context_len=4\n";
  for (const auto& [form, left] : kForms) {
    const std::string clean = Clean(fmt::format("{}{}\n", kLine, form));
    EXPECT_EQ(clean, fmt::format("{}{}\n", kLine, left)) << form;
    EXPECT_EQ(Clean(clean), clean) << form;
  }
  // Counts, tokens that text is made of, keys of tables, code and settings that are off.
  for (const char* kept :
       {"#new-token: 12, #cached-token: 0, token usage: 0.5", "max_tokens=16, num_tokens: 5",
        R"("token_ids": [1, 2, 3], "eos_token": "</s>", "per_token": 1.5e-05)",
        R"({"key": "layer", "cache_key": "abc", "sort_key": 3, "token": 4})",
        "cub::SortKey::Run, at token == x", "mean latency per token: 12.3ms",
        "api_key=None, hf_token=null, token=True", "--api-key --port 80",
        "missing_keys: ['a.weight'], tokenizer='auto'"}) {
    const std::string text = fmt::format("{}{}\n", kLine, kept);
    EXPECT_EQ(Clean(text), text);
  }
}

TEST_F(Scrub, HostsInEveryForm) {
  constexpr const char* kLine = "[2025-08-18 02:44:11] max_total_num_tokens=10, context_len=4\n";
  for (const char* form :
       {"'hostname': ['yak9.corp','zebra-host']", "nccl_init_addr='zebra-host:5000'",
        "launch --dist-init-addr zebra-host:5000 -v", "master_addr=zebra-host, node_rank=0",
        "MASTER_ADDR=zebra-host", "dist_init_addr='tcp://zebra-host:5000'",
        R"({\"hostname\": \"zebra-host\"})"}) {
    const std::string clean = Clean(fmt::format("{}{}\nzebra-host is up\n", kLine, form));
    ExpectNothingLeft(clean);
    EXPECT_THAT(clean, testing::HasSubstr(" is up")) << form;
    EXPECT_THAT(clean, testing::Not(testing::HasSubstr("zebra"))) << form;
    EXPECT_THAT(clean, testing::Not(testing::HasSubstr("yak9"))) << form;
    // A second scrub meets the stand-ins of the first.
    EXPECT_EQ(Clean(clean), clean) << form;
  }
  for (const char* kept : {"node: starting, instance = ready", "master_addr=None"}) {
    const std::string text = fmt::format("{}{}\nNone is starting and ready\n", kLine, kept);
    EXPECT_EQ(Clean(text), text);
  }
}

}  // namespace
}  // namespace fathom::diagnose
