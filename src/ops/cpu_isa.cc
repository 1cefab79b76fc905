#include "ops/cpu_isa.h"

#include "kernels/cpu/select.h"

namespace fathom::ops {

Result<const kernels::cpu::KernelTable*> SelectCpu(std::string_view isa) {
  return kernels::cpu::Select(isa);
}

std::string_view IsaOf(const kernels::cpu::KernelTable& table) { return table.isa; }

}  // namespace fathom::ops
