#include "model/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fathom::model {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class MemoryLimit : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fmt::format("{}/limit_{}_{}", testing::TempDir(), info->name(), getpid());
    Write("/proc/meminfo", "MemTotal:  999999 kB\nMemAvailable:  1024000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  cost::MemoryBudget Budget(std::optional<uint64_t> max_memory = std::nullopt) {
    return AvailableMemory(max_memory, root_).value();
  }

  std::string root_;
};

TEST_F(MemoryLimit, TakesTheSmallest) {
  EXPECT_EQ(Budget().bytes, 1000 * kMiB);
  EXPECT_EQ(Budget().source, "MemAvailable");
  EXPECT_EQ(Budget(300 * kMiB).bytes, 300 * kMiB);
  EXPECT_EQ(Budget(300 * kMiB).source, "--max-memory");
  EXPECT_EQ(Budget(2000 * kMiB).bytes, 1000 * kMiB);
}

TEST_F(MemoryLimit, Version2CountsEveryLevel) {
  Write("/proc/self/cgroup", "0::/pod/box\n");
  const std::string mount = "/sys/fs/cgroup";
  Write(mount + "/pod/box/memory.max", "max\n");
  Write(mount + "/pod/box/memory.current", "1000\n");
  EXPECT_EQ(Budget().source, "MemAvailable");
  Write(mount + "/pod/memory.max", std::to_string(500 * kMiB));
  Write(mount + "/pod/memory.current", std::to_string(200 * kMiB));
  EXPECT_EQ(Budget().bytes, 300 * kMiB);
  EXPECT_THAT(Budget().source, HasSubstr("cgroup limit of 500 MiB"));
  Write(mount + "/pod/memory.stat",
        fmt::format("anon 5\ninactive_file {}\nactive_file 1\n", 150 * kMiB));
  EXPECT_EQ(Budget().bytes, 450 * kMiB);
  Write(mount + "/pod/box/memory.max", std::to_string(100));
  EXPECT_EQ(Budget().bytes, 0u);
}

TEST_F(MemoryLimit, Version1) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/box\n7:memory:/box\n1:name=systemd:/box\n");
  const std::string mount = "/sys/fs/cgroup/memory";
  Write(mount + "/box/memory.limit_in_bytes", std::to_string(400 * kMiB));
  Write(mount + "/box/memory.usage_in_bytes", std::to_string(100 * kMiB));
  Write(mount + "/memory.limit_in_bytes", "9223372036854771712\n");
  Write(mount + "/memory.usage_in_bytes", "12345\n");
  EXPECT_EQ(Budget().bytes, 300 * kMiB);
}

TEST_F(MemoryLimit, NeedsMeminfo) {
  Write("/proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_THAT(AvailableMemory(std::nullopt, root_).error().message, HasSubstr("MemAvailable"));
}

}  // namespace
}  // namespace fathom::model
