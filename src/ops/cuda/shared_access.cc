#include "ops/cuda/shared_access.h"

#include <algorithm>

#include "kernels/cuda/swizzle.h"

namespace fathom::ops {
namespace {

using cost::CountWavefronts;
using cost::Wavefronts;
using Offset = uint32_t (*)(uint32_t row, uint32_t chunk);

constexpr int kWarps = 4;        // of a warpgroup
constexpr uint32_t kChunks = 8;  // of 16 bytes in a row of 128
constexpr uint32_t kPieceRows = 8;

uint32_t PlainOffset(uint32_t row, uint32_t chunk) {
  return row * kernels::cuda::kSwizzleRowBytes + chunk * 16;
}

// A matrix operand of `rows` rows of 128 bytes, read as pieces of 8 rows x 16 bytes: both the
// K-major and the MN-major operands of wgmma are made of these.
Wavefronts Operand(uint32_t rows, Offset offset) {
  Wavefronts total;
  for (uint32_t row = 0; row < rows; row += kPieceRows) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      std::vector<uint32_t> addresses;
      for (uint32_t i = 0; i < kPieceRows; ++i) addresses.push_back(offset(row + i, chunk));
      total += CountWavefronts(addresses, 16);
    }
  }
  return total;
}

// DecodeConsumer::LoadQueries.
Wavefronts StoreQueries(const AttentionKernel& kernel, Offset offset) {
  const int consumers = kernel.latent() ? 256 : 128;
  const int row_chunks = kernel.dim_qk / 64 * 8;
  const int threads_per_row = std::min(consumers / kernel.rows, row_chunks);
  Wavefronts total;
  for (int first = 0; first < row_chunks; first += threads_per_row) {
    for (int warp = 0; warp < consumers / 32; ++warp) {
      std::vector<uint32_t> addresses;
      for (int thread = warp * 32; thread < warp * 32 + 32; ++thread) {
        const int row = thread / threads_per_row;
        const int chunk = first + thread % threads_per_row;
        if (row >= kernel.rows || chunk >= row_chunks) continue;
        addresses.push_back(static_cast<uint32_t>(chunk / 8 * kernel.rows * 128) +
                            offset(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk % 8)));
      }
      total += CountWavefronts(addresses, 16);
    }
  }
  return total;
}

// DecodeConsumer::Softmax: stmatrix of 8 x 8 pieces [keys, rows], each stored as 8 rows.
Wavefronts StoreProbabilities(int own_rows, Offset offset) {
  Wavefronts total;
  for (int warp = 0; warp < kWarps; ++warp) {
    for (int j = 0; j < own_rows / 8; j += 2) {
      std::vector<uint32_t> addresses;
      const int lanes = own_rows == 8 ? 16 : 32;
      for (int lane = 0; lane < lanes; ++lane) {
        const int piece = lane / 8;
        const int row = own_rows == 8 ? lane % 8 : j * 8 + piece / 2 * 8 + lane % 8;
        addresses.push_back(
            offset(static_cast<uint32_t>(row), static_cast<uint32_t>(warp * 2 + piece % 2)));
      }
      total += CountWavefronts(addresses, 16);
    }
  }
  return total;
}

// One word a thread, thread after thread.
Wavefronts WordsInOrder(int times) {
  Wavefronts total;
  for (int i = 0; i < times * kWarps; ++i) total += cost::StridedWavefronts(4, 4);
  return total;
}

// Row i of a thread: i/2*8 + lane%4*2 + i%2. `lanes` threads of each warp touch word
// (row * words_per_row) of an array.
Wavefronts RowWords(int own_rows, int lanes, uint32_t words_per_row, int times) {
  Wavefronts total;
  for (int warp = 0; warp < kWarps; ++warp) {
    for (int i = 0; i < own_rows / 4; ++i) {
      std::vector<uint32_t> addresses;
      for (int lane = 0; lane < lanes; ++lane) {
        addresses.push_back(static_cast<uint32_t>(i / 2 * 8 + lane % 4 * 2 + i % 2) *
                            words_per_row * 4);
      }
      for (int t = 0; t < times; ++t) total += CountWavefronts(addresses, 4);
    }
  }
  return total;
}

Wavefronts Times(const Wavefronts& wavefronts, int times) {
  return {wavefronts.count * times, wavefronts.ideal * times};
}

SharedAccess OperandAccess(const char* what, int rows, int times) {
  const auto count = static_cast<uint32_t>(rows);
  return {what, true, Times(Operand(count, &kernels::cuda::SwizzledOffset), times),
          Times(Operand(count, &PlainOffset), times)};
}

}  // namespace

std::vector<SharedAccess> DecodeSharedAccesses(const AttentionKernel& kernel) {
  if (kernel.kind != KernelKind::kWarpgroups) return {};
  const int groups = kernel.latent() ? 2 : 1;
  const int own_rows = kernel.rows / groups;
  const int qk_blocks = (kernel.dim_qk / 64 + groups - 1) / groups;  // of the busier warpgroup
  const int v_blocks = kernel.dim_v / 64 / groups;
  std::vector<SharedAccess> all = {
      {"queries stored", false, StoreQueries(kernel, &kernels::cuda::SwizzledOffset),
       StoreQueries(kernel, &PlainOffset)},
      OperandAccess("keys as wgmma operand (K-major)", kernel.keys, qk_blocks),
      OperandAccess("queries as wgmma operand (K-major)", kernel.rows, qk_blocks),
      {"probabilities stored (stmatrix)", true,
       StoreProbabilities(own_rows, &kernels::cuda::SwizzledOffset),
       StoreProbabilities(own_rows, &PlainOffset)},
      OperandAccess("values as wgmma operand (MN-major)", kernel.keys, v_blocks),
      OperandAccess("probabilities as wgmma operand (K-major)", kernel.rows, v_blocks),
  };
  const auto add = [&all](const char* what, const Wavefronts& wavefronts) {
    all.push_back({what, true, wavefronts, wavefronts});  // never swizzled
  };
  if (groups == 2) add("partial scores swapped", WordsInOrder(2 * own_rows / 2));
  add("row maxima stored", RowWords(own_rows, 4, 1, 1));
  add("row maxima read", RowWords(own_rows, 32, 1, 4));
  if (groups == 2) {
    add("rescale factors stored", RowWords(own_rows, 4, 2, 1));
    add("rescale factors read", RowWords(kernel.rows, 32, 2, 1));
  }
  return all;
}

std::vector<SharedAccess> PrefillSharedAccesses(const AttentionKernel& kernel) {
  if (kernel.kind != KernelKind::kWarpgroups) return {};
  constexpr int kGroupRows = 64;
  std::vector<SharedAccess> all = {
      OperandAccess("queries as wgmma operand (K-major)", kGroupRows, kernel.dim_qk / 64),
      OperandAccess("keys as wgmma operand (K-major)", kernel.keys, kernel.dim_qk / 64),
      OperandAccess("values as wgmma operand (MN-major)", kernel.keys, kernel.dim_v / 64),
  };
  const Wavefronts word = WordsInOrder(1);
  all.push_back({"row sums stored to order instructions", true, word, word});
  return all;
}

Wavefronts MainLoopWavefronts(const std::vector<SharedAccess>& accesses) {
  Wavefronts total;
  for (const SharedAccess& access : accesses) {
    if (access.main_loop) total += access.found;
  }
  return total;
}

}  // namespace fathom::ops
