// Layers found by what repeats in a step's kernels.
#include "diagnose/understand/layers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fathom::diagnose {
namespace {

// One step that runs these kernels one after the other.
LayerMap LayersOf(const std::vector<std::string>& kernels) {
  Timeline t;
  const SourceId source = t.AddSource("trace", "kineto");
  const TrackId thread = t.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .tid = 1});
  const TrackId stream =
      t.AddTrack({.source = source, .kind = TrackKind::kGpuStream, .device = 0, .stream = 7});
  const auto n = static_cast<int64_t>(kernels.size());
  t.AddSlice(Category::kAnnotation, thread, 0, 10 * n, t.strings.Intern("decode_step_0"));
  for (int64_t i = 0; i < n; ++i) {
    t.AddSlice(Category::kKernel, stream, 10 * i, 9,
               t.strings.Intern(kernels[static_cast<size_t>(i)]));
  }
  const TraceIndex index(t);
  const Steps steps = FindSteps(index);
  EXPECT_EQ(steps.all.size(), 1u);
  return FindLayers(index, steps, steps.all.at(0));
}

std::vector<std::string> Layer(std::string_view attention) {
  return {"rms_norm", "gemm_qkv",   "rotary",    std::string(attention),
          "gemm_out", "all_reduce", "rms_norm",  "gate",
          "gemm_up",  "silu",       "gemm_down", "all_reduce"};
}

std::vector<std::string> Model(int layers, const std::vector<std::string>& attention) {
  std::vector<std::string> kernels = {"embedding"};
  for (int i = 0; i < layers; ++i) {
    const auto layer = Layer(attention[static_cast<size_t>(i) % attention.size()]);
    kernels.insert(kernels.end(), layer.begin(), layer.end());
  }
  kernels.insert(kernels.end(), {"rms_norm", "gemm_head", "argmax"});
  return kernels;
}

TEST(Layers, RepeatThemselves) {
  const LayerMap map = LayersOf(Model(8, {"flash"}));
  EXPECT_EQ(map.period, 12u);
  EXPECT_EQ(map.num_layers, 8u);
  EXPECT_EQ(map.LayerOf(0), -1);
  EXPECT_EQ(map.LayerOf(1), 0);
  EXPECT_EQ(map.LayerOf(13), 1);
}

// Sliding-window attention beside full attention: two kernels by turns, not layers of twice the
// length.
TEST(Layers, DifferInOneKernelByTurns) {
  const LayerMap map = LayersOf(Model(36, {"sliding", "full"}));
  EXPECT_EQ(map.period, 12u);
  EXPECT_EQ(map.num_layers, 36u);
  EXPECT_EQ(LayersOf(Model(32, {"sliding", "sliding", "sliding", "full"})).num_layers, 32u);
}

TEST(Layers, NothingRepeats) {
  std::vector<std::string> kernels;
  for (int i = 0; i < 30; ++i)
    kernels.push_back("kernel" + std::string(1, static_cast<char>('a' + i)));
  EXPECT_EQ(LayersOf(kernels).num_layers, 0u);
}

}  // namespace
}  // namespace fathom::diagnose
