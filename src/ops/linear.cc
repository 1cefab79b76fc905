#include "ops/linear.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/arena.h"
#include "base/host_memory.h"
#include "ops/host.h"
#include "ops/onednn.h"
#include "ops/panels.h"

namespace fathom::ops::linear {
namespace {

constexpr int kPanel = kernels::kPanelColumns;

using host::EvenUp;

size_t BytesOf(DType dtype, Layout layout, int64_t rows, int64_t cols) {
  const int64_t k = dtype == DType::kBF16 ? EvenUp(cols) : cols;
  const int64_t n = layout == Layout::kPanels ? (rows + kPanel - 1) / kPanel * kPanel : rows;
  return static_cast<size_t>(n * k * SizeOf(dtype));
}

// Elements [begin, end) of one row (or of one k, when transposed) as f32.
void Dequantise(const WeightSource& source, int64_t row, int64_t begin, int64_t end, float* out) {
  const TensorView& w = source.weight;
  const int64_t at = row * w.stride[0] + begin;
  const int64_t n = end - begin;
  switch (w.dtype) {
    case DType::kF32:
      std::memcpy(out, w.As<float>() + at, static_cast<size_t>(n) * sizeof(float));
      break;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToF32(w.As<uint16_t>()[at + i]);
      break;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = F16ToF32(w.As<uint16_t>()[at + i]);
      break;
    default: {
      static const std::array<float, 256> kValues = [] {
        std::array<float, 256> values{};
        for (int i = 0; i < 256; ++i) {
          values[static_cast<size_t>(i)] = F8E4M3ToF32(static_cast<uint8_t>(i));
        }
        return values;
      }();
      for (int64_t i = 0; i < n; ++i) out[i] = kValues[w.As<uint8_t>()[at + i]];
    }
  }
  if (source.scales) {
    const BlockScales& s = *source.scales;
    const int64_t scale_cols = (w.shape[1] + s.block_cols - 1) / s.block_cols;
    const float* scales = s.scales + row / s.block_rows * scale_cols;
    for (int64_t i = 0; i < n; ++i) out[i] *= scales[(begin + i) / s.block_cols];
  }
}

Status CheckSource(const WeightSource& source) {
  const TensorView& w = source.weight;
  const bool known = w.dtype == DType::kF32 || w.dtype == DType::kBF16 || w.dtype == DType::kF16 ||
                     w.dtype == DType::kF8E4M3;
  if (w.rank != 2 || w.stride[1] != 1 || !known || w.shape[0] < 1 || w.shape[1] < 1) {
    return Err(Code::kInvalidArgument,
               "weight of rank {} and type {}: expected a matrix of F32, F16, BF16 or F8_E4M3 "
               "with contiguous rows",
               w.rank, NameOf(w.dtype));
  }
  if (source.scales && (source.scales->block_rows < 1 || source.scales->block_cols < 1)) {
    return Err(Code::kInvalidArgument, "scale blocks of {} x {}: expected positive sizes",
               source.scales->block_rows, source.scales->block_cols);
  }
  return {};
}

// The rows of one panel or matrix, taken from the parts that lie one below the other.
struct RowRef {
  const WeightSource* source;
  int64_t row;
};

}  // namespace

void PackedWeight::Free::operator()(std::byte* bytes) const { std::free(bytes); }

size_t PackedWeight::Bytes() const { return bytes_ + (onednn_ == nullptr ? 0 : onednn_->Bytes()); }

DType PackedDType(DType stored, Precision precision) {
  return precision == Precision::kBF16 || stored == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

size_t PackedBytes(DType stored, int64_t rows, int64_t cols, Precision precision) {
  return BytesOf(PackedDType(stored, precision), Layout::kPanels, rows, cols);
}

Result<PackedWeight> Pack(std::span<const WeightSource> parts, Precision precision,
                          Device& /*device*/, const kernels::cpu::KernelTable& cpu, Layout layout) {
  if (parts.empty()) return Err(Code::kInvalidArgument, "no weight to pack");
  const bool transposed = parts[0].transposed;
  PackedWeight packed;
  packed.precision_ = precision;
  packed.layout_ = layout;
  // The left operand of an f32 product is f32.
  packed.dtype_ = layout == Layout::kRowMajor
                      ? (precision == Precision::kBF16 ? DType::kBF16 : DType::kF32)
                      : DType::kBF16;
  packed.cols_ = parts[0].weight.shape[transposed ? 0 : 1];
  std::vector<RowRef> refs;
  for (const WeightSource& part : parts) {
    FATHOM_TRY(CheckSource(part));
    const int64_t k = part.weight.shape[transposed ? 0 : 1];
    if (k != packed.cols_ || part.transposed != transposed ||
        (transposed && (parts.size() > 1 || layout == Layout::kRowMajor))) {
      return Err(Code::kInvalidArgument,
                 "packing {} matrices, one with {} input features and one with {}: expected equal "
                 "input features, and a single panel-packed matrix when transposed",
                 parts.size(), packed.cols_, k);
    }
    if (layout == Layout::kPanels && PackedDType(part.weight.dtype, precision) == DType::kF32) {
      packed.dtype_ = DType::kF32;
    }
    const int64_t n = part.weight.shape[transposed ? 1 : 0];
    packed.rows_ += n;
    if (!transposed) {
      for (int64_t row = 0; row < n; ++row) refs.push_back({&part, row});
    }
  }

  const int64_t k = packed.cols_;
  packed.bytes_ = BytesOf(packed.dtype_, layout, packed.rows_, k);
  packed.data_.reset(static_cast<std::byte*>(AllocateHost(packed.bytes_)));
  if (!packed.data_) {
    return Err(Code::kResourceExhausted, "no memory for a packed weight of {} bytes",
               packed.bytes_);
  }

  const bool to_bf16 = packed.dtype_ == DType::kBF16;
  if (layout == Layout::kRowMajor) {
    const int64_t stride = to_bf16 ? EvenUp(k) : k;
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t n = 0; n < packed.rows_; ++n) {
      const RowRef& ref = refs[static_cast<size_t>(n)];
      std::byte* out = packed.data_.get() + n * stride * SizeOf(packed.dtype_);
      float* const f32 = to_bf16 ? row.data() : reinterpret_cast<float*>(out);
      Dequantise(*ref.source, ref.row, 0, k, f32);
      if (to_bf16) cpu.round_row(f32, reinterpret_cast<uint16_t*>(out), k);
    }
    return packed;
  }

  std::vector<float> converted;
  std::vector<const void*> rows;
  const int64_t panel_elements = (to_bf16 ? EvenUp(k) : k) * kPanel;
  for (int64_t n0 = 0; n0 < packed.rows_; n0 += kPanel) {
    const int64_t count = std::min<int64_t>(kPanel, packed.rows_ - n0);
    const int64_t num_rows = transposed ? k : count;      // what is contiguous in memory
    const int64_t num_elements = transposed ? count : k;  // of each
    const int64_t first_element = transposed ? n0 : 0;
    const auto ref = [&](int64_t i) {
      return transposed ? RowRef{&parts[0], i} : refs[static_cast<size_t>(n0 + i)];
    };
    bool direct = true;  // every row already has the panel's type
    for (int64_t i = 0; i < num_rows; ++i) {
      const RowRef r = ref(i);
      direct = direct && r.source->weight.dtype == packed.dtype_ && !r.source->scales;
    }
    rows.resize(static_cast<size_t>(num_rows));
    if (!direct) converted.resize(static_cast<size_t>(num_rows * num_elements));
    for (int64_t i = 0; i < num_rows; ++i) {
      const RowRef r = ref(i);
      if (direct) {
        rows[static_cast<size_t>(i)] =
            static_cast<const std::byte*>(r.source->weight.data) +
            (r.row * r.source->weight.stride[0] + first_element) * SizeOf(packed.dtype_);
      } else {
        float* out = converted.data() + i * num_elements;
        Dequantise(*r.source, r.row, first_element, first_element + num_elements, out);
        rows[static_cast<size_t>(i)] = out;
      }
    }
    const kernels::PackParams params{
        rows.data(), static_cast<int32_t>(num_rows), num_elements,
        packed.data_.get() + n0 / kPanel * panel_elements * SizeOf(packed.dtype_)};
    if (transposed) {
      (!to_bf16 ? cpu.pack_rows_f32_f32
       : direct ? cpu.pack_rows_bf16_bf16
                : cpu.pack_rows_f32_bf16)(params);
    } else {
      (!to_bf16 ? cpu.pack_columns_f32_f32
       : direct ? cpu.pack_columns_bf16_bf16
                : cpu.pack_columns_f32_bf16)(params);
    }
  }
  return packed;
}

Result<PackedWeight> Pack(const WeightSource& source, Precision precision, Device& device,
                          const kernels::cpu::KernelTable& cpu, Layout layout) {
  return Pack(std::span(&source, 1), precision, device, cpu, layout);
}

Status AddOneDnn(PackedWeight& weight) {
  FATHOM_CHECK(weight.layout() == Layout::kPanels);
  if (!onednn::Serves(weight.rows(), weight.cols())) return {};
  FATHOM_ASSIGN_OR_RETURN(weight.onednn_, onednn::Weight::Make(weight));
  return {};
}

Status ToF32(const WeightSource& source, std::span<float> out) {
  FATHOM_TRY(CheckSource(source));
  const int64_t rows = source.weight.shape[0];
  const int64_t cols = source.weight.shape[1];
  FATHOM_CHECK(out.size() == static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    Dequantise(source, row, 0, cols, out.data() + row * cols);
  }
  return {};
}

namespace {

// Elements from one staged row of the input to the next; oneDNN takes dense ones.
int64_t InputStride(int64_t cols, bool onednn) { return onednn ? cols : host::StagedStride(cols); }

size_t StagedBytes(Precision precision, int64_t cols, int64_t rows, bool onednn) {
  const size_t element = precision == Precision::kBF16 ? sizeof(uint16_t) : sizeof(float);
  return static_cast<size_t>(rows * InputStride(cols, onednn)) * element;
}

// In bf16 the input is rounded, and oneDNN takes none but dense rows.
bool IsStaged(Precision precision, bool onednn) { return precision == Precision::kBF16 || onednn; }

}  // namespace

Plan MakePlan(Precision precision, int64_t rows, int64_t cols, int64_t max_rows, Gemm gemm) {
  Plan plan{.max_rows = max_rows};
  const bool onednn = gemm == Gemm::kOneDnn && onednn::Serves(rows, cols);
  if (IsStaged(precision, onednn)) {
    plan.workspace_bytes =
        Arena::Align(StagedBytes(precision, cols, max_rows, onednn)) + Arena::kAlignment;
  }
  return plan;
}

Plan MakePlan(const PackedWeight& weight, int64_t max_rows) {
  return MakePlan(weight.precision(), weight.rows(), weight.cols(), max_rows,
                  weight.onednn() != nullptr ? Gemm::kOneDnn : Gemm::kNative);
}

Status Run(const Plan& plan, const PackedWeight& weight, const Args& args, Context& context) {
  host::CheckMatrix(args.input, weight.cols(), "linear input");
  host::CheckMatrix(args.output, weight.rows(), "linear output");
  FATHOM_CHECK(weight.layout() == Layout::kPanels);
  FATHOM_CHECK(args.output.shape[0] <= plan.max_rows, "linear of {} rows, planned for {}",
               args.output.shape[0], plan.max_rows);
  const ArenaScope scope(context.arena);
  const onednn::Weight* const tiles = weight.onednn();
  void* staged = nullptr;
  if (IsStaged(weight.precision(), tiles != nullptr)) {
    staged = context.arena.Allocate(
        StagedBytes(weight.precision(), weight.cols(), args.output.shape[0], tiles != nullptr));
  }
  context.device.Execute(
      context.stream, [runtime = host::Runtime(context), w = &weight, args, tiles, staged] {
        const int64_t k = w->cols();
        const int64_t m = host::LiveRows(args.live_rows, args.output.shape[0]);
        const int64_t tiled_rows = tiles != nullptr ? onednn::TiledRows(m) : 0;
        const bool bf16 = w->precision() == Precision::kBF16;
        const int64_t stride = InputStride(k, tiles != nullptr);
        host::ForRows(runtime, bf16 ? m : tiled_rows, k * 6, [&](int64_t row) {
          const float* from =
              host::Row(args.input, args.input_rows != nullptr ? args.input_rows[row] : row);
          if (bf16) {
            runtime.cpu->round_row(from, static_cast<uint16_t*>(staged) + row * stride, k);
          } else {
            std::memcpy(static_cast<float*>(staged) + row * stride, from,
                        static_cast<size_t>(k) * sizeof(float));
          }
        });
        if (tiled_rows > 0) {
          tiles->Multiply(runtime, staged, tiled_rows, args.output.As<float>(),
                          args.output.stride[0], args.bias);
        }
        host::RowsView rest;
        if (bf16) {
          rest = {static_cast<uint16_t*>(staged) + tiled_rows * stride, stride, true};
        } else if (args.input_rows != nullptr) {
          rest = {args.input.data, args.input.stride[0], false, args.input_rows + tiled_rows};
        } else {
          rest = {host::Row(args.input, tiled_rows), args.input.stride[0], false};
        }
        host::Multiply(runtime, rest, *w, m - tiled_rows, host::Row(args.output, tiled_rows),
                       args.output.stride[0], args.bias);
      });
  return {};
}

}  // namespace fathom::ops::linear
