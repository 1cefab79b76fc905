#pragma once
// Builds one panel (gemm.h) from rows in memory.
#include <cstdint>

namespace fathom::kernels {

struct PackParams {
  const void* const* rows = nullptr;  // [num_rows] pointers; a null row is zeros
  int32_t num_rows = 0;
  int64_t num_elements = 0;  // of each row
  void* panel = nullptr;
  int64_t panel_stride = 0;  // bytes to the next panel, where a row has more than 32 elements
  // Columns only: rows of at least num_elements that are read soon, asked for piece by piece while
  // these are packed. A burst of requests would fill a core's few outstanding misses and leave the
  // memory idle afterwards.
  struct Ahead {
    const void* const* rows = nullptr;
    int32_t num_rows = 0;
  };
  Ahead ahead[2] = {};
};

// Columns: row i becomes column i (num_rows <= 32, k = num_elements).
// Rows: row i becomes k = i (k = num_rows); elements past 32 go on in the next panels. Rows are
// read one after the other, whole.
using PackFn = void (*)(const PackParams&);

}  // namespace fathom::kernels
