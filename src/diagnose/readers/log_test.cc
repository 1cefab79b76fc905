#include "diagnose/readers/log.h"

#include <gtest/gtest.h>

#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

// The values of line `i`, absent ones as -1.
double ValueOf(const Timeline& t, size_t i, LogField field) {
  return t.Value(t.log_lines.at(i), field).value_or(-1);
}

TEST(Log, VllmV1WithSpeculation) {
  const Timeline t = ReadFile("logs/vllm_v1_deepseek-v4_specdecode.log");
  EXPECT_EQ(t.sources[0].format, "vllm-log");
  ASSERT_EQ(t.log_lines.size(), 4u);
  EXPECT_EQ(t.log_lines[0].kind, LogKind::kStats);
  EXPECT_EQ(t.log_lines[0].engine, 0);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kPromptTokensPerS), 1268.9);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kDecodeTokensPerS), 147.0);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kRunning), 7);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kKvUsage), 0.008);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kPrefixHitRate), 0.198);
  EXPECT_EQ(t.log_lines[1].kind, LogKind::kSpecDecode);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kAcceptLength), 1.80);
  EXPECT_NEAR(ValueOf(t, 1, LogField::kAcceptRate), 0.822, 1e-12);
  EXPECT_EQ(t.log_lines[2].t_ns - t.log_lines[0].t_ns, 10'000'000'000);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kWallLocal);
  EXPECT_EQ(t.sources[0].resolution_ns, 1'000'000'000);
}

TEST(Log, VllmEnginesAreToldApart) {
  const Timeline t = ReadFile("logs/vllm_v1_multi_engine_dp_deepseek-v4.log");
  ASSERT_EQ(t.log_lines.size(), 4u);
  EXPECT_EQ(t.log_lines[1].engine, 3);
  EXPECT_EQ(t.log_lines[3].engine, 0);
  EXPECT_NEAR(ValueOf(t, 3, LogField::kPrefixHitRate), 0.627, 1e-12);
}

TEST(Log, VllmQueuePressure) {
  const Timeline t = ReadFile("logs/vllm_v1_preempted_recount_random.log");
  ASSERT_EQ(t.log_lines.size(), 1u);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kWaiting), 535);
  EXPECT_NEAR(ValueOf(t, 0, LogField::kKvUsage), 0.823, 1e-12);
}

TEST(Log, VllmV0) {
  const Timeline t = ReadFile("logs/vllm_v0_r1-distill-qwen32b_tp2.log");
  ASSERT_EQ(t.log_lines.size(), 5u);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kSwapped), 0);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kWaiting), 0);  // "Pending"
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kCpuKvUsage), 0);
  EXPECT_EQ(t.log_lines[3].kind, LogKind::kEvent);
  EXPECT_EQ(t.Name(t.log_lines[3].text), "Aborted request");
}

TEST(Log, PromptsOfRequestsAreNotKept) {
  const Timeline t = ReadFile("logs/vllm_v0_deepseek-r1-gguf.log");
  EXPECT_EQ(t.log_lines.size(), 3u);
  EXPECT_EQ(t.sources[0].stats.ignored, 1u);
  for (size_t i = 0; i < t.strings.size(); ++i) {
    EXPECT_EQ(t.Name(static_cast<StringId>(i)).find("redacted"), std::string_view::npos);
  }
}

