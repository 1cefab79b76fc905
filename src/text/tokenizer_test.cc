#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "text/detokenizer.h"
#include "text/test_tokenizer.h"
#include "text/unicode.h"

namespace fathom::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                         const EncodeOptions& options = {}) {
  return tokenizer.Encode(text, options).value();
}

TEST(Tokenizer, MergesLowestRankFirst) {
  const Tokenizer tokenizer = TestTokenizer();
  const int32_t ab = tokenizer.IdOf("ab").value();
  const int32_t abc = tokenizer.IdOf("abc").value();
  EXPECT_THAT(Ids(tokenizer, "abc", {.add_special_tokens = false}), ElementsAre(abc));
  EXPECT_THAT(Ids(tokenizer, "abab", {.add_special_tokens = false}), ElementsAre(ab, ab));
  // "bc" is no merge of its own: b and c stay apart.
  EXPECT_EQ(Ids(tokenizer, "bc", {.add_special_tokens = false}).size(), 2u);
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  const Tokenizer tokenizer = TestTokenizer();
  const int32_t ab = tokenizer.IdOf("ab").value();
  std::string word;
  for (int i = 0; i < 500; ++i) word += "ab";  // one word: the heap, not the scan
  EXPECT_EQ(Ids(tokenizer, word, {.add_special_tokens = false}), std::vector<int32_t>(500, ab));
}

TEST(Tokenizer, SpecialTokens) {
  const Tokenizer tokenizer = TestTokenizer();
  const int32_t bos = tokenizer.bos_id().value();
  const int32_t user = tokenizer.IdOf("<｜User｜>").value();
  const int32_t a = tokenizer.IdOf("a").value();
  EXPECT_THAT(Ids(tokenizer, "<｜User｜>a"), ElementsAre(bos, user, a));
  EXPECT_EQ(
      Ids(tokenizer, "<｜User｜>", {.add_special_tokens = false, .parse_special = false}).size(),
      std::string("<｜User｜>").size());
  EXPECT_TRUE(tokenizer.IsSpecial(user));
  EXPECT_FALSE(tokenizer.IsSpecial(a));
  EXPECT_FALSE(tokenizer.IsSpecial(-1));
  EXPECT_FALSE(tokenizer.IsSpecial(1 << 30));
  EXPECT_EQ(tokenizer.Decode(std::vector{bos, user, a}), "a");
  EXPECT_EQ(tokenizer.Decode(std::vector{user, a}, {.skip_special_tokens = false}), "<｜User｜>a");
}

TEST(Tokenizer, AnyBytesAreText) {
  const Tokenizer tokenizer = TestTokenizer();
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 256);
    EXPECT_EQ(tokenizer.Decode(Ids(tokenizer, bytes)), ReplaceInvalidUtf8(bytes));
  }
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  const Tokenizer tokenizer = TestTokenizer();
  EXPECT_EQ(tokenizer.Decode(std::vector{-5, tokenizer.vocab_size(), INT32_MAX}), "");
}

TEST(Tokenizer, ThreadsShareIt) {
  const Tokenizer tokenizer = TestTokenizer();
  const std::vector<int32_t> want = Ids(tokenizer, "abc ab <｜User｜> 中文 abc");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(Ids(tokenizer, "abc ab <｜User｜> 中文 abc"), want);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const Tokenizer tokenizer = TestTokenizer();
  Detokenizer detokenizer(tokenizer);
  const std::vector<int32_t> ids = Ids(tokenizer, "é中😀", {.add_special_tokens = false});
  ASSERT_EQ(ids.size(), 9u);  // bytes
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.Push(id));
  EXPECT_THAT(pieces, ElementsAre("", "é", "", "", "中", "", "", "", "😀"));
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, FlushesAnIncompleteCharacter) {
  const Tokenizer tokenizer = TestTokenizer();
  Detokenizer detokenizer(tokenizer);
  const std::vector<int32_t> ids = Ids(tokenizer, "中", {.add_special_tokens = false});
  EXPECT_EQ(detokenizer.Push(ids[0]), "");
  EXPECT_EQ(detokenizer.Push(ids[1]), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Push(tokenizer.IdOf("a").value()), "a");
}

// Whatever the ids, the pieces make up what Decode says of all of them, each valid UTF-8.
TEST(Detokenizer, AgreesWithDecode) {
  const Tokenizer tokenizer = TestTokenizer();
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids(random() % 30);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.vocab_size() + 2));
    }
    Detokenizer detokenizer(tokenizer);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.Push(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      text += piece;
    }
    text += detokenizer.Flush();
    EXPECT_EQ(text, tokenizer.Decode(ids));
  }
}

