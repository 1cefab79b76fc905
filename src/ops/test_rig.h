#pragma once
// For tests of ops: a device, a pool, an ISA and an arena in one place, data going in and out the
// way a real device needs it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/select.h"
#include "ops/context.h"
#include "ops/deferred_device.h"
#include "ops/step_inputs.h"

namespace fathom::ops::testing {

struct RigOptions {
  bool deferred = false;
  int threads = 1;
  std::string isa;  // empty: the best
  size_t arena_bytes = size_t{64} << 20;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options = {})
      : device_(options.deferred ? std::make_unique<DeferredDevice>() : MakeCpuDevice()),
        pool_(options.threads, 0),
        cpu_(kernels::cpu::Select(options.isa).value()),
        arena_(
            std::span(static_cast<std::byte*>(Allocate(options.arena_bytes)), options.arena_bytes)),
        context_{*device_, pool_, *cpu_, comm_, arena_, {}, 1, kDefaultStream} {}
  ~Rig() {
    for (void* memory : allocated_) device_->Free(memory);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Context& context() { return context_; }
  Device& device() { return *device_; }
  const kernels::cpu::KernelTable& cpu() const { return *cpu_; }
  int threads() const { return pool_.num_threads(); }

  void* Allocate(size_t bytes) {
    allocated_.push_back(device_->Allocate(std::max<size_t>(bytes, 64)).value());
    return allocated_.back();
  }
  template <class T>
  T* Upload(const std::vector<T>& values) {
    void* memory = Allocate(values.size() * sizeof(T));
    device_->CopyIn(kDefaultStream, memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(memory);
  }
  // Waits for all that was enqueued.
  template <class T>
  std::vector<T> Download(const void* memory, size_t count) {
    std::vector<T> values(count);
    device_->CopyOut(kDefaultStream, values.data(), memory, count * sizeof(T));
    EXPECT_TRUE(device_->Wait(device_->Record(kDefaultStream)));
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<void*> allocated_;
  ThreadPool pool_;
  const kernels::cpu::KernelTable* cpu_;
  Comm comm_;
  Arena arena_;
  Context context_;
};

inline std::vector<std::string> RunnableIsas() {
  std::vector<std::string> names;
  for (const kernels::cpu::KernelTable* table : kernels::cpu::AllTables()) {
    if (kernels::cpu::Supported(*table)) names.emplace_back(table->isa);
  }
  return names;
}

inline std::vector<float> Random(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

inline std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(F32ToBf16(v));
  return out;
}

// Largest difference relative to the largest magnitude.
inline double RelativeError(const std::vector<float>& found, const std::vector<double>& exact) {
  EXPECT_EQ(found.size(), exact.size());
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(found[i] - exact[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN stays
    largest = std::max(largest, std::abs(exact[i]));
  }
  return worst / largest;
}

inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fathom::ops::testing
