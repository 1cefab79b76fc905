#include "server/openai_types.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace fathom::server {
namespace {

const RequestLimits kLimits = {.model = "tiny", .vocab_size = 1000, .max_context_tokens = 4096};

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string Chat(std::string_view fields) {
  return fmt::format("{{{}{}{}}}", kMessages, fields.empty() ? "" : ",", fields);
}

TEST(ChatRequest, TakesEveryField) {
  const auto r = ParseChatRequest(R"({
    "model": "tiny",
    "messages": [
      {"role": "developer", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null,
       "tool_calls": [{"id": "c1", "type": "function", "index": 0,
                       "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
      {"role": "assistant", "content": "So", "prefix": true}],
    "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1,
    "presence_penalty": -1, "frequency_penalty": 2, "repetition_penalty": 1.5, "seed": -1,
    "stop": ["x", "y"], "stop_token_ids": [5], "ignore_eos": true, "logit_bias": {"17": -100},
    "n": 2.0, "logprobs": true, "top_logprobs": 4, "priority": 3, "cache_salt": "t",
    "stream": true, "stream_options": {"include_usage": true}, "user": "u",
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
               "parameters": {"type": "object"}}}],
    "tool_choice": "auto", "parallel_tool_calls": true, "response_format": {"type": "text"},
    "chat_template_kwargs": {"thinking": true}, "metadata": {"a": "b"}, "store": false,
    "service_tier": "auto", "functions": null, "max_tokens": null, "min_tokens": 0,
    "skip_special_tokens": true, "include_stop_str_in_output": false, "use_beam_search": false,
    "fathom": {"ledger": true, "deadline_ms": 500}})",
                                  kLimits);
  ASSERT_TRUE(r) << r.error().message;
  const session::ChatParams& p = r->params;
  ASSERT_EQ(p.messages.size(), 5u);
  EXPECT_EQ(p.messages[0].role, session::ChatRole::kSystem);
  EXPECT_EQ(p.messages[1].content, "ab");
  EXPECT_EQ(p.messages[2].tool_calls[0].name, "f");
  EXPECT_EQ(p.messages[2].reasoning_content, "hm");
  EXPECT_TRUE(p.messages[4].prefix);
  EXPECT_EQ(p.max_tokens, 7);
  EXPECT_EQ(p.n, 2);
  EXPECT_EQ(p.sampling.temperature, 0.0f);
  EXPECT_EQ(p.sampling.top_p, 0.5f);
  EXPECT_EQ(p.sampling.top_k, 3);
  EXPECT_EQ(p.sampling.seed, UINT64_MAX);
  EXPECT_EQ(p.sampling.top_logprobs, 4);
  ASSERT_EQ(p.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(p.sampling.logit_bias[0], (std::pair<int32_t, float>(17, -100.0f)));
  EXPECT_EQ(p.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(p.stop_token_ids, std::vector<int32_t>{5});
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.priority, 3);
  EXPECT_EQ(p.tenant, "t");
  EXPECT_EQ(p.thinking, true);
  EXPECT_EQ(p.tools[0].parameters, R"({"type":"object"})");
  EXPECT_TRUE(r->output.stream && r->output.include_usage && r->output.ledger);
  EXPECT_EQ(r->timing.deadline_ms, 500);
}

TEST(ChatRequest, DefaultsAreOpenAis) {
  const auto r = ParseChatRequest(Chat(""), kLimits);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->params.n, 1);
  EXPECT_FALSE(r->params.max_tokens);
  EXPECT_EQ(r->params.sampling.temperature, 1.0f);
  EXPECT_EQ(r->params.sampling.top_logprobs, -1);
  EXPECT_FALSE(r->params.sampling.seed || r->output.stream || r->output.logprobs);
}

TEST(ChatRequest, LeavesTheModelsOwnSamplingWhereNothingIsSaid) {
  RequestLimits limits = kLimits;
  limits.default_sampling.temperature = 0.6f;
  limits.default_sampling.top_p = 0.95f;
  const auto r = ParseChatRequest(Chat("\"top_p\":0.5"), limits);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->params.sampling.temperature, 0.6f);
  EXPECT_EQ(r->params.sampling.top_p, 0.5f);
}

struct BadCase {
  std::string_view body;
  std::string_view code;
  std::string_view param;
  std::string_view in_message;
};

