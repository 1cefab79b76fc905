#include "diagnose/understand/parallelism.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "diagnose/report/catalogue.h"
#include "diagnose/rules/rule_test_util.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;

TEST(KvHeads, ByName) {
  for (const char* latent : {"DeepSeek-V2-Lite-Chat", "deepseek-v2", "DeepSeek-V3-0324",
                             "DeepSeek-R1", "deepseek-r1-671b", "DeepSeek-Coder-V2-Instruct",
                             "DeepSeek-V2-Lite-16B", "DeepSeek-R1-4bit"}) {
    EXPECT_EQ(KvHeadsByName(latent), 0) << latent;
  }
  EXPECT_EQ(KvHeadsByName("DeepSeek-R1-Distill-Qwen-1.5B"), 2);
  EXPECT_EQ(KvHeadsByName("DeepSeek-R1-Distill-Qwen-7B-AWQ"), 4);
  EXPECT_EQ(KvHeadsByName("DeepSeek-R1-Distill-Llama-70B"), 8);
  EXPECT_EQ(KvHeadsByName("DeepSeek-R1-0528-Qwen3-8B"), 8);
  // Distilled models under other names, and others: not known.
  for (const char* open : {"deepseek-r1-14b", "deepseek-r1-14b-4bit", "deepseek-r1-qwen",
                           "Llama-3.1-8B", "model", ""}) {
    EXPECT_EQ(KvHeadsByName(open), -1) << open;
  }
}

TEST(AttentionParallelism, CountsCopies) {
  EXPECT_EQ((AttentionParallelism{.ranks = 8, .replicas = 1, .kv_heads = 0}).copies(), 8);
  EXPECT_EQ((AttentionParallelism{.ranks = 8, .replicas = 1, .kv_heads = 4}).copies(), 2);
  EXPECT_EQ((AttentionParallelism{.ranks = 4, .replicas = 1, .kv_heads = 8}).copies(), 1);
  EXPECT_EQ((AttentionParallelism{.ranks = 0, .replicas = 1, .kv_heads = 0}).copies(), 0);
  EXPECT_EQ((AttentionParallelism{.ranks = 8, .replicas = 1, .kv_heads = -1}).copies(), 0);
}

// A vLLM server's start and its statistics: half of the time its first replica alone runs all that
// `running` a replica are, half of the time nothing runs.
std::string ServerLog(const std::string& model, int ranks, int replicas, double running,
                      double usage) {
  std::string log = fmt::format(
      "INFO 02-01 06:05:05 [core.py:96] Initializing a V1 LLM engine (v0.16.0) with config: "
      "model='{}', tensor_parallel_size={}, pipeline_parallel_size=1, data_parallel_size={}, x\n",
      model, ranks, replicas);
  for (int i = 0; i < 10 * replicas; ++i) {
    const int minute = 10 + i / replicas;
    const int engine = i % replicas;
    log += fmt::format(
        "INFO 02-01 06:{}:00 [loggers.py:111] Engine {:03}: Avg prompt throughput: 10.0 tokens/s, "
        "Avg generation throughput: 100.0 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV "
        "cache usage: {}%, Prefix cache hit rate: 0.0%\n",
        minute, engine, engine == 0 && minute % 2 == 0 ? running * replicas : 0, usage);
  }
  return log;
}

const Recommendation* Recommended(const Diagnosis& d, std::string_view id) {
  for (const Recommendation& r : d.recommendations) {
    if (r.id == id) return &r;
  }
  return nullptr;
}

Diagnosis OfLog(const std::string& log) { return Diagnose(ReadText(log), Thresholds::Default()); }

TEST(AttentionParallelism, CopiesInAFullCacheAskForDataParallelAttention) {
  const Diagnosis mla = OfLog(ServerLog("deepseek-ai/DeepSeek-V3", 8, 1, 40, 97));
  const Recommendation* r = Recommended(mla, "attention-dp");
  ASSERT_NE(r, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, r->change), HasSubstr("--attn-dp-size 8"));
  EXPECT_THAT(Say(Language::kEnglish, r->why), HasSubstr("each of 8 tensor-parallel ranks"));
  EXPECT_THAT(Say(Language::kEnglish, r->why), HasSubstr("97.0% full"));
  const Diagnosis gqa = OfLog(ServerLog("DeepSeek-R1-Distill-Qwen-7B", 8, 1, 40, 97));
  ASSERT_NE(Recommended(gqa, "attention-dp"), nullptr);
  EXPECT_THAT(Say(Language::kEnglish, Recommended(gqa, "attention-dp")->why),
              HasSubstr("keep 4 KV heads 2 times"));
  EXPECT_THAT(Say(Language::kEnglish, Recommended(gqa, "attention-dp")->change),
              HasSubstr("--tensor-parallel-size 4 --data-parallel-size 2"));
  // Replicas that there are already stay: no GPU is left over.
  const Diagnosis two = OfLog(ServerLog("DeepSeek-V3", 8, 2, 40, 97));
  ASSERT_NE(Recommended(two, "attention-dp"), nullptr);
  const std::string change = Say(Language::kEnglish, Recommended(two, "attention-dp")->change);
  EXPECT_THAT(change, HasSubstr("--attn-dp-size 16"));
  EXPECT_THAT(change, HasSubstr("--dp-size 16 --enable-dp-attention"));
  EXPECT_THAT(change, HasSubstr("--tensor-parallel-size 1 --data-parallel-size 16"));
  const Diagnosis heads = OfLog(ServerLog("DeepSeek-R1-Distill-Qwen-7B", 8, 2, 40, 97));
  ASSERT_NE(Recommended(heads, "attention-dp"), nullptr);
  EXPECT_THAT(Say(Language::kEnglish, Recommended(heads, "attention-dp")->change),
              HasSubstr("--tensor-parallel-size 4 --data-parallel-size 4"));
}

