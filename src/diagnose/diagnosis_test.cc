// What must come out of recordings whose truth is known (tests/data/diagnose/ORIGIN.md).
#include "diagnose/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "diagnose/report/catalogue.h"
#include "diagnose/report/json_report.h"
#include "diagnose/report/markdown_report.h"
#include "diagnose/report/text_report.h"
#include "diagnose/test_util.h"
#include "diagnose/understand/layers.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;

Diagnosis DiagnoseFile(std::string_view name) {
  return Diagnose(ReadFile(name), Thresholds::Default());
}

const Finding* Find(const Diagnosis& d, std::string_view id, Phase phase = Phase::kDecode) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == id && f.phase == phase) return &f;
  }
  return nullptr;
}

std::string EvidenceText(const Finding& f) {
  std::string all;
  for (const Evidence& e : f.evidence) all += Say(Language::kEnglish, e.text) + "\n";
  return all;
}

const PhaseSummary* PhaseOf(const std::vector<PhaseSummary>& phases, Phase phase) {
  for (const PhaseSummary& s : phases) {
    if (s.phase == phase) return &s;
  }
  return nullptr;
}

// Whatever the trace, a step's time adds up to the nanosecond.
class EverySample : public testing::TestWithParam<const char*> {};

TEST_P(EverySample, AccountsAddUp) {
  const Diagnosis d = DiagnoseFile(GetParam());
  for (size_t i = 0; i < d.accounts.size(); ++i) {
    const StepAccount& a = d.accounts[i];
    const int64_t busy =
        std::accumulate(a.busy_by_class.begin(), a.busy_by_class.end(), int64_t{0});
    const int64_t idle =
        std::accumulate(a.idle_by_cause.begin(), a.idle_by_cause.end(), int64_t{0});
    EXPECT_EQ(busy, a.busy_ns) << "step " << i;
    EXPECT_EQ(busy + idle, a.wall_ns) << "step " << i;
    EXPECT_LE(a.exposed_communication_ns, a.communication_ns);
    int64_t gaps = 0;
    for (const Gap& gap : a.gaps) gaps += gap.length_ns();
    EXPECT_EQ(gaps, idle);
  }
  // Every report of every sample can be written in both languages.
  for (const Language language : {Language::kEnglish, Language::kChinese}) {
    EXPECT_FALSE(TextReport(d, language, {}).empty());
    EXPECT_FALSE(MarkdownReport(d, language).empty());
    EXPECT_EQ(JsonReport(d, language)["schema"], "fathom.report/1");
  }
}

INSTANTIATE_TEST_SUITE_P(Kineto, EverySample,
                         testing::Values("kineto/llama_cudagraph_decode.json.gz",
                                         "kineto/llama_dynamic_ntk_past_limit.json.gz",
                                         "kineto/llama_eager_repeat_kv_cat_cache.json.gz",
                                         "kineto/llama_sdpa_static_cache.json.gz",
                                         "kineto/sglang_qwen3-8b_decode_rocm.json.gz",
                                         "kineto/torch_compile_triton.json.gz",
                                         "kineto/hta_cuda_event_sync_multi_stream.json.gz"));

