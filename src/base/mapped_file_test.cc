#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace fathom {
namespace {

TEST(MappedFile, ReadsAndReportsErrors) {
  const std::string path = testing::TempDir() + "/mapped_file_test_" + std::to_string(getpid());
  std::ofstream(path) << "hello";
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->text(), "hello");
  MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.text(), "hello");
  std::ofstream(path, std::ios::trunc);
  auto empty = MappedFile::Open(path);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->bytes().size(), 0u);
  std::remove(path.c_str());
  EXPECT_EQ(MappedFile::Open(path).error().code, Code::kNotFound);
  EXPECT_EQ(MappedFile::Open("/tmp").error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
