#include "kernels/cpu/select.h"

#include <array>

namespace fathom::kernels::cpu {
namespace {

#if defined(__x86_64__)
constexpr std::array kAll = {&avx512bf16::kTable, &avx512::kTable, &avx2::kTable, &scalar::kTable};
#else
constexpr std::array kAll = {&scalar::kTable};
#endif

// The extensions of `table`, as src/kernels/CMakeLists.txt names them, that this CPU lacks.
std::string Missing([[maybe_unused]] const KernelTable& table) {
  std::string missing;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const std::string_view isa = table.isa;
  const auto need = [&missing](bool present, std::string_view name) {
    if (!present) missing += (missing.empty() ? "" : " ") + std::string(name);
  };
  if (isa == "scalar") return missing;
  need(__builtin_cpu_supports("avx2") != 0, "avx2");
  need(__builtin_cpu_supports("fma") != 0, "fma");
  if (isa == "avx2") return missing;
  need(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  need(__builtin_cpu_supports("avx512bw") != 0, "avx512bw");
  need(__builtin_cpu_supports("avx512vl") != 0, "avx512vl");
  need(__builtin_cpu_supports("avx512dq") != 0, "avx512dq");
  if (isa == "avx512") return missing;
  need(__builtin_cpu_supports("avx512bf16") != 0, "avx512bf16");
#endif
  return missing;
}

std::string Names() {
  std::string names;
  for (const KernelTable* table : kAll) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", table->isa,
                         Missing(*table).empty() ? "" : " (not on this CPU)");
  }
  return names;
}

}  // namespace

std::span<const KernelTable* const> AllTables() { return kAll; }

bool Supported(const KernelTable& table) { return Missing(table).empty(); }

Result<const KernelTable*> Select(std::string_view forced) {
  for (const KernelTable* table : kAll) {
    const std::string missing = Missing(*table);
    if (forced.empty() && missing.empty()) return table;
    if (forced == table->isa) {
      if (missing.empty()) return table;
      return Err(Code::kUnsupported, "--cpu-isa {}: this CPU lacks {}; built are {}", forced,
                 missing, Names());
    }
  }
  return Err(Code::kInvalidArgument, "--cpu-isa {}: unknown; expected one of {}", forced, Names());
}

}  // namespace fathom::kernels::cpu