TEST(Samples, EagerWithRepeatKvAndConcatenatingCache) {
  const Diagnosis d = DiagnoseFile("kineto/llama_eager_repeat_kv_cat_cache.json.gz");
  const auto phases = Summarise(d);
  const PhaseSummary* decode = PhaseOf(phases, Phase::kDecode);
  ASSERT_NE(decode, nullptr);
  EXPECT_EQ(decode->steps, 4u);
  EXPECT_EQ(decode->counted, 3u);  // the first is left out
  EXPECT_NEAR(decode->busy_share, 1.0 / 7, 0.05);

  const Finding* copy = Find(d, "kv-copy");
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->severity, Severity::kSevere);
  // Four copies of 8 heads blown up to 32: 1 x 32 x 4100 x 128 x 2 bytes; the whole cache of 8
  // heads written anew to append one token.
  const std::string evidence = EvidenceText(*copy);
  EXPECT_THAT(evidence, HasSubstr("repeat_kv"));
  EXPECT_THAT(evidence, HasSubstr("4 expansions a step"));
  EXPECT_THAT(evidence, HasSubstr("32.0 MiB"));
  EXPECT_THAT(evidence, HasSubstr("4 concatenations a step"));
  EXPECT_THAT(evidence, HasSubstr("8.01 MiB"));
  EXPECT_THAT(evidence, HasSubstr("cache_utils.py"));
  EXPECT_NEAR(copy->saving_ms_per_step, 0.177, 0.02);

  const Finding* softmax = Find(d, "softmax-pass", Phase::kPrefill);
  ASSERT_NE(softmax, nullptr);
  EXPECT_EQ(softmax->severity, Severity::kSevere);
  EXPECT_THAT(EvidenceText(*softmax), HasSubstr("in 2 layers"));
  EXPECT_THAT(EvidenceText(*softmax), HasSubstr("[1, 32, 4096, 4096]"));

  const Finding* gap = Find(d, "launch-gap");
  ASSERT_NE(gap, nullptr);
  EXPECT_EQ(gap->severity, Severity::kSevere);
  EXPECT_LT(gap->confidence, 0.6);  // Python stacks
  EXPECT_EQ(Find(d, "jit-recompile"), nullptr);
}

TEST(Samples, SdpaWithStaticCache) {
  const Diagnosis d = DiagnoseFile("kineto/llama_sdpa_static_cache.json.gz");
  const Finding* copy = Find(d, "kv-copy");
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->severity, Severity::kSevere);
  EXPECT_THAT(EvidenceText(*copy), HasSubstr("4 expansions a step"));
  EXPECT_THAT(EvidenceText(*copy), testing::Not(HasSubstr("concatenation")));
  EXPECT_THAT(Say(Language::kEnglish, copy->title), HasSubstr("22."));
  const Finding* gap = Find(d, "launch-gap");
  ASSERT_NE(gap, nullptr);
  EXPECT_GT(gap->confidence, 0.8);
  EXPECT_EQ(Find(d, "softmax-pass", Phase::kPrefill), nullptr);
}

TEST(Samples, DynamicNtkRebuildsAPlanForEveryLength) {
  const Diagnosis d = DiagnoseFile("kineto/llama_dynamic_ntk_past_limit.json.gz");
  const Finding* jit = Find(d, "jit-recompile");
  ASSERT_NE(jit, nullptr);
  EXPECT_EQ(jit->severity, Severity::kSevere);
  EXPECT_NEAR(jit->saving_ms_per_step, 60, 2);
  const std::string evidence = EvidenceText(*jit);
  EXPECT_THAT(evidence, HasSubstr("aten::_cudnn_attention_forward"));
  EXPECT_THAT(evidence, HasSubstr("5 of 5 steps"));
  EXPECT_THAT(evidence, HasSubstr("[1, 8, 4098, 128] -> [1, 8, 4099, 128]"));
  // The rotations are spelled out here too, but they are not where the time goes.
  const Finding* rope = Find(d, "rope-relaunch");
  if (rope != nullptr) {
    EXPECT_LT(rope->saving_ms_per_step, 0.1);
    EXPECT_LT(rope->severity, Severity::kSevere);
  }
  EXPECT_EQ(d.findings.findings.front().id, "jit-recompile");
  EXPECT_EQ(Find(d, "launch-gap"), nullptr);
}

