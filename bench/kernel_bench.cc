// Matrix products and attention of the CPU, beside the machine's own limits measured in the same
// run. Counters: GB/s of weights or cache read, GFLOP/s.
//   kernel_bench --benchmark_repetitions=9 --benchmark_report_aggregates_only=true
// FATHOM_THREADS (default 2) and FATHOM_ISA (default the best) choose the rest.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/select.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/onednn.h"

namespace fathom::ops {
namespace {

struct Bench {
  static constexpr size_t kArenaBytes = size_t{256} << 20;
  Bench()
      : pool(
            std::getenv("FATHOM_THREADS") != nullptr ? std::atoi(std::getenv("FATHOM_THREADS")) : 2,
            1000),
        cpu(kernels::cpu::Select(std::getenv("FATHOM_ISA") != nullptr ? std::getenv("FATHOM_ISA")
                                                                      : "")
                .value()),
        arena(
            std::span(static_cast<std::byte*>(device->Allocate(kArenaBytes).value()), kArenaBytes)),
        context{*device, pool, *cpu, comm, arena, {}, 1, kDefaultStream} {}
  std::unique_ptr<Device> device = MakeCpuDevice();
  ThreadPool pool;
  const kernels::cpu::KernelTable* cpu;
  Comm comm;
  Arena arena;
  Context context;
};

Bench& Env() {
  static Bench bench;
  return bench;
}

// bf16 bits of small random numbers.
std::vector<uint16_t> RandomBf16(size_t n) {
  std::vector<uint16_t> values(n);
  uint32_t state = 1;
  for (uint16_t& v : values) {
    state = state * 1664525U + 1013904223U;
    v = F32ToBf16(static_cast<float>(static_cast<int32_t>(state) >> 16) / 32768.0F * 0.05F);
  }
  return values;
}

std::vector<float> RandomF32(size_t n) {
  std::vector<float> values;
  for (const uint16_t v : RandomBf16(n)) values.push_back(Bf16ToF32(v));
  return values;
}

linear::PackedWeight RandomWeight(int64_t n, int64_t k, Precision precision) {
  auto values = RandomBf16(static_cast<size_t>(n * k));
  linear::WeightSource source;
  source.weight = TensorView::Contiguous(values.data(), DType::kBF16, {n, k});
  return linear::Pack(source, precision, *Env().device, *Env().cpu).value();
}

// Reads 64-byte lines with the widest loads the CPU has.
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) uint64_t ReadLines(
    const uint64_t* from, const uint64_t* to) {
  uint64_t sum[16] = {};
  for (; from < to; from += 16) {
    for (int i = 0; i < 16; ++i) sum[i] ^= from[i];
  }
  uint64_t all = 0;
  for (const uint64_t s : sum) all ^= s;
  return all;
}

// What the cores can read: the limit that decode is held against.
void BM_MemoryRead(benchmark::State& state) {
  const size_t bytes = size_t{512} << 20;
  const DeviceBuffer buffer = DeviceBuffer::Make(*Env().device, bytes).value();
  std::memset(buffer.data(), 1, bytes);
  const auto* const data = static_cast<const uint64_t*>(buffer.data());
  for (auto _ : state) {
    Env().pool.ParallelFor(static_cast<int64_t>(bytes / 8), 1 << 16,
                           [&](int64_t begin, int64_t end, int) {
                             benchmark::DoNotOptimize(ReadLines(data + begin, data + end));
                           });
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_MemoryRead)->UseRealTime()->MinWarmUpTime(0.2)->Unit(benchmark::kMillisecond);

// Decode: every weight of a model is read once a token. Eight matrices, 512 MB.
void BM_LinearDecode(benchmark::State& state) {
  const int64_t rows = state.range(0), n = 8192, k = 4096;
  const auto precision = static_cast<Precision>(state.range(1));
  std::vector<linear::PackedWeight> weights;
  for (int i = 0; i < 8; ++i) weights.push_back(RandomWeight(n, k, precision));
  auto x = RandomF32(static_cast<size_t>(rows * k));
  std::vector<float> y(static_cast<size_t>(rows * n));
  linear::Args args;
  args.input = TensorView::Contiguous(x.data(), DType::kF32, {rows, k});
  args.output = TensorView::Contiguous(y.data(), DType::kF32, {rows, n});
  for (auto _ : state) {
    for (const linear::PackedWeight& w : weights) {
      if (!linear::Run(linear::MakePlan(w, rows), w, args, Env().context)) std::abort();
    }
  }
  const auto elements = static_cast<double>(8 * n * k);
  state.counters["GB/s"] =
      benchmark::Counter(elements * 2e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = benchmark::Counter(elements * static_cast<double>(rows) * 2e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_LinearDecode)
    ->ArgNames({"rows", "bf16"})
    ->ArgsProduct({{1, 2, 4, 8, 12, 16, 24, 32}, {1}})
    ->Args({1, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_LinearPrefill(benchmark::State& state) {
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  const auto precision = static_cast<Precision>(state.range(3));
  linear::PackedWeight w = RandomWeight(n, k, precision);
  if (state.range(4) != 0) {
    if (const Status status = onednn::Check(precision, *Env().cpu); !status) {
      state.SkipWithError(status.error().message.c_str());
      return;
    }
    if (!linear::AddOneDnn(w)) std::abort();
  }
  auto x = RandomF32(static_cast<size_t>(rows * k));
  std::vector<float> y(static_cast<size_t>(rows * n));
  linear::Args args;
  args.input = TensorView::Contiguous(x.data(), DType::kF32, {rows, k});
  args.output = TensorView::Contiguous(y.data(), DType::kF32, {rows, n});
  for (auto _ : state) {
    if (!linear::Run(linear::MakePlan(w, rows), w, args, Env().context)) std::abort();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(static_cast<double>(rows * n * k) * 2e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_LinearPrefill)
    ->ArgNames({"rows", "n", "k", "bf16", "onednn"})
    ->ArgsProduct({{512}, {1536}, {1536, 8960}, {1, 0}, {0, 1}})
    ->ArgsProduct({{512}, {8960}, {1536}, {1}, {0, 1}})
    ->ArgsProduct({{96, 128}, {1536}, {1536}, {1}, {0, 1}})
    ->ArgsProduct({{256}, {8192}, {4096}, {1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The MLP of Qwen2 1.5B, four layers of 83 MB of weights by turns.
void BM_GatedMlp(benchmark::State& state) {
  constexpr int64_t kHidden = 1536, kIntermediate = 8960;
  constexpr int kLayers = 4;
  const int64_t rows = state.range(0);
  std::vector<linear::PackedWeight> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(RandomWeight(2 * kIntermediate, kHidden, Precision::kBF16));
    weights.push_back(RandomWeight(kHidden, kIntermediate, Precision::kBF16));
  }
  auto x = RandomF32(static_cast<size_t>(rows * kHidden));
  std::vector<float> y(x.size());
  mlp::Args args;
  args.input = TensorView::Contiguous(x.data(), DType::kF32, {rows, kHidden});
  args.output = TensorView::Contiguous(y.data(), DType::kF32, {rows, kHidden});
  const mlp::Plan plan = mlp::MakePlan(Precision::kBF16, kHidden, kIntermediate, rows);
  for (auto _ : state) {
    for (size_t i = 0; i < weights.size(); i += 2) {
      if (!mlp::Run(plan, {&weights[i], &weights[i + 1]}, args, Env().context)) std::abort();
    }
  }
  const auto elements = static_cast<double>(kLayers * 3 * kHidden * kIntermediate);
  state.counters["GB/s"] =
      benchmark::Counter(elements * 2e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = benchmark::Counter(elements * static_cast<double>(rows) * 2e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_GatedMlp)
    ->ArgNames({"rows"})
    ->ArgsProduct({{1, 8, 512}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The peer: oneDNN's bf16 matmul with its own packed weights and threads, f32 result.
void BM_OneDnnPrefill(benchmark::State& state) {
  using dnnl::memory;
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc a({rows, k}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc any({k, n}, memory::data_type::bf16, memory::format_tag::any);
  const memory::desc c({rows, n}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, any, c), engine);
  auto w = RandomBf16(static_cast<size_t>(n * k));
  auto x = RandomBf16(static_cast<size_t>(rows * k));
  memory plain({{k, n}, memory::data_type::bf16, memory::format_tag::ba}, engine, w.data());
  memory packed(pd.weights_desc(), engine);
  memory in(a, engine, x.data());
  memory out(c, engine);
  dnnl::reorder(plain, packed).execute(stream, plain, packed);
  dnnl::matmul matmul(pd);
  stream.wait();
  for (auto _ : state) {
    matmul.execute(stream, {{DNNL_ARG_SRC, in}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, out}});
    stream.wait();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(static_cast<double>(rows * n * k) * 2e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_OneDnnPrefill)
    ->ArgNames({"rows", "n", "k"})
    ->ArgsProduct({{512}, {1536}, {1536, 8960}})
    ->Args({512, 8960, 1536})
    ->Args({256, 8192, 4096})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// One layer's pages and a step over them.
struct AttentionCase {
  AttentionCase(const CacheFormat& format, int32_t sequences, int32_t queries, int32_t keys,
                Role role)
      : pages_a_sequence((keys + format.page_tokens - 1) / format.page_tokens),
        bytes(static_cast<size_t>(sequences * pages_a_sequence) *
              static_cast<size_t>(format.page_bytes)),
        contents(DeviceBuffer::Make(*Env().device, bytes).value()) {
    const auto values = RandomBf16(bytes / 2);
    std::memcpy(contents.data(), values.data(), bytes);
    for (int32_t s = 0; s < sequences; ++s) {
      starts.push_back((s + 1) * queries);
      lengths.push_back(keys);
      roles.push_back(role);
      for (int32_t p = 0; p < pages_a_sequence; ++p) table.push_back(s * pages_a_sequence + p);
    }
    live = {sequences * queries, sequences, 0};
    cache.format = format;
    cache.base = contents.data();
    cache.num_pages = sequences * pages_a_sequence;
    inputs.bucket = {sequences * queries, sequences, 1, queries, keys};
    inputs.live_counts = live.data();
    inputs.query_starts = starts.data();
    inputs.kv_lengths = lengths.data();
    inputs.roles = roles.data();
    inputs.page_tables[0] = table.data();
    inputs.page_table_stride[0] = pages_a_sequence;
  }
  int32_t pages_a_sequence;
  size_t bytes;
  DeviceBuffer contents;
  std::vector<int32_t> starts = {0}, lengths, table, live;
  std::vector<Role> roles;
  CacheView cache;
  StepInputs inputs;
};

void BM_GqaAttention(benchmark::State& state) {
  const auto sequences = static_cast<int32_t>(state.range(0));
  const auto queries = static_cast<int32_t>(state.range(1));
  const auto keys = static_cast<int32_t>(state.range(2));
  const attention::GqaShape shape{12, 2, 128, 128, 0.088F, Precision::kBF16};
  const auto format = MakeGqaFormat(1, 2, 128, 128, DType::kBF16, 64, RopeState::kRotatedHalves);
  AttentionCase c(*format, sequences, queries, keys, Role::kGenerated);
  const int64_t tokens = int64_t{sequences} * queries;
  auto q = RandomF32(static_cast<size_t>(tokens) * 12 * 128);
  std::vector<float> out(q.size());
  attention::GqaArgs args;
  args.q = TensorView::Contiguous(q.data(), DType::kF32, {tokens, 12, 128});
  args.out = TensorView::Contiguous(out.data(), DType::kF32, {tokens, 12, 128});
  args.cache = c.cache;
  const auto plan =
      attention::MakePlan(shape, *format, c.inputs.bucket, Env().pool.num_threads()).value();
  for (auto _ : state) {
    if (!attention::Run(plan, shape, args, c.inputs, Env().context)) std::abort();
  }
  const double pairs = sequences * (static_cast<double>(queries) * keys -
                                    0.5 * queries * (static_cast<double>(queries) - 1));
  state.counters["GFLOP/s"] = benchmark::Counter(pairs * 12 * 4 * 128 * 1e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.counters["cache GB/s"] = benchmark::Counter(static_cast<double>(c.bytes) * 1e-9,
                                                    benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_GqaAttention)
    ->ArgNames({"sequences", "queries", "keys"})
    ->Args({1, 1, 4096})
    ->Args({1, 1, 32768})
    ->Args({8, 1, 8192})
    ->Args({1, 512, 512})
    ->Args({1, 512, 8192})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_MlaAttention(benchmark::State& state) {
  const auto sequences = static_cast<int32_t>(state.range(0));
  const auto queries = static_cast<int32_t>(state.range(1));
  const auto keys = static_cast<int32_t>(state.range(2));
  const auto role = queries == 1 ? Role::kGenerated : Role::kPrompt;
  const attention::MlaShape shape{16, 512, 128, 64, 128, 0.1147F, Precision::kBF16};
  const auto format = MakeMlaFormat(1, 512, 64, DType::kBF16, 64, RopeState::kRotatedInterleaved);
  AttentionCase c(*format, sequences, queries, keys, role);
  auto kv_b = RandomBf16(size_t{16} * 256 * 512);
  linear::WeightSource source;
  source.weight = TensorView::Contiguous(kv_b.data(), DType::kBF16, {16 * 256, 512});
  const auto weights = attention::PackMlaWeights(source, shape, *Env().device, *Env().cpu).value();
  const int64_t tokens = int64_t{sequences} * queries;
  auto q = RandomF32(static_cast<size_t>(tokens) * 16 * 192);
  std::vector<float> out(static_cast<size_t>(tokens) * 16 * 128);
  attention::MlaArgs args;
  args.q = TensorView::Contiguous(q.data(), DType::kF32, {tokens, 16, 192});
  args.out = TensorView::Contiguous(out.data(), DType::kF32, {tokens, 16, 128});
  args.cache = c.cache;
  const auto plan =
      attention::MakePlan(shape, *format, c.inputs.bucket, Env().pool.num_threads()).value();
  for (auto _ : state) {
    if (!attention::Run(plan, shape, weights, args, c.inputs, Env().context)) std::abort();
  }
  const double pairs = sequences * (static_cast<double>(queries) * keys -
                                    0.5 * queries * (static_cast<double>(queries) - 1));
  const double flops = role == Role::kGenerated
                           ? pairs * 16 * 2 * (576 + 512)
                           : pairs * 16 * 2 * (192 + 128) + 16.0 * sequences * keys * 2 * 512 * 256;
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["cache GB/s"] = benchmark::Counter(static_cast<double>(c.bytes) * 1e-9,
                                                    benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_MlaAttention)
    ->ArgNames({"sequences", "queries", "keys"})
    ->Args({1, 1, 4096})
    ->Args({1, 1, 32768})
    ->Args({8, 1, 8192})
    ->Args({1, 512, 512})
    ->Args({1, 512, 8192})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fathom::ops

BENCHMARK_MAIN();
