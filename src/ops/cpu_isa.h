#pragma once
// The choice of CPU kernels, for layers that do not see kernels/.
#include <string_view>

#include "base/result.h"

namespace fathom::kernels::cpu {
struct KernelTable;
}  // namespace fathom::kernels::cpu

namespace fathom::ops {

// The best table that this CPU runs, or with a name (--cpu-isa) that one; an unknown name, or one
// that this CPU lacks, is an error that lists the choices.
Result<const kernels::cpu::KernelTable*> SelectCpu(std::string_view isa);
// "avx512bf16", ...
std::string_view IsaOf(const kernels::cpu::KernelTable& table);

}  // namespace fathom::ops