TEST(Samples, CudaGraphDecode) {
  const Diagnosis d = DiagnoseFile("kineto/llama_cudagraph_decode.json.gz");
  const Bucket* bucket = d.steps.Main(Phase::kDecode);
  ASSERT_NE(bucket, nullptr);
  EXPECT_EQ(bucket->steps.size(), 6u);
  EXPECT_EQ(bucket->counted.size(), 5u);  // without the first replay
  EXPECT_TRUE(bucket->graph_expected);
  for (const uint32_t step : bucket->counted) {
    EXPECT_LT(d.accounts[step].wall_ns, 1'100'000);
    EXPECT_NEAR(static_cast<double>(d.accounts[step].busy_ns), 424e3, 15e3);
    const LayerMap layers = FindLayers(*d.index, d.steps, d.steps.all[step]);
    EXPECT_EQ(layers.num_layers, 2u);
  }
  EXPECT_THAT(
      TextReport(d, Language::kEnglish, {}),
      HasSubstr("decode: 1 of 6 steps left out: the first of their batch, or disturbed by the "
                "profiler; the kernels repeat in 2 layers"));
  const std::string markdown = MarkdownReport(d, Language::kEnglish);
  EXPECT_THAT(markdown, HasSubstr("idle: launch-bound 353 us, gemm 340 us"));
  EXPECT_THAT(markdown, HasSubstr("## Checked and clean"));
  const Finding* attention = Find(d, "attention-roofline");
  ASSERT_NE(attention, nullptr);
  EXPECT_THAT(EvidenceText(*attention), HasSubstr("sdpa_sm80_flash_fprop"));
  EXPECT_THAT(EvidenceText(*attention), HasSubstr("written for sm80 and runs on sm90"));
  const Finding* copy = Find(d, "kv-copy");
  if (copy != nullptr) {
    EXPECT_NE(copy->severity, Severity::kSevere);
  }
}

TEST(Samples, BankConflictForTheUnpaddedTransposeOnly) {
  const Diagnosis d = DiagnoseFile("ncu/ncu_bank_raw.csv.gz");
  const Finding* bank = Find(d, "bank-conflict", Phase::kUnknown);
  ASSERT_NE(bank, nullptr);
  ASSERT_EQ(bank->evidence.size(), 1u);
  EXPECT_THAT(EvidenceText(*bank), HasSubstr("transpose<0>"));
}

TEST(Samples, TensorCoreFlagsTheMisalignedGemmOnly) {
  const Diagnosis d = DiagnoseFile("ncu/ncu_torch_raw.csv.gz");
  const Finding* tensor = Find(d, "tensor-core", Phase::kUnknown);
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->evidence.size(), 1u);
  EXPECT_THAT(EvidenceText(*tensor), HasSubstr("align1"));
  EXPECT_THAT(EvidenceText(*tensor), HasSubstr("not aligned to 16 bytes"));
  EXPECT_EQ(Find(d, "bank-conflict", Phase::kUnknown), nullptr);
}

TEST(Catalogue, BothLanguagesSayTheSameThings) {
  std::vector<std::string> english = CatalogueKeys(Language::kEnglish);
  // Chinese has no singular.
  std::erase_if(english, [](const std::string& key) { return key.ends_with(kSingular); });
  EXPECT_EQ(english, CatalogueKeys(Language::kChinese));
}

TEST(Catalogue, EveryPhraseOfALimitIsTranslated) {
  for (const auto& [name, t] : Thresholds::Default().all()) {
    for (const std::string& phrase : {t.unit, t.source, t.counter_example}) {
      EXPECT_EQ(LimitPhrase(Language::kEnglish, phrase), phrase);
      EXPECT_FALSE(LimitPhrase(Language::kChinese, phrase).empty()) << name;
    }
  }
  EXPECT_EQ(LimitPhrase(Language::kChinese, "handbook A17"), "手册 A17");
  const Text note = {"handbook.evidence.sound",
                     {{"limit.claim", "handbook A17"}, {"limit.exception", "machines differ"}}};
  EXPECT_THAT(Say(Language::kChinese, note), HasSubstr("各机器不同"));
  EXPECT_THAT(Say(Language::kEnglish, note), HasSubstr("handbook A17: a sound figure"));
}

TEST(Catalogue, OneOfAThingIsSaidSo) {
  const auto say = [](std::string_view n) {
    return Say(Language::kEnglish,
               Text{"bank-conflict.title", {{"count", std::string(n)}, {"share", "12%"}}});
  };
  EXPECT_THAT(say("1"), HasSubstr("1 kernel loses 12%"));
  EXPECT_THAT(say("2"), HasSubstr("2 kernels lose up to 12%"));
  // A singular belongs to a sentence for several.
  const std::vector<std::string> keys = CatalogueKeys(Language::kEnglish);
  for (const std::string& key : keys) {
    if (!key.ends_with(kSingular)) continue;
    const std::string several = key.substr(0, key.size() - kSingular.size());
    EXPECT_THAT(keys, testing::Contains(several));
  }
}

