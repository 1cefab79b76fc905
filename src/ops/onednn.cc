#include "ops/onednn.h"

#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/host_memory.h"
#include "ops/panels.h"

// oneDNN is built on OpenMP here. A worker of our pool that calls it must not start another team.
extern "C" void omp_set_num_threads(int);

namespace fathom::ops::onednn {
namespace {

using dnnl::memory;

// Below this the gain does not pay for reading a second copy into the cache.
constexpr int64_t kMinRows = 128;

const dnnl::engine& Engine() {
  static const dnnl::engine kEngine(dnnl::engine::kind::cpu, 0);
  return kEngine;
}

memory::data_type TypeOf(Precision precision) {
  return precision == Precision::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

int64_t ElementBytes(Precision precision) { return precision == Precision::kBF16 ? 2 : 4; }

// Several threads execute one primitive, which its own scratch memory would not allow.
dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// C [kTileRows, columns] = A [kTileRows, k] B [k, columns], B in the layout of its choice.
struct Tile {
  Tile(Precision precision, int64_t columns, int64_t k)
      : a({kTileRows, k}, TypeOf(precision), memory::format_tag::ab),
        c({kTileRows, columns}, memory::data_type::f32, memory::format_tag::ab),
        description(
            dnnl::matmul::desc(
                a, memory::desc({k, columns}, TypeOf(precision), memory::format_tag::any), c),
            UserScratchpad(), Engine()),
        multiply(description) {}
  memory::desc a;
  memory::desc c;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul multiply;
};

// Primitives compile code: one of each shape serves every weight.
const Tile& TileFor(Precision precision, int64_t columns, int64_t k) {
  static std::mutex mutex;
  static std::map<std::tuple<Precision, int64_t, int64_t>, Tile> tiles;
  const std::lock_guard lock(mutex);
  return tiles.try_emplace({precision, columns, k}, precision, columns, k).first->second;
}

int64_t ColumnsOf(int64_t rows, int64_t tile) {
  return std::min(kTileColumns, rows - tile * kTileColumns);
}

int64_t NumTiles(int64_t rows) { return (rows + kTileColumns - 1) / kTileColumns; }

size_t TileBytes(Precision precision, int64_t rows, int64_t k, int64_t tile) {
  const size_t bytes =
      TileFor(precision, ColumnsOf(rows, tile), k).description.weights_desc().get_size();
  return Arena::Align(bytes);
}

tl::unexpected<Error> Failed(const dnnl::error& error) {
  return Err(Code::kInternal, "oneDNN: {}", error.what());
}

size_t AllTileBytes(Precision precision, int64_t rows, int64_t cols) {
  size_t bytes = 0;
  for (int64_t tile = 0; tile < NumTiles(rows); ++tile) {
    bytes += TileBytes(precision, rows, cols, tile);
  }
  return bytes;
}

// Columns [first, first + columns) of W^T as plain [columns, k], out of the panels.
void Unpack(const linear::PackedWeight& w, int64_t first, int64_t columns, std::byte* out) {
  const int64_t k = w.cols();
  for (int64_t n = 0; n < columns; ++n) {
    const int64_t panel = (first + n) / kernels::kPanelColumns;
    const int64_t column = (first + n) % kernels::kPanelColumns;
    const std::byte* const data = w.data() + panel * host::PanelBytes(w);
    for (int64_t i = 0; i < k; ++i) {
      if (w.dtype() == DType::kF32) {
        const float value =
            reinterpret_cast<const float*>(data)[i * kernels::kPanelColumns + column];
        reinterpret_cast<float*>(out)[n * k + i] = value;
        continue;
      }
      const uint16_t bits = reinterpret_cast<const uint16_t*>(
          data)[(i / 2 * kernels::kPanelColumns + column) * 2 + i % 2];
      if (w.precision() == Precision::kBF16) {
        reinterpret_cast<uint16_t*>(out)[n * k + i] = bits;
      } else {
        reinterpret_cast<float*>(out)[n * k + i] = Bf16ToF32(bits);
      }
    }
  }
}

}  // namespace

int64_t TiledRows(int64_t rows) { return rows < kMinRows ? 0 : rows / kTileRows * kTileRows; }

bool Serves(int64_t rows, int64_t cols) { return rows >= 64 && cols >= 64 && cols % 2 == 0; }

Status Check(Precision precision, const kernels::cpu::KernelTable& cpu) {
  const std::string_view isa = cpu.isa;
  const bool bf16 = precision == Precision::kBF16;
  if (bf16 ? !cpu.native_bf16 : isa == "scalar") {
    return Err(Code::kUnsupported,
               "oneDNN in {} needs {}, but the kernels are {}; use --cpu-gemm native{}",
               bf16 ? "bf16" : "f32", bf16 ? "avx512bf16" : "avx2 or better", isa,
               bf16 && isa != "scalar" ? " or --dtype f32" : "");
  }
  static std::mutex mutex;
  static std::string chosen;  // oneDNN's setting is the process's
  const std::lock_guard lock(mutex);
  if (chosen.empty()) {
    const dnnl::cpu_isa limit = isa == "avx2"     ? dnnl::cpu_isa::avx2
                                : isa == "avx512" ? dnnl::cpu_isa::avx512_core
                                                  : dnnl::cpu_isa::all;
    if (dnnl::set_max_cpu_isa(limit) != dnnl::status::success) {
      return Err(Code::kInternal, "oneDNN cannot be held to {}", isa);
    }
    chosen = isa;
  }
  if (chosen != isa) {
    return Err(Code::kUnsupported, "oneDNN already runs on {} in this process, wanted is {}",
               chosen, isa);
  }
  return {};
}

Result<size_t> PackedBytes(Precision precision, int64_t rows, int64_t cols) {
  if (!Serves(rows, cols)) return 0;
  try {
    return AllTileBytes(precision, rows, cols);
  } catch (const dnnl::error& error) {
    return Failed(error);
  }
}

struct Weight::Impl {
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  Precision precision = Precision::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  size_t bytes = 0;
  size_t tile_bytes = 0;  // from one tile of columns to the next
  std::unique_ptr<std::byte[], Free> data;
};

Weight::Weight(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Weight::~Weight() = default;

size_t Weight::Bytes() const { return impl_->bytes; }

Result<std::unique_ptr<Weight>> Weight::Make(const linear::PackedWeight& panels) {
  FATHOM_CHECK(Serves(panels.rows(), panels.cols()));
  auto impl = std::make_unique<Impl>();
  impl->precision = panels.precision();
  impl->rows = panels.rows();
  impl->cols = panels.cols();
  try {
    impl->bytes = AllTileBytes(impl->precision, impl->rows, impl->cols);
    impl->tile_bytes = TileBytes(impl->precision, impl->rows, impl->cols, 0);
    impl->data.reset(static_cast<std::byte*>(AllocateHost(impl->bytes)));
    if (!impl->data) {
      return Err(Code::kResourceExhausted, "no memory for oneDNN's copy of a weight, {} bytes",
                 impl->bytes);
    }
    std::vector<std::byte> plain(
        static_cast<size_t>(kTileColumns * impl->cols * ElementBytes(impl->precision)));
    omp_set_num_threads(1);
    dnnl::stream stream(Engine());
    for (int64_t tile = 0; tile < NumTiles(impl->rows); ++tile) {
      const int64_t columns = ColumnsOf(impl->rows, tile);
      Unpack(panels, tile * kTileColumns, columns, plain.data());
      const memory from({{impl->cols, columns}, TypeOf(impl->precision), memory::format_tag::ba},
                        Engine(), plain.data());
      const memory to(TileFor(impl->precision, columns, impl->cols).description.weights_desc(),
                      Engine(), impl->data.get() + static_cast<size_t>(tile) * impl->tile_bytes);
      dnnl::reorder(from, to).execute(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
      stream.wait();
    }
  } catch (const dnnl::error& error) {
    return Failed(error);
  }
  return std::unique_ptr<Weight>(new Weight(std::move(impl)));
}

void Weight::Multiply(const host::Runtime& runtime, const void* a, int64_t num_rows, float* c,
                      int64_t c_stride, const float* bias) const {
  FATHOM_CHECK(num_rows % kTileRows == 0);
  const Impl& w = *impl_;
  const int64_t row_tiles = num_rows / kTileRows;
  const auto piece = [&](int64_t begin, int64_t end) {
    omp_set_num_threads(1);  // of this worker
    alignas(64) std::array<float, kTileRows * kTileColumns> out;
    dnnl::stream stream(Engine());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first_row = i % row_tiles * kTileRows;
      const int64_t column_tile = i / row_tiles;
      const int64_t columns = ColumnsOf(w.rows, column_tile);
      const Tile& tile = TileFor(w.precision, columns, w.cols);
      // oneDNN takes pointers to what it only reads, too, as mutable.
      auto* const rows = const_cast<std::byte*>(static_cast<const std::byte*>(a)) +
                         first_row * w.cols * ElementBytes(w.precision);
      const memory in(tile.a, Engine(), rows);
      const memory weights(tile.description.weights_desc(), Engine(),
                           w.data.get() + static_cast<size_t>(column_tile) * w.tile_bytes);
      const memory result(tile.c, Engine(), out.data());
      const memory scratchpad(tile.description.scratchpad_desc(), Engine());
      tile.multiply.execute(stream, {{DNNL_ARG_SRC, in},
                                     {DNNL_ARG_WEIGHTS, weights},
                                     {DNNL_ARG_DST, result},
                                     {DNNL_ARG_SCRATCHPAD, scratchpad}});
      stream.wait();
      for (int64_t row = 0; row < kTileRows; ++row) {
        const float* const from = out.data() + row * columns;
        float* const to = c + (first_row + row) * c_stride + column_tile * kTileColumns;
        if (bias == nullptr) {
          std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(float));
        } else {
          const float* const b = bias + column_tile * kTileColumns;
          for (int64_t n = 0; n < columns; ++n) to[n] = from[n] + b[n];
        }
      }
    }
  };
  // Neighbours share a tile of weights.
  runtime.pool->ParallelFor(row_tiles * NumTiles(w.rows), 1,
                            [&](int64_t begin, int64_t end, int /*worker*/) {
                              try {
                                piece(begin, end);
                              } catch (const dnnl::error& error) {  // these shapes worked before
                                FATHOM_CHECK(false, "oneDNN: {}", error.what());
                              }
                            });
}

}  // namespace fathom::ops::onednn
