// The part of the NVIDIA management library's C interface that observe/live/nvml_source.cc calls,
// with one GPU whose readings the test knows.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
int g_device;
unsigned long long g_nvlink_kib = 0;
}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "fake error"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = &g_device;
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "Fake GPU", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 100;
  memory[1] = 60;
  memory[2] = 40;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  rates[0] = 42;
  rates[1] = 89;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 3201;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 650500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* celsius) {
  *celsius = 61;
  return 0;
}
int nvmlDeviceGetPcieThroughput(void*, unsigned counter, unsigned* kb_per_second) {
  *kb_per_second = counter == 0 ? 1000 : 2000;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void*, void* info) {
  // {legacy id 16 chars, domain, bus, device, device id, subsystem id, id 32 chars}
  std::strcpy(static_cast<char*>(info) + 36, "00000000:1A:00.0");
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void* list) {
  // {pid u32, padding, memory u64}
  const char* wanted = std::getenv("FAKE_NVML_PIDS");  // "12,13"
  const char* at = wanted == nullptr ? "77,78" : wanted;
  for (*count = 0; *at != 0; ++*count) {
    char* end = nullptr;
    const auto pid = static_cast<unsigned>(std::strtoul(at, &end, 10));
    std::memcpy(static_cast<char*>(list) + 16 * *count, &pid, sizeof(pid));
    at = *end == ',' ? end + 1 : end;
  }
  return 0;
}
int nvmlDeviceGetFieldValues(void*, int count, void* values) {
  // {field u32, scope u32, i64 timestamp, i64 latency, u32 type, i32 result, u64 value}
  for (int i = 0; i < count; ++i) {
    char* entry = static_cast<char*>(values) + 40 * i;
    const int result = 0;
    g_nvlink_kib += 1024;
    std::memcpy(entry + 28, &result, sizeof(result));
    std::memcpy(entry + 32, &g_nvlink_kib, sizeof(g_nvlink_kib));
  }
  return 0;
}

}  // extern "C"
