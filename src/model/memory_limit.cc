#include "model/memory_limit.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/strings.h"

namespace fathom::model {
namespace {

// Empty when there is no such file. /proc and /sys cannot be mapped, so they are read.
std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "max" and an absent file give nullopt: no limit.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::string text = ReadFile(path);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line.
std::optional<uint64_t> Field(const std::string& text, std::string_view key) {
  for (std::string_view line : Split(text, '\n')) {
    if (!line.starts_with(key)) continue;
    line = Trim(line.substr(key.size()));
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error == std::errc()) return value;
  }
  return std::nullopt;
}

struct CgroupFiles {
  std::string mount;
  const char* limit;
  const char* usage;
  const char* inactive_file;  // field of memory.stat
};

void Consider(cost::MemoryBudget& budget, uint64_t bytes, std::string source) {
  if (bytes < budget.bytes) budget = {bytes, std::move(source)};
}

void ConsiderCgroup(cost::MemoryBudget& budget, const CgroupFiles& files, std::string path) {
  for (;;) {
    const std::string directory = files.mount + path;
    const std::optional<uint64_t> limit = ReadNumber(directory + files.limit);
    const std::optional<uint64_t> usage = ReadNumber(directory + files.usage);
    if (limit && usage) {
      const uint64_t cache =
          Field(ReadFile(directory + "/memory.stat"), files.inactive_file).value_or(0);
      const uint64_t used = *usage > cache ? *usage - cache : 0;
      Consider(budget, *limit > used ? *limit - used : 0,
               fmt::format("cgroup limit of {}", HumanBytes(*limit)));
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

Result<cost::MemoryBudget> AvailableMemory(std::optional<uint64_t> max_memory,
                                           const std::string& root) {
  const std::optional<uint64_t> available =
      Field(ReadFile(root + "/proc/meminfo"), "MemAvailable:");
  if (!available) {
    return Err(Code::kInternal, "{}/proc/meminfo: expected a line 'MemAvailable: N kB'", root);
  }
  cost::MemoryBudget budget{*available * 1024, "MemAvailable"};
  if (max_memory) Consider(budget, *max_memory, "--max-memory");

  // Lines are "id:controllers:path"; version 2 has id 0 and no controllers.
  const std::string cgroups = ReadFile(root + "/proc/self/cgroup");
  for (const std::string_view line : Split(cgroups, '\n')) {
    const std::vector<std::string_view> parts = Split(line, ':');
    if (parts.size() < 3) continue;
    const bool v2 = parts[0] == "0" && parts[1].empty();
    bool v1_memory = false;
    for (const std::string_view controller : Split(parts[1], ',')) {
      v1_memory = v1_memory || controller == "memory";
    }
    if (!v2 && !v1_memory) continue;
    std::string path(parts[2] == "/" ? std::string_view() : parts[2]);
    if (!path.empty() && path[0] != '/') continue;
    const CgroupFiles files =
        v2 ? CgroupFiles{root + "/sys/fs/cgroup", "/memory.max", "/memory.current",
                         "inactive_file "}
           : CgroupFiles{root + "/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                         "/memory.usage_in_bytes", "total_inactive_file "};
    ConsiderCgroup(budget, files, std::move(path));
  }
  return budget;
}

}  // namespace fathom::model
