#include "base/write_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace fathom {
namespace {

TEST(WriteFile, ReplacesWholeFilesAndReportsErrors) {
  const std::string folder = testing::TempDir() + "/write_file_test_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/out.txt";
  ASSERT_TRUE(WriteFile(path, "first"));
  ASSERT_TRUE(WriteFile(path, "second"));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}),
            1);  // nothing left over
  EXPECT_NE(WriteFile(folder + "/no/such/folder", "x").error().message.find("cannot create"),
            std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(WriteFile, LinksStayLinksAndPipesStayPipes) {
  const std::string folder = testing::TempDir() + "/write_link_test_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFile(folder + "/target", "old"));
  std::filesystem::create_symlink("target", folder + "/link");
  ASSERT_TRUE(WriteFile(folder + "/link", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link"));
  std::stringstream text;
  text << std::ifstream(folder + "/target").rdbuf();
  EXPECT_EQ(text.str(), "new");
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(WriteFile(pipe, "through"));
  char read_back[16] = {};
  EXPECT_EQ(read(reader, read_back, sizeof(read_back)), 7);
  EXPECT_STREQ(read_back, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  close(reader);
  std::filesystem::remove_all(folder);
}

TEST(WriteFile, PiecesAppearTogetherOrNotAtAll) {
  const std::string path = testing::TempDir() + "/write_pieces_" + std::to_string(getpid());
  ASSERT_TRUE(WriteFileInPieces(path, [](const WritePiece& write) -> Status {
    FATHOM_TRY(write("one "));
    return write("two");
  }));
  const auto read = [&] {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  EXPECT_EQ(read(), "one two");
  const Status failed = WriteFileInPieces(path, [](const WritePiece& write) -> Status {
    FATHOM_TRY(write("half"));
    return Err(Code::kDataLoss, "no more");
  });
  EXPECT_EQ(failed.error().code, Code::kDataLoss);
  EXPECT_EQ(read(), "one two");  // what was there before
  std::filesystem::remove(path);
}

// Writing there always fails as a full disk does.
TEST(WriteFile, AFullDiskIsAnError) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP();
  const std::string link = testing::TempDir() + "/write_file_full_" + std::to_string(getpid());
  const std::string temporary = fmt::format("{}.{}.tmp", link, getpid());
  ASSERT_EQ(symlink("/dev/full", temporary.c_str()), 0);
  EXPECT_EQ(WriteFile(link, "x").error().code, Code::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(link));
}

}  // namespace
}  // namespace fathom
