#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace fathom::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A file with this header and data bytes 0, 1, 2, ...
std::string File(std::string_view header, size_t data_bytes) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

Result<std::vector<TensorInfo>> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "f.safetensors");
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fmt::format("{}/checkpoint_{}_{}", testing::TempDir(), info->name(), getpid());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Write(std::string_view name, const std::string& content) {
    std::ofstream(fmt::format("{}/{}", dir_, name), std::ios::binary) << content;
  }

  std::string dir_;
};

TEST(Safetensors, ReadsTensors) {
  const auto tensors = Parse(File(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
          "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
          "empty":{"dtype":"F32","shape":[0,7],"data_offsets":[16,16]}}   )",
      16));
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].bytes, 12u);
}

TEST(Safetensors, RefusesBrokenHeaders) {
  struct Case {
    std::string file;
    std::string_view message;
  };
  const auto one = [](std::string_view fields, size_t bytes) {
    return File(fmt::format(R"({{"w":{{{}}}}})", fields), bytes);
  };
  const Case cases[] = {
      {"", "too few"},
      {std::string(8, '\xff'), "claims"},
      {std::string("\x80\x96\x98\x00\x00\x00\x00\x00{}", 10), "claims"},
      {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
      {File("[]", 0), "object"},
      {File("{", 0), "JSON"},
      {File(R"({"w":3})", 0), "expected an object"},
      {one(R"("dtype":"F32","shape":[2])", 8), "data_offsets"},
      {one(R"("dtype":"F32","data_offsets":[0,8])", 8), "shape"},
      {one(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])", 8), "F64"},
      {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8), "expected"},
      {one(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])", 8), "expected"},
      {one(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])", 8), "overflow"},
      {one(R"("dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0])", 0),
       "overflow"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8), "takes 12 bytes"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7), "range inside"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8), "range inside"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 9), "the file has"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", 8), "without holes"},
      {one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])", 4), "dimensions"},
      {File(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8),
       "twice"},
      {File(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                "w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12),
       "without holes"},
  };
  for (const Case& c : cases) {
    const auto tensors = Parse(c.file);
    ASSERT_FALSE(tensors) << c.file;
    EXPECT_THAT(tensors.error().message, HasSubstr(c.message)) << c.file;
    EXPECT_THAT(tensors.error().message, HasSubstr("f.safetensors"));
  }
}

// 1,000 one-byte changes and truncations: an error with a message, or tensors inside the file.
TEST(Safetensors, SurvivesMutations) {
  const std::string good = File(
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[24,32]},"c":{"dtype":"BF16","shape":[1,2,1],"data_offsets":[32,36]}})",
      36);
  ASSERT_TRUE(Parse(good));
  std::mt19937 random(11);
  for (int i = 0; i < 1000; ++i) {
    std::string file = good;
    if (i % 10 == 0) {
      file.resize(random() % file.size());
    } else {
      file[random() % (file.size() - 36)] = static_cast<char>(random() % 256);
    }
    const auto tensors = Parse(file);
    if (!tensors) {
      EXPECT_FALSE(tensors.error().message.empty());
      continue;
    }
    for (const TensorInfo& t : *tensors) ASSERT_LE(t.offset + t.bytes, file.size());
  }
}

TEST_F(CheckpointTest, OpensOneFile) {
  Write("model.safetensors",
        File(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}       )", 24));
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto view = checkpoint->Get("w", {2, 3}, {DType::kF32});
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->shape[1], 3);
  EXPECT_EQ(static_cast<const uint8_t*>(view->data)[5], 5);
  EXPECT_EQ(checkpoint->file_bytes(), fs::file_size(dir_ + "/model.safetensors"));
  checkpoint->Drop("w");
  EXPECT_EQ(static_cast<const uint8_t*>(view->data)[5], 5);  // dropped pages come back from disk

  EXPECT_THAT(checkpoint->Get("w", {3, 2}, {DType::kF32}).error().message,
              HasSubstr("has shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(checkpoint->Get("w", {2, 3}, {DType::kBF16, DType::kF16}).error().message,
              HasSubstr("is F32, expected BF16 or F16"));
  EXPECT_THAT(checkpoint->Get("q.w", {2, 3}, {DType::kF32}).error().message, HasSubstr("missing"));
}

TEST_F(CheckpointTest, RefusesMisalignedTensors) {
  Write("model.safetensors", File(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                                      "w":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                                  5));
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto& info = checkpoint->Find("w")->info;
  EXPECT_EQ(checkpoint->Get("w", {1}, {DType::kF32}).has_value(), info.offset % 4 == 0);
}

TEST_F(CheckpointTest, OpensShardsAndSymbolicLinks) {
  const std::string a = File(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  const std::string b = File(R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  Write("blob", a);
  fs::create_symlink("blob", dir_ + "/s1.safetensors");
  Write("s2.safetensors", b);
  const std::string index_name = "model.safetensors.index.json";
  Write(index_name, R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  ASSERT_TRUE(Checkpoint::Open(dir_)) << Checkpoint::Open(dir_).error().message;

  const auto expect_error = [&](const std::string& index, std::string_view message) {
    Write(index_name, index);
    const auto checkpoint = Checkpoint::Open(dir_);
    ASSERT_FALSE(checkpoint) << index;
    EXPECT_THAT(checkpoint.error().message, HasSubstr(message)) << index;
  };
  expect_error(R"({"weight_map":{"a":"s1.safetensors","b":"s3.safetensors"}})", "s3.safetensors");
  expect_error(R"({"weight_map":{"a":"s2.safetensors"}})", "puts it in no shard");
  expect_error(R"({"weight_map":{"a":"s1.safetensors","b":"s1.safetensors"}})", "not in");
  expect_error(R"({"weight_map":{"a":"s2.safetensors","b":"s1.safetensors"}})", "puts it in");
  expect_error(R"({"weight_map":{"a":"../s1.safetensors"}})", "beside the index");
  expect_error(R"({"weight_map":{"a":"/etc/passwd"}})", "beside the index");
  expect_error(R"({"weight_map":{"a":7}})", "beside the index");
  expect_error(R"({"weight_map":[]})", "weight_map");
  expect_error("", "JSON");

  Write("s2.safetensors", a);
  expect_error(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})", "in both");
}

TEST_F(CheckpointTest, SaysWhatIsMissing) {
  EXPECT_THAT(Checkpoint::Open(dir_ + "/nowhere").error().message, HasSubstr("directory"));
  EXPECT_THAT(Checkpoint::Open(dir_).error().message, HasSubstr("index.json"));
}

}  // namespace
}  // namespace fathom::model