TEST(ChatRequest, RefusesWithCodeParamAndReason) {
  const BadCase kCases[] = {
      {"", "invalid_json", "", "not JSON"},
      {R"({"skip_special_tokens":false})", "unsupported_parameter", "skip_special_tokens", "false"},
      {"{\"messages\":", "invalid_json", "", "not JSON"},
      {"[]", "invalid_type", "", "expected an object, found array"},
      {"{}", "missing_required_parameter", "messages", "messages"},
      {R"({"messages":[]})", "invalid_value", "messages", "at least one"},
      {R"({"messages":"hi"})", "invalid_type", "messages", "expected an array, found string"},
      {R"({"messages":[{"content":"x"}]})", "missing_required_parameter", "messages[0].role",
       "role"},
      {R"({"messages":[{"role":"user"}]})", "missing_required_parameter", "messages[0].content",
       "content"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "invalid_value", "messages[0].role",
       "developer"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "unsupported_parameter", "messages[0].content[0].type", "only 'text'"},
      {R"({"messages":[{"role":"user","content":"x","prefix":true}]})", "invalid_value",
       "messages[0]", "assistant"},
      {"|\"temperature\":3", "invalid_value", "temperature", "at least 0 and at most 2, is 3"},
      {"|\"temperature\":\"hot\"", "invalid_type", "temperature", "found string"},
      {"|\"top_p\":0", "invalid_value", "top_p", "more than 0"},
      {"|\"min_p\":1", "invalid_value", "min_p", "less than 1"},
      {"|\"n\":0", "invalid_value", "n", "1 to 128, is 0"},
      {"|\"n\":1.5", "invalid_type", "n", "an integer"},
      {"|\"n\":1e300", "invalid_value", "n", "1 to 128"},
      {"|\"max_tokens\":0", "invalid_value", "max_tokens", "is 0"},
      {"|\"max_tokens\":5000", "context_length_exceeded", "max_tokens", "4096"},
      {"|\"max_tokens\":18446744073709551615", "invalid_value", "max_tokens", "must be"},
      {"|\"max_tokens\":5,\"max_completion_tokens\":6", "invalid_value", "max_completion_tokens",
       "differ"},
      {"|\"stop\":\"\"", "invalid_value", "stop", "empty"},
      {"|\"stop\":[1]", "invalid_type", "stop[0]", "a string"},
      {"|\"logit_bias\":{\"1000\":1}", "invalid_value", "logit_bias.1000", "0 to 999"},
      {"|\"logit_bias\":{\"x\":1}", "invalid_value", "logit_bias.x", "token ids"},
      {"|\"logit_bias\":{\"1\":101}", "invalid_value", "logit_bias.1", "at most 100"},
      {"|\"top_logprobs\":2", "invalid_value", "top_logprobs", "logprobs = true"},
      {"|\"logprobs\":true,\"top_logprobs\":21", "invalid_value", "top_logprobs", "0 to 20"},
      {"|\"stream_options\":{\"include_usage\":true}", "invalid_value", "stream_options",
       "stream = true"},
      {"|\"stream\":true,\"stream_options\":{\"usage\":true}", "unknown_parameter",
       "stream_options.usage", "unknown"},
      {"|\"temprature\":1", "unknown_parameter", "temprature", "did you mean 'temperature'"},
      {"|\"temperature\":1,\"temperature\":0", "invalid_value", "temperature", "twice"},
      {"|\"response_format\":{\"type\":\"json_object\"}", "unsupported_parameter",
       "response_format.type", "json_object"},
      {"|\"functions\":[]", "unsupported_parameter", "functions", "not supported"},
      {"|\"store\":true", "unsupported_parameter", "store", "true"},
      {"|\"tool_choice\":\"required\"", "unsupported_parameter", "tool_choice", "'auto'"},
      {"|\"model\":\"gpt-4\"", "model_not_found", "model", "serves 'tiny'"},
      {"|\"fathom\":{\"ledgr\":true}", "unknown_parameter", "fathom.ledgr", "'ledger'"},
      {"|\"continue_final_message\":true", "invalid_value", "continue_final_message", "assistant"},
  };
  for (const BadCase& c : kCases) {
    const std::string body = c.body.starts_with('|') ? Chat(c.body.substr(1)) : std::string(c.body);
    const auto r = ParseChatRequest(body, kLimits);
    ASSERT_FALSE(r) << body;
    EXPECT_EQ(r.error().code, c.code) << body << "\n" << r.error().message;
    EXPECT_EQ(r.error().param, c.param) << body;
    EXPECT_NE(r.error().message.find(c.in_message), std::string::npos) << body << "\n"
                                                                       << r.error().message;
    EXPECT_EQ(r.error().status, c.code == "model_not_found" ? 404 : 400) << body;
  }
}

TEST(ChatRequest, ModelWithoutATemplateSaysWhatToDo) {
  RequestLimits limits = kLimits;
  limits.has_chat_template = false;
  const auto r = ParseChatRequest(Chat(""), limits);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("/v1/completions"), std::string::npos);
}

