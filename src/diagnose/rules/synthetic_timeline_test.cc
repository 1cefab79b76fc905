#include "diagnose/rules/synthetic_timeline.h"

#include <fmt/format.h>

#include <algorithm>

namespace fathom::diagnose {
namespace {

constexpr int64_t kUs = 1000;
constexpr double kLaunchUs = 3;  // of a launch call
constexpr double kQueueUs = 1;   // between kernels of a full queue

class Builder {
 public:
  explicit Builder(const SyntheticOptions& options) : o_(options) {
    const SourceId source = t_.AddSource("synthetic.json", "kineto");
    Source& s = t_.sources[source];
    s.clock = ClockDomain::kUnix;
    s.record_shapes = true;
    s.with_stack = options.with_stack;
    s.devices.push_back({.id = 0,
                         .name = "NVIDIA H200",
                         .compute_major = 9,
                         .compute_minor = 0,
                         .num_sms = 132,
                         .warp_size = 32,
                         .max_threads_per_sm = 2048,
                         .registers_per_sm = 65536,
                         .shared_bytes_per_sm = 233472});
    cpu_ = t_.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .pid = 1, .tid = 1});
    gpu_ = t_.AddTrack({.source = source, .kind = TrackKind::kGpuStream, .device = 0, .stream = 7});
  }

  Timeline Run() {
    Step("prefill", true, 0);
    for (int i = 0; i < o_.decode_steps; ++i) Step(fmt::format("decode_step_{}", i), false, i);
    return std::move(t_);
  }

 private:
  static int64_t Ns(double us) { return static_cast<int64_t>(us * kUs); }

  void Step(const std::string& name, bool prefill, int number) {
    const int64_t begin = std::max(cpu_now_, gpu_free_);
    cpu_now_ = gpu_free_ = begin;
    length_ = o_.context_tokens + number;
    const bool graph =
        o_.graph && !prefill && !(o_.faults.miss_graph_once && number == o_.decode_steps / 2);
    graph_launch_ = 0;
    if (graph) {
      graph_launch_ = Launch("cudaGraphLaunch");
      cpu_now_ += Ns(5);
    }
    // A full queue: the CPU runs ahead of the GPU unless a fault holds it back.
    if (!graph) gpu_free_ += Ns(8);
    for (int layer = 0; layer < o_.layers; ++layer) Layer(prefill, layer, number);
    Kernel("argmax_kernel", "aten::argmax", "[[1, 32000]]", "[\"float\"]", 3);
    const int64_t end = std::max(gpu_free_, cpu_now_);
    // The one legitimate wait, at the end.
    Call(Category::kRuntime, "cudaStreamSynchronize", cpu_now_, end + Ns(2) - cpu_now_);
    Slice(Category::kAnnotation, name, begin, end + Ns(3) - begin);
    cpu_now_ = gpu_free_ = end + Ns(10);
  }