TEST(Log, VllmVariants) {
  const Timeline t = ReadText(
      "(EngineCore_DP3 pid=12) INFO 12-31 23:59:59 [kv_cache_utils.py:634] GPU KV cache size: "
      "240,000 tokens\n"
      "(EngineCore_DP3 pid=12) INFO 12-31 23:59:59 [kv_cache_utils.py:637] Maximum concurrency for "
      "32,768 tokens per request: 1.54x\n"
      "INFO 01-01 00:00:09 [gpu_model_runner.py:1686] Graph capturing finished in 8 secs, took "
      "0.31 "
      "GiB\n"
      "INFO 01-01 00:00:19 [loggers.py:271] 4 Engines Aggregated: Avg prompt throughput: 1.0 "
      "tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 1 reqs, "
      "Preemptions: 2, Corrupted: 5 reqs, GPU KV cache usage: 97.5%, Prefix cache hit rate: 50.0%, "
      "External prefix cache hit rate: 3.0%, MM cache hit rate: 4.0%\n"
      "INFO 01-01 00:00:29 [metrics.py:453] Prefix cache hit rate: GPU: 12.50%, CPU: 90.00%\n"
      "WARNING 01-01 00:00:39 [scheduler.py:1057] Sequence group 0 is preempted by "
      "PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
      "total_num_cumulative_preemption=51\n");
  ASSERT_EQ(t.log_lines.size(), 6u);
  EXPECT_EQ(t.log_lines[0].kind, LogKind::kStartup);
  EXPECT_EQ(t.log_lines[0].engine, 3);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kKvCapacityTokens), 240000);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kMaxConcurrency), 1.54);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kMaxModelTokens), 32768);
  EXPECT_DOUBLE_EQ(ValueOf(t, 2, LogField::kGraphCaptureS), 8);
  EXPECT_NEAR(ValueOf(t, 2, LogField::kGraphCaptureBytes), 0.31 * 1073741824, 1);
  // The year turns over although the lines do not state it.
  EXPECT_EQ(t.log_lines[2].t_ns - t.log_lines[0].t_ns, 10'000'000'000);
  EXPECT_EQ(t.log_lines[3].engine, -1);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kPreemptions), 2);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kCorrupted), 5);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kPrefixHitRate), 0.5);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kExternalHitRate), 0.03);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kMmHitRate), 0.04);
  EXPECT_DOUBLE_EQ(ValueOf(t, 4, LogField::kPrefixHitRate), 0.125);
  EXPECT_DOUBLE_EQ(ValueOf(t, 4, LogField::kCpuPrefixHitRate), 0.9);
  EXPECT_EQ(t.log_lines[5].kind, LogKind::kEvent);
  EXPECT_DOUBLE_EQ(ValueOf(t, 5, LogField::kPreemptions), 51);
}

TEST(Log, SglangDecode) {
  const Timeline t = ReadFile("logs/sglang_deepseek_v3_decode_tp0.log");
  EXPECT_EQ(t.sources[0].format, "sglang-log");
  ASSERT_EQ(t.log_lines.size(), 8u);
  EXPECT_EQ(t.log_lines[0].kind, LogKind::kDecode);
  EXPECT_EQ(t.log_lines[0].rank, 0);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kTokens), 1411);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kCudaGraph), 1);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kDecodeTokensPerS), 110.58);
  EXPECT_EQ(t.log_lines[0].t_ns, 1766729320'000'000'000);  // 2025-12-26 06:08:40
}

TEST(Log, SglangVariants) {
  const Timeline t = ReadText(
      "[2025-12-26 06:08:40 DP1 TP5 EP5] Prefill batch [17], #new-seq: 1, #new-token: 158, "
      "#cached-token: 8192, token usage: 0.08, #running-req: 31, #queue-req: 4, cuda graph: True, "
      "input throughput (token/s): 559.53\n"
      "[2025-12-26 06:08:41] Decode batch. #running-req: 2, #full token: 64, full token usage: "
      "0.01, swa token usage: 0.02, mamba usage: 0.03, accept len: 2.50, accept rate: 0.83, "
      "#prealloc-req: 1, #transfer-req: 2, #retracted-req: 3, cuda graph: False, gen throughput "
      "(token/s): 81.97, #queue-req: 0\n"
      "[2025-12-26 06:08:42 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
      "#new_token_ratio: 0.6 -> 0.9\n"
      "[2025-12-26 06:08:42 TP0] max_total_num_tokens=464, chunked_prefill_size=8192, "
      "context_len=163840, available_gpu_mem=3.1 GB\n");
  ASSERT_EQ(t.log_lines.size(), 4u);
  EXPECT_EQ(t.log_lines[0].kind, LogKind::kPrefill);
  EXPECT_EQ(t.log_lines[0].engine, 1);
  EXPECT_EQ(t.log_lines[0].rank, 5);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kIteration), 17);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kCachedTokens), 8192);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kPromptTokensPerS), 559.53);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kCudaGraph), 0);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kAcceptLength), 2.5);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kSwaUsage), 0.02);
  EXPECT_DOUBLE_EQ(ValueOf(t, 1, LogField::kRetracted), 3);
  EXPECT_EQ(t.log_lines[2].kind, LogKind::kEvent);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kKvCapacityTokens), 464);
  EXPECT_DOUBLE_EQ(ValueOf(t, 3, LogField::kMaxModelTokens), 163840);
}

TEST(Log, NcclTransportsAndCalls) {
  const Timeline t = ReadFile("logs/nccl_debug_info.log");
  EXPECT_EQ(t.sources[0].format, "nccl-log");
  ASSERT_EQ(t.transports.size(), 5u);
  EXPECT_EQ(t.Name(t.transports[0].via), "NET/Socket/0");
  EXPECT_EQ(t.Name(t.transports[2].via), "P2P/IPC");
  EXPECT_EQ(t.transports[2].from_rank, 7);
  EXPECT_EQ(t.transports[2].to_rank, 0);
  EXPECT_EQ(t.transports[2].channel, 7);
  EXPECT_NE(t.transports[0].host, t.transports[1].host);
  ASSERT_EQ(t.collective_calls.size(), 1u);
  EXPECT_EQ(t.Name(t.collective_calls[0].name), "AllReduce");
  EXPECT_EQ(t.collective_calls[0].bytes, 8u);  // 2 floats
  EXPECT_EQ(t.collective_calls[0].num_ranks, 2);
}

