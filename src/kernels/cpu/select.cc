#include "kernels/cpu/select.h"

#include <array>

namespace fathom::kernels::cpu {
namespace {

#if defined(__x86_64__)
constexpr std::array kAll = {&avx512bf16::kTable, &avx512::kTable, &avx2::kTable, &scalar::kTable};
#else
constexpr std::array kAll = {&scalar::kTable};
#endif

// Each ISA file has the extensions of those before it.
constexpr std::array<std::string_view, 7> kExtensions = {
    "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16"};

[[maybe_unused]] bool Has(std::string_view extension) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (extension == "avx2") return __builtin_cpu_supports("avx2") != 0;
  if (extension == "fma") return __builtin_cpu_supports("fma") != 0;
  if (extension == "avx512f") return __builtin_cpu_supports("avx512f") != 0;
  if (extension == "avx512bw") return __builtin_cpu_supports("avx512bw") != 0;
  if (extension == "avx512vl") return __builtin_cpu_supports("avx512vl") != 0;
  if (extension == "avx512dq") return __builtin_cpu_supports("avx512dq") != 0;
  if (extension == "avx512bf16") return __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return false;
}

std::string Missing(const KernelTable& table) {
  std::string missing;
  for (const std::string_view extension : Extensions(table)) {
    if (!Has(extension)) missing += fmt::format("{}{}", missing.empty() ? "" : " ", extension);
  }
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

std::span<const std::string_view> Extensions(const KernelTable& table) {
  const std::string_view isa = table.isa;
  const size_t count = isa == "avx512bf16" ? 7 : isa == "avx512" ? 6 : isa == "avx2" ? 2 : 0;
  return std::span(kExtensions).first(count);
}

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