  void Layer(bool prefill, int layer, int number) {
    const Faults& f = o_.faults;
    const double us = o_.kernel_us * (prefill ? 4 : 1);
    const int64_t queries = prefill ? o_.context_tokens : 1;
    const std::string hidden = fmt::format("[[1, {}, 4096]]", queries);
    const std::string mm = fmt::format("[[{}, 4096], [4096, 4096]]", queries);
    Kernel("rmsnorm_kernel", "aten::rms_norm", hidden, kBf16, us);
    Kernel("nvjet_sm90_tst_64x8", "aten::mm", mm, kBf16Two, us);
    for (int i = 0; i < f.rope_kernels; ++i) {
      Kernel("rotary_embedding_kernel", "custom::rotary_embedding", hidden, kBf16, us);
    }
    for (int i = 0; i < f.gate_kernels; ++i) {
      Kernel("grouped_topk_kernel", "custom::grouped_topk", hidden, kBf16, us);
    }
    if (!prefill && f.jitter_us > 0 && Jitters(number) && layer == 0) {
      cpu_now_ = std::max(cpu_now_, gpu_free_) + Ns(f.jitter_us);
    }
    if (!prefill && f.kv_copy_share > 0) {
      // Two copies a layer whose share of the step's busy time is as asked: s = c / (8 k + c).
      const double copies = 8 * us * f.kv_copy_share / (1 - f.kv_copy_share);
      const std::string shape =
          fmt::format("[[1, 8, 4, {0}, 128], [1, 8, 4, {0}, 128], []]", length_);
      for (int i = 0; i < 2; ++i) {
        Kernel("elementwise_kernel<direct_copy_kernel_cuda>", "aten::copy_", shape, kBf16Two,
               copies / 2);
      }
    }
    if (!prefill && f.allocator_us > 0 && layer == o_.layers / 2) {
      Stall("cudaMalloc", f.allocator_us, Category::kRuntime);
    }
    if (!prefill && f.sync_us > 0 && layer == o_.layers / 2) {
      const int64_t wait = std::max<int64_t>(gpu_free_ - cpu_now_, 0) + Ns(1);
      Call(Category::kRuntime, "cudaStreamSynchronize", cpu_now_, wait);
      cpu_now_ += wait + Ns(f.sync_us);
    }
    if (!prefill && f.slow_step_us > 0 && number == o_.decode_steps / 2 && layer == 1) {
      cpu_now_ = std::max(cpu_now_, gpu_free_) + Ns(f.slow_step_us);
    }
    if (prefill && f.scores_us > 0) {
      const std::string scores = fmt::format("[[1, 32, {0}, {0}], [], []]", queries);
      Kernel("cunn_SoftMaxForward", "aten::_softmax", scores, kFloat, f.scores_us / 2);
      Kernel("vectorized_elementwise_kernel<MulFunctor>", "aten::mul", scores, kFloat,
             f.scores_us / 2);
    }
    const std::string attention =
        fmt::format("[[1, 32, {0}, 128], [1, 8, {1}, 128], [1, 8, {1}, 128]]", queries, length_);
    Kernel("flash_fwd_sm90_kernel", "aten::_flash_attention_forward", attention,
           "[\"c10::BFloat16\", \"c10::BFloat16\", \"c10::BFloat16\"]",
           AttentionUs(queries) * f.attention_slowdown, prefill ? 0 : f.plan_us);
    Kernel("nvjet_sm90_tst_64x8", "aten::mm", mm, kBf16Two, us);
    AllReduce(hidden);
    Kernel("rmsnorm_kernel", "aten::rms_norm", hidden, kBf16, us);
    Kernel("nvjet_sm90_tst_64x8", "aten::mm", mm, kBf16Two, us);
    AllReduce(hidden);
    Kernel("silu_and_mul_kernel", "custom::silu_and_mul", hidden, kBf16, us);
  }

