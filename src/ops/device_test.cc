#include "ops/device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cache_format.h"
#include "ops/deferred_device.h"

namespace fathom::ops {
namespace {

TEST(Device, CudaWithoutCudaIsAnErrorNotAFallback) {
  const auto device = MakeDevice("cuda");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kUnsupported);
  EXPECT_NE(MakeDevice("tpu").error().message.find("expected cpu or cuda"), std::string::npos);
}

TEST(Device, CpuExecutesAtOnce) {
  auto device = MakeCpuDevice();
  int value = 0;
  device->Execute(kDefaultStream, [&] { value = 7; });
  EXPECT_EQ(value, 7);
  EXPECT_TRUE(device->Passed(device->Record(kDefaultStream)));
}

TEST(Device, TouchedMemoryIsResident) {
  const auto device = MakeCpuDevice();
  constexpr size_t kBytes = size_t{16} << 20;
  auto buffer = DeviceBuffer::Make(*device, kBytes);
  ASSERT_TRUE(buffer);
  device->Touch(buffer->data(), kBytes);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(kBytes / page);
  ASSERT_EQ(mincore(buffer->data(), kBytes, resident.data()), 0);
  EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }));
}

TEST(DeferredDevice, RunsLateAndInOrder) {
  DeferredDevice device;
  auto buffer = DeviceBuffer::Make(device, 4 * sizeof(int));
  ASSERT_TRUE(buffer);
  auto* data = static_cast<int*>(buffer->data());
  int host = 41;
  device.CopyIn(kDefaultStream, data, &host, sizeof(host));
  host = 0;  // the source may be reused at once
  device.Execute(kDefaultStream, [data] { data[1] = data[0] + 1; });
  int result = -1;
  device.CopyOut(kDefaultStream, &result, data + 1, sizeof(result));
  const Fence fence = device.Record(kDefaultStream);
  EXPECT_EQ(device.Pending(kDefaultStream), 3u);
  EXPECT_FALSE(device.Passed(fence));
  EXPECT_EQ(result, -1);
  ASSERT_TRUE(device.Wait(fence));
  EXPECT_EQ(result, 42);
}

TEST(DeferredDeviceDeathTest, HostReadsFault) {
  DeferredDevice device;
  auto buffer = DeviceBuffer::Make(device, 64);
  ASSERT_TRUE(buffer);
  const volatile int* data = static_cast<int*>(buffer->data());
  EXPECT_DEATH({ [[maybe_unused]] const int peeked = *data; }, "");
}

TEST(CacheFormat, MlaAndGqaLayouts) {
  const auto mla = MakeMlaFormat(2, 512, 64, DType::kBF16, 64, RopeState::kRotatedHalves);
  ASSERT_TRUE(mla);
  EXPECT_EQ(mla->page_bytes, 64 * 1152);
  EXPECT_EQ(mla->BytesPerToken(), 2 * 1152);
  EXPECT_EQ(mla->Find(PlaneKind::kKPe)->offset_bytes, 64 * 1024);
  EXPECT_EQ(mla->Find(PlaneKind::kV), nullptr);

  const auto gqa = MakeGqaFormat(2, 8, 128, 128, DType::kBF16, 16, RopeState::kRotatedHalves);
  ASSERT_TRUE(gqa);
  EXPECT_EQ(gqa->Find(PlaneKind::kV)->offset_bytes, 16 * 8 * 256);
  EXPECT_NE(gqa->Fingerprint(), mla->Fingerprint());
  auto other_table = *gqa;
  other_table.rope_table_id = 1;
  EXPECT_NE(gqa->Fingerprint(), other_table.Fingerprint());

  EXPECT_FALSE(MakeGqaFormat(2, 8, 128, 128, DType::kBF16, 48, RopeState::kNone));
  EXPECT_FALSE(MakeGqaFormat(2, 8, 7, 7, DType::kBF16, 64, RopeState::kNone));
}

}  // namespace
}  // namespace fathom::ops
