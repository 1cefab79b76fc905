#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/cpu/table.h"

namespace fathom::kernels::cpu {

// All tables of this build, best first, whether or not this CPU can run them.
std::span<const KernelTable* const> AllTables();

// The extensions that a table was compiled with, by the names of the compiler's -m flags.
std::span<const std::string_view> Extensions(const KernelTable& table);

// Whether this CPU and operating system have every extension that the table was compiled with.
bool Supported(const KernelTable& table);

// The best table this CPU runs, or with a name (--cpu-isa) that one: unknown names, and names of
// what the CPU lacks, are errors that list the choices.
Result<const KernelTable*> Select(std::string_view forced);

}  // namespace fathom::kernels::cpu