TEST(AttentionParallelism, NothingWithoutCopiesOrNeedOrEvidence) {
  // A head for each rank; room in the cache; one rank; a model that is not known.
  for (const std::string& log :
       {ServerLog("DeepSeek-R1-Distill-Llama-70B", 8, 1, 40, 97),
        ServerLog("DeepSeek-V3", 8, 1, 40, 50), ServerLog("DeepSeek-V3", 1, 8, 40, 97),
        ServerLog("some-model", 8, 1, 40, 97)}) {
    EXPECT_EQ(Recommended(OfLog(log), "attention-dp"), nullptr) << log.substr(0, 200);
  }
}

TEST(AttentionParallelism, AbsurdNumbersAreNone) {
  for (const char* settings : {"tp_size=1e308, attn_dp_size=1", "tp_size=nan, attn_dp_size=2",
                               "tp_size=8, attn_dp_size=1e300", "tp_size=-8, attn_dp_size=-1"}) {
    const Diagnosis d = OfLog(fmt::format(
        "[2025-08-18 02:44:10] server_args=ServerArgs(model_path='DeepSeek-V3', {})\n"
        "[2025-08-18 02:45:10] Decode batch, #running-req: 9, #token: 9, token usage: 0.99, gen "
        "throughput (token/s): 1e-300, #queue-req: 5, \n"
        "[2025-08-18 02:45:11] max_total_num_tokens=100000, context_len=4096\n",
        settings));
    EXPECT_EQ(Recommended(d, "attention-dp"), nullptr) << settings;
    EXPECT_EQ(Recommended(d, "attention-tp"), nullptr) << settings;
  }
}

TEST(AttentionParallelism, IdleGroupsAskForTensorParallelAttention) {
  const Diagnosis d = OfLog(ServerLog("DeepSeek-R1-Distill-Llama-8B", 1, 4, 0.5, 3));
  const Recommendation* r = Recommended(d, "attention-tp");
  ASSERT_NE(r, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, r->change), HasSubstr("--tensor-parallel-size 4"));
  EXPECT_THAT(Say(Language::kEnglish, r->why), HasSubstr("0.50 sequences"));
  // Groups that are busy, though only half of the time; a latent that would be copied; fewer heads
  // than ranks; a short cache.
  for (const std::string& log : {ServerLog("DeepSeek-R1-Distill-Llama-8B", 1, 4, 1.5, 3),
                                 ServerLog("DeepSeek-V3", 1, 4, 0.5, 3),
                                 ServerLog("DeepSeek-R1-Distill-Qwen-1.5B", 1, 4, 0.5, 3),
                                 ServerLog("DeepSeek-R1-Distill-Llama-8B", 1, 4, 0.5, 95)}) {
    EXPECT_EQ(Recommended(OfLog(log), "attention-tp"), nullptr) << log.substr(0, 200);
  }
}

// A trace of one rank: the all-reduces state the group, the attention kernel that it is MLA.
Timeline MlaTrace(const char* attention, double collective_us) {
  Timeline t =
      MakeSynthetic({.faults = {.collective_us = collective_us, .all_reduce_elements = 1 << 16}});
  const StringId name = t.strings.Intern(attention);
  for (size_t s = 0; s < t.slices.size(); ++s) {
    if (t.slices.category[s] != Category::kKernel) continue;
    if (t.SliceName(s).find("flash_fwd") != std::string_view::npos) t.slices.name[s] = name;
  }
  return t;
}

TEST(AttentionParallelism, ExposedAllReducesAskForDataParallelAttention) {
  const auto run = [](const char* attention, double us) {
    return Diagnose(MlaTrace(attention, us), Thresholds::Default());
  };
  const Diagnosis d = run("flash_fwd_splitkv_mla_kernel", 60);
  const Recommendation* r = Recommended(d, "attention-dp");
  ASSERT_NE(r, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, r->why), HasSubstr("each of 8 tensor-parallel ranks"));
  EXPECT_THAT(Say(Language::kEnglish, r->why), HasSubstr("the cache was ? full"));
  // Hardly any communication; no MLA.
  EXPECT_EQ(Recommended(run("flash_fwd_splitkv_mla_kernel", 2), "attention-dp"), nullptr);
  EXPECT_EQ(Recommended(run("flash_fwd_kernel", 60), "attention-dp"), nullptr);
}

TEST(AttentionParallelism, TheCustomReduceNamesItsRanks) {
  Timeline t = MlaTrace("FlashMLA_fwd", 60);
  for (size_t s = 0; s < t.slices.size(); ++s) {
    if (t.slices.category[s] != Category::kKernel || t.slices.detail[s] == kNone) continue;
    KernelDetail& kernel = t.kernels[t.slices.detail[s]];
    if (kernel.collective == kNone) continue;
    kernel.collective = kNone;
    t.slices.name[s] = t.strings.Intern(
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)");
  }
  const Diagnosis d = Diagnose(std::move(t), Thresholds::Default());
  ASSERT_NE(Recommended(d, "attention-dp"), nullptr);
  EXPECT_THAT(Say(Language::kEnglish, Recommended(d, "attention-dp")->change),
              HasSubstr("its 4 ranks"));
}

}  // namespace
}  // namespace fathom::diagnose