struct BadFile {
  const char* replace;
  const char* by;
  const char* message;
};

class BadTokenizerFile : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerFile, IsAnErrorThatSaysWhat) {
  std::string json = TestTokenizerJson();
  const size_t at = json.find(GetParam().replace);
  ASSERT_NE(at, std::string::npos) << json;
  json.replace(at, std::string_view(GetParam().replace).size(), GetParam().by);
  const auto tokenizer = Tokenizer::Parse(json, "");
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadTokenizerFile,
    ::testing::Values(
        BadFile{"\"BPE\"", "\"Unigram\"", "'Unigram' is not supported; supported is BPE"},
        BadFile{"\"type\": \"BPE\"", "\"typ\": 1", "model: \"type\" is missing"},
        BadFile{"\"merges\": [", "\"merges\": [\"a zz\", ", "'zz' is not in the vocabulary"},
        BadFile{"\"merges\": [", "\"merges\": [\"ab\", ", "expected \"left right\""},
        BadFile{"\"merges\": [", "\"merges\": [[\"a\", 1], ", "expected \"left right\""},
        BadFile{"\"abc\": 257", "\"abc\": 256", "same id 256"},
        BadFile{"\"abc\": 257", "\"abc\": -1", "must be an integer from 0"},
        BadFile{"\"abc\": 257", "\"abc\": 99999999999", "must be an integer from 0"},
        BadFile{"\"abc\": 257", "\"abc\": \"257\"", "must be an integer from 0"},
        BadFile{"\"abc\": 257", "\"abc\": 257, \"abc\": 999", "occurs twice"},
        BadFile{"\"a\": 97", "\"\": 97", "is empty"},
        BadFile{"\"a\": 97", "\"xa\": 97", "no token for the byte 0x61"},
        BadFile{"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}",
                "'NFKC' is not supported"},
        BadFile{"\"Isolated\"", "\"Sideways\"", "behavior 'Sideways' is unknown"},
        BadFile{"\\\\p{N}", "\\\\p{Greek}", "\\p{Greek}"},
        BadFile{"\\\\p{N}", "(", "regular expression"},
        BadFile{"\"type\": \"Split\"", "\"type\": \"Metaspace\"", "'Metaspace' is not supported"},
        BadFile{"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": null",
                "ByteLevel is missing"},
        BadFile{"\"byte_fallback\": false", "\"byte_fallback\": true", "byte_fallback"},
        BadFile{"\"byte_fallback\": false", "\"byte_fallback\": 3", "expected true or false"},
        BadFile{"\"byte_fallback\": false", "\"dropout\": 0.1", "dropout"},
        BadFile{"\"content\": \"<｜User｜>\"", "\"content\": \"a\"", "has id 259, but 97"},
        BadFile{"\"content\": \"<｜User｜>\"", "\"content\": null",
                "expected a string, found null"},
        BadFile{"{", "[", "not valid JSON"}));

TEST(Tokenizer, ConfigurationErrors) {
  const auto parse = [](std::string_view config) {
    return Tokenizer::Parse(TestTokenizerJson(), config);
  };
  EXPECT_THAT(parse(R"({"eos_token": "</s>"})").error().message, HasSubstr("eos_token is '</s>'"));
  EXPECT_THAT(parse(R"({"add_bos_token": true})").error().message, HasSubstr("add_bos_token"));
  EXPECT_THAT(parse(R"({"bos_token": 5})").error().message, HasSubstr("expected a string"));
  EXPECT_EQ(parse(R"({"bos_token": null})").value().bos_id(), std::nullopt);
}

// A changed byte gives an error or a tokenizer that works; the suite runs under sanitizers too.
TEST(Tokenizer, MutatedFilesNeverCrash) {
  const std::string json = TestTokenizerJson();
  std::mt19937 random(3);
  int parsed = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bad = json;
    bad[random() % bad.size()] = static_cast<char>(random() % 256);
    const auto tokenizer = Tokenizer::Parse(bad, TestTokenizerConfig());
    if (!tokenizer) continue;
    ++parsed;
    if (const auto ids = tokenizer->Encode("abc <｜User｜> é 123\n\n x")) tokenizer->Decode(*ids);
  }
  EXPECT_GT(parsed, 10);
}

}  // namespace
}  // namespace fathom::text