TEST(Thresholds, ChangeByNameOrFail) {
  const auto changed = Thresholds::FromJson(
      R"({"kv-copy.warn_share": 0.05, "kv-copy.handbook_abs_ms": {"enabled": true}})");
  ASSERT_TRUE(changed) << changed.error().message;
  EXPECT_EQ((*changed)["kv-copy.warn_share"], 0.05);
  EXPECT_TRUE(changed->enabled("kv-copy.handbook_abs_ms"));
  EXPECT_THAT(Thresholds::FromJson(R"({"kv-copy.warn_shore": 1})").error().message,
              HasSubstr("did you mean 'kv-copy.warn_share'"));
  EXPECT_FALSE(Thresholds::Default().enabled("numa.handbook_local_ns"));
  EXPECT_TRUE(Thresholds::FromJson(R"({"numa.handbook_local_ns": 90})"));  // it is printed
}

TEST(Thresholds, ErrorsSayWhatIsLegal) {
  struct Case {
    const char* json;
    const char* says;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"", "expected a JSON object"},
           {"[]", "expected a JSON object"},
           {R"({"kv-copy.warn_share": "x"})", "expected a number or"},
           {R"({"kv-copy.warn_share": {"valeu": 1}})", "unknown key 'valeu'"},
           {R"({"kv-copy.warn_share": -0.1})", "expected a number from 0 to 1"},
           {R"({"kv-copy.warn_share": 3})", "found 3"},
           {R"({"kv-copy.warn_share": {"value": 1e300}})", "expected a number from 0 to 1"},
           {R"({"switch-stall.ratio": 0.5})", "from 1 to 1000"},
           {R"({"rdma-jitter.min_outliers": 30.5})", "expected a whole number"},
           {R"({"kv-copy.warn_share": 0.2})", "kv-copy.severe_share is 0.1"},
           {R"({"tensor-core.severe_share": 0.6})", "expected the first to be above"},
           {R"({"kv-copy.warn_share": {"enabled": false}})", "always in force"},
           {R"({"kv-copy.handbook_abs_ms": {"enabled": 1}})", "expected true or false"},
           {R"({"numa.handbook_local_ns": {"enabled": true}})", "for reference"}}) {
    const auto thresholds = Thresholds::FromJson(c.json);
    ASSERT_FALSE(thresholds) << c.json;
    EXPECT_THAT(thresholds.error().message, HasSubstr(c.says)) << c.json;
  }
}

TEST(Markers, EveryDialect) {
  struct Case {
    const char* text;
    Phase phase;
    double batch;
    double prompt_tokens;
  };
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (const Case& c : std::initializer_list<Case>{
           {"execute_context_2(6144)_generation_3(3)", Phase::kMixed, 5, 6144},
           {"execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            Phase::kDecode, 32, 0},
           {"execute_context_1(888_788544)_generation_0(0)", Phase::kPrefill, 1, 888},
           {"step[DECODE bs=32]", Phase::kDecode, 32, none},
           {"step[EXTEND bs=15 toks=15360]", Phase::kPrefill, 15, 15360},
           {"decode[bs=117/128 tok=117 d=117]", Phase::kDecode, 117, none},
           {"decode_step_12", Phase::kDecode, none, none},
           {"prefill", Phase::kPrefill, none, none},
           {"ProfilerStep#4", Phase::kUnknown, none, none}}) {
    const MarkerText m = ParseMarker(c.text);
    EXPECT_TRUE(m.is_step) << c.text;
    EXPECT_EQ(m.phase, c.phase) << c.text;
    EXPECT_THAT(m.batch, testing::NanSensitiveDoubleEq(c.batch)) << c.text;
    EXPECT_THAT(m.prompt_tokens, testing::NanSensitiveDoubleEq(c.prompt_tokens)) << c.text;
  }
  for (const char* text : {"decoder layer 3", "aten::mm", "execute_context_", "step[", "decode[",
                           "execute_context_x(1)_generation_1(1)", "prefilled"}) {
    EXPECT_FALSE(ParseMarker(text).is_step) << text;
  }
  EXPECT_TRUE(ParseMarker("capture_32_FULL").is_capture);
}

}  // namespace
}  // namespace fathom::diagnose