  void AllReduce(const std::string& shape) {
    if (o_.faults.collective_us == 0) return;
    Kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "c10d::allreduce_", shape, kBf16,
           o_.faults.collective_us);
    if (o_.faults.all_reduce_elements == 0) return;
    t_.kernels.back().collective = static_cast<uint32_t>(t_.collectives.size());
    t_.collectives.push_back({.name = t_.strings.Intern("allreduce"),
                              .dtype = t_.strings.Intern("BFloat16"),
                              .in_elements = o_.faults.all_reduce_elements,
                              .out_elements = o_.faults.all_reduce_elements,
                              .group_size = 8});
  }

  // A healthy kernel: 80 % of the H200's roof.
  double AttentionUs(int64_t queries) const {
    const auto q = static_cast<double>(queries);
    const auto k = static_cast<double>(length_);
    const double pairs = queries > 1 ? q * k - q * (q - 1) / 2 : k;
    const double compute_us = 2 * pairs * 32 * 256 / 989e6;
    const double memory_us = k * 8 * 256 * 2 / 4.8e6;
    return std::max(compute_us, memory_us) / 0.8;
  }

  // One operator, its launch and its kernel. Eager launches run ahead of the GPU, so that only a
  // fault makes the GPU wait.
  void Kernel(std::string_view kernel, std::string_view op, std::string_view dims,
              std::string_view types, double us, double plan_us = 0) {
    uint64_t correlation = graph_launch_;
    if (graph_launch_ == 0) {
      if (o_.faults.launch_gap_us > 0) {
        cpu_now_ = std::max(cpu_now_, gpu_free_ + Ns(o_.faults.launch_gap_us - kLaunchUs - 2));
      }
      const int64_t op_start = cpu_now_;
      if (plan_us > 0) cpu_now_ = std::max(cpu_now_, gpu_free_) + Ns(plan_us);
      cpu_now_ += Ns(1);
      correlation = Launch("cudaLaunchKernel");
      const size_t s = Slice(Category::kCpuOp, op, op_start, cpu_now_ + Ns(1) - op_start);
      t_.slices.detail[s] = static_cast<uint32_t>(t_.ops.size());
      t_.ops.push_back(
          {.input_dims = t_.strings.Intern(dims), .input_types = t_.strings.Intern(types)});
      cpu_now_ += Ns(1);
    }
    const int64_t start = std::max(gpu_free_ + Ns(kQueueUs), cpu_now_);
    const size_t k = t_.AddSlice(Category::kKernel, gpu_, start, Ns(us), t_.strings.Intern(kernel));
    t_.slices.correlation[k] = correlation;
    t_.slices.detail[k] = static_cast<uint32_t>(t_.kernels.size());
    const bool attention = kernel.find("flash") != std::string_view::npos;
    const auto blocks = static_cast<uint32_t>(attention ? o_.faults.attention_blocks : 264);
    t_.kernels.push_back({.grid = {blocks, 1, 1},
                          .block = {256, 1, 1},
                          .registers_per_thread = 64,
                          .in_graph = graph_launch_ != 0});
    gpu_free_ = start + Ns(us);
  }

  uint64_t Launch(std::string_view name) {
    const size_t s = Call(Category::kRuntime, name, cpu_now_, Ns(kLaunchUs));
    t_.slices.correlation[s] = ++correlation_;
    cpu_now_ += Ns(kLaunchUs);
    return correlation_;
  }

  void Stall(std::string_view call, double us, Category category) {
    cpu_now_ = std::max(cpu_now_, gpu_free_);
    Call(category, call, cpu_now_, Ns(us));
    cpu_now_ += Ns(us);
  }

  size_t Call(Category category, std::string_view name, int64_t start, int64_t dur) {
    return Slice(category, name, start, dur);
  }
  size_t Slice(Category category, std::string_view name, int64_t start, int64_t dur) {
    return t_.AddSlice(category, cpu_, start, dur, t_.strings.Intern(name));
  }

  static constexpr std::string_view kBf16 = "[\"c10::BFloat16\"]";
  static constexpr std::string_view kBf16Two = "[\"c10::BFloat16\", \"c10::BFloat16\"]";
  static constexpr std::string_view kFloat = "[\"float\"]";

  SyntheticOptions o_;
  Timeline t_;
  TrackId cpu_ = 0;
  TrackId gpu_ = 0;
  int64_t cpu_now_ = 1'000'000;   // when the launching thread is free
  int64_t gpu_free_ = 1'000'000;  // when the stream is
  int64_t length_ = 0;
  uint64_t correlation_ = 0;
  uint64_t graph_launch_ = 0;
};

}  // namespace

bool Jitters(int number) { return ((number * number) / 7 + number / 3) % 2 == 0; }

Timeline MakeSynthetic(const SyntheticOptions& options) { return Builder(options).Run(); }

}  // namespace fathom::diagnose