TEST(ChatRequest, DeepNestingIsAnError) {
  const std::string open(100000, '['), close(100000, ']');
  const auto r = ParseChatRequest("{\"metadata\":" + open + close + "}", kLimits);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, "invalid_json");
}

TEST(CompletionRequest, TakesTextsAndTokens) {
  auto prompts = [](std::string_view prompt) {
    const auto r = ParseCompletionRequest(fmt::format("{{\"prompt\":{}}}", prompt), kLimits);
    return r ? r->prompts : std::vector<Prompt>{};
  };
  EXPECT_EQ(prompts("\"a\""), (std::vector<Prompt>{"a"}));
  EXPECT_EQ(prompts("\"\""), (std::vector<Prompt>{""}));
  EXPECT_EQ(prompts("[\"a\",\"b\"]"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<Prompt>{std::vector<int32_t>{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"),
            (std::vector<Prompt>{std::vector<int32_t>{1}, std::vector<int32_t>{2, 3}}));
  for (const auto* bad : {"[]", "[[]]", "[1000]", "[-1]", "[\"a\",1]", "{}", "[1,\"a\"]", "null"}) {
    EXPECT_TRUE(prompts(bad).empty()) << bad;
  }
  EXPECT_FALSE(ParseCompletionRequest(R"({"prompt":"a","echo":true,"logprobs":1})", kLimits));
  EXPECT_FALSE(ParseCompletionRequest(R"({"prompt":["a","b"],"n":65})", kLimits));
  EXPECT_FALSE(ParseCompletionRequest(R"({"prompt":"a","messages":[]})", kLimits));
  const auto r = ParseCompletionRequest(R"({"prompt":"a","logprobs":3})", kLimits);
  ASSERT_TRUE(r);
  EXPECT_TRUE(r->output.logprobs);
  EXPECT_EQ(r->params.sampling.top_logprobs, 3);
}

TEST(TokenizeRequest, NeedsOneOfPromptAndMessages) {
  EXPECT_TRUE(ParseTokenizeRequest(R"({"prompt":"a","add_special_tokens":false})", kLimits));
  EXPECT_TRUE(ParseTokenizeRequest(Chat(""), kLimits));
  EXPECT_FALSE(ParseTokenizeRequest("{}", kLimits));
  EXPECT_FALSE(ParseTokenizeRequest(Chat("\"prompt\":\"a\""), kLimits));
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens":[]})", kLimits));
  EXPECT_FALSE(ParseDetokenizeRequest(R"({"tokens":[1000]})", kLimits));
}

// One to four bytes of a good request changed, dropped or doubled: still a request, or a 4xx.
TEST(ChatRequest, SurvivesAThousandMutations) {
  const std::string good = Chat(
      R"("max_tokens":7,"temperature":0.5,"stop":["x","y"],"logit_bias":{"17":-100},"seed":-1,
         "stream":true,"stream_options":{"include_usage":true},"n":2,"top_p":1e-1,
         "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  ASSERT_TRUE(ParseChatRequest(good, kLimits));
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string body = good;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % body.size();
      switch (random() % 3) {
        case 0:
          body[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          body.erase(at, 1 + random() % 4);
          break;
        default:
          body.insert(at, body.substr(at, 1 + random() % 4));
      }
    }
    const auto r = ParseChatRequest(body, kLimits);
    if (r) continue;
    ++refused;
    ASSERT_GE(r.error().status, 400) << body;
    ASSERT_LT(r.error().status, 500) << body;
    ASSERT_FALSE(r.error().message.empty()) << body;
  }
  EXPECT_GT(refused, 500);
}

TEST(ErrorBody, HasOpenAisShapeWhateverTheText) {
  const auto json =
      nlohmann::json::parse(ErrorBody({.message = "bad \xff \"quote\"", .param = "p", .code = ""}));
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json["error"]["param"], "p");
  EXPECT_TRUE(json["error"]["code"].is_null());
  EXPECT_EQ(ToApiError({Code::kResourceExhausted, "full"}).status, 429);
  EXPECT_EQ(ToApiError({Code::kUnavailable, "draining"}).status, 503);
  EXPECT_EQ(ToApiError({Code::kInvalidArgument, "x"}).status, 400);
  const ApiError beyond = ToApiError({Code::kOutOfRange, "x"}, "messages");
  EXPECT_EQ(beyond.status, 400);
  EXPECT_EQ(beyond.code, "context_length_exceeded");
  EXPECT_EQ(beyond.param, "messages");
}

}  // namespace
}  // namespace fathom::server