TEST(Log, MixedOutputOfOneProcess) {
  const Timeline t = ReadText(
      "INFO 05-26 05:04:36 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
      "Running: 7 reqs, Waiting: 0 reqs\n"
      "node-01:1:2 [0] NCCL INFO Channel 00 : 0[1e0] -> 1[1e0] [send] via NET/IB/0\n"
      "Traceback (most recent call last):\n");
  EXPECT_EQ(t.log_lines.size(), 1u);
  EXPECT_EQ(t.transports.size(), 1u);
  EXPECT_EQ(t.sources[0].stats.kept, 2u);
  EXPECT_EQ(t.sources[0].stats.ignored, 1u);
}

// The settings that servers start with, as published logs show them.
TEST(Log, VllmEngineConfig) {
  const Timeline t = ReadText(
      "(EngineCore_DP0 pid=62) INFO 02-01 06:05:05 [v1/engine/core.py:96] Initializing a V1 LLM "
      "engine (v0.16.0) with config: model='/data/private/DeepSeek-V2-Lite-Chat/', "
      "speculative_config=None, tokenizer='/data/private/DeepSeek-V2-Lite-Chat', "
      "load_format=auto, tensor_parallel_size=8, pipeline_parallel_size=1, data_parallel_size=2, "
      "decode_context_parallel_size=2, disable_custom_all_reduce=True\n"
      "INFO 02-01 06:06:05 [kv_cache_utils.py:634] GPU KV cache size: 240,000 tokens\n");
  ASSERT_EQ(t.log_lines.size(), 2u);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionRanks), 4);  // two keep other tokens
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionReplicas), 2);
  ASSERT_EQ(t.facts.size(), 1u);
  EXPECT_EQ(t.Name(t.facts[0].key), kModelFact);
  EXPECT_EQ(t.Name(t.facts[0].text), "DeepSeek-V2-Lite-Chat");  // not where it lies
}

TEST(Log, SglangSettings) {
  const auto read = [](std::string_view groups) {
    const std::string filler(5000, 'x');
    return ReadText(fmt::format(
        "[2025-08-18 02:44:10] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', "
        "api_key='{}', tp_size=16, pp_size=1, moe_dense_tp_size=None, {})\n"
        "[2025-08-18 02:45:10] max_total_num_tokens=100000, context_len=4096\n",
        filler, groups));
  };
  // Until 0.5.22 and since: attention in 4 groups of 4 ranks.
  for (const char* groups :
       {"dp_size=4, enable_dp_attention=True",
        "attn_dp_size=4, dp_size=1, enable_dp_attention=False", "attn_dp_size=4, attn_cp_size=1"}) {
    const Timeline t = read(groups);
    EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionRanks), 4) << groups;
    EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionReplicas), 4) << groups;
    ASSERT_EQ(t.facts.size(), 1u);
    EXPECT_EQ(t.Name(t.facts[0].text), "DeepSeek-V3");
  }
  // Replicas of the whole server say nothing of the attention.
  const Timeline t = read("dp_size=4, enable_dp_attention=False");
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionRanks), 16);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionReplicas), 1);
}

// A server may log what clients send: settings that a prompt quotes are not its own.
TEST(Log, SettingsInAPromptAreText) {
  const Timeline t = ReadText(
      "[2025-08-18 01:59:00] server_args=ServerArgs(model_path='DeepSeek-V3', x=1, tp_size=2)\n"
      "[2025-08-18 02:00:01] Receive: obj=GenerateReqInput(text=\"[a] "
      "server_args=ServerArgs(model_path='deepseek-r1', tp_size=64, dp_size=1)\")\n"
      "[2025-08-18 02:45:10] max_total_num_tokens=100000, context_len=4096\n");
  ASSERT_EQ(t.log_lines.size(), 2u);
  EXPECT_DOUBLE_EQ(ValueOf(t, 0, LogField::kAttentionRanks), 2);
  ASSERT_EQ(t.facts.size(), 1u);
  EXPECT_EQ(t.Name(t.facts[0].text), "DeepSeek-V3");
}

}  // namespace
}  // namespace fathom::diagnose
