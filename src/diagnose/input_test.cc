#include "diagnose/input.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>

namespace fathom::diagnose {
namespace {

std::string Gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  return out;
}

// Text that does not compress to nothing and is longer than every buffer.
std::string SomeText() {
  std::string text;
  for (uint64_t i = 0; text.size() < (3 << 20); ++i) {
    text += std::to_string(i * 0x9e3779b97f4a7c15u) + "\n";
  }
  return text;
}

struct ReadBack {
  std::string text;
  bool damaged;
};
ReadBack ReadBackAll(std::string bytes) {
  Result<Input> input = Input::FromMemory("memory", std::move(bytes));
  EXPECT_TRUE(input);
  Result<std::string> text = input->ReadAll(1 << 28);
  EXPECT_TRUE(text);
  return {*text, input->damaged()};
}

TEST(Input, PlainGzipAndZstdGiveTheSame) {
  const std::string text = SomeText();
  for (const std::string& bytes :
       {text, Gzip(text), Zstd(text), Gzip(text.substr(0, 1000)) + Gzip(text.substr(1000)),
        Zstd(text.substr(0, 1000)) + Zstd(text.substr(1000)),
        Gzip(text) + std::string(512, '\0')}) {
    const ReadBack back = ReadBackAll(bytes);
    EXPECT_TRUE(back.text == text);
    EXPECT_FALSE(back.damaged);
  }
}

TEST(Input, CutStreamsGiveAPrefixAndSaySo) {
  const std::string text = SomeText();
  for (const std::string& bytes : {Gzip(text), Zstd(text)}) {
    for (const size_t keep : {bytes.size() - 1, bytes.size() / 2, size_t{100}}) {
      const ReadBack back = ReadBackAll(bytes.substr(0, keep));
      EXPECT_TRUE(back.damaged) << keep;
      EXPECT_TRUE(text.starts_with(back.text));
    }
  }
}

TEST(Input, CorruptStreamIsDamaged) {
  std::string bytes = Gzip(SomeText());
  bytes[bytes.size() / 2] ^= 0x55;
  EXPECT_TRUE(ReadBackAll(bytes).damaged);
}

TEST(Input, ReadAllRefusesTooMuch) {
  Result<Input> input = Input::FromMemory("memory", std::string(2 << 20, 'x'));
  const Result<std::string> text = input->ReadAll(1 << 20);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kResourceExhausted);
}

TEST(Input, MissingFileAndDirectory) {
  EXPECT_EQ(Input::Open("/nonexistent/trace.json").error().code, Code::kNotFound);
  EXPECT_EQ(Input::Open("/tmp").error().code, Code::kInvalidArgument);
}

TEST(Input, ExpandPathsWalksDirectories) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("fathom_input_" + std::to_string(getpid()));
  fs::create_directories(root / "b");
  fs::create_directories(root / ".git");
  for (const char* name : {"z.json", "b/a.log", ".hidden", ".git/c"})
    std::ofstream(root / name) << "x";
  const std::vector<std::string> given = {"-", root.string()};
  const Result<std::vector<std::string>> files = ExpandPaths(given);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(*files, (std::vector<std::string>{"-", (root / "b/a.log").string(),
                                              (root / "z.json").string()}));
  fs::remove_all(root / "b");
  fs::remove(root / "z.json");
  EXPECT_FALSE(ExpandPaths(given));
  fs::remove_all(root);
}

TEST(LineReader, LinesOfEveryEnding) {
  const std::string long_line(LineReader::kMaxLine + 10, 'l');
  Result<Input> input = Input::FromMemory("memory", "a\r\n\n" + long_line + "\nlast");
  LineReader lines(*input);
  std::vector<std::string> seen;
  std::string_view line;
  for (;;) {
    const Result<bool> more = lines.Next(&line);
    ASSERT_TRUE(more);
    if (!*more) break;
    seen.emplace_back(line);
  }
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0], "a");
  EXPECT_EQ(seen[1], "");
  EXPECT_EQ(seen[2].size(), LineReader::kMaxLine);
  EXPECT_EQ(seen[3], "last");
  EXPECT_EQ(lines.line_number(), 4u);
  EXPECT_EQ(lines.offset(), 4 + long_line.size() + 1);
}

}  // namespace
}  // namespace fathom::diagnose
