#pragma once
// dcgmi dmon: a table of samples under two header lines, "#Entity" with DCGM's short field names
// and "ID" with units; both come again every few rows. The columns depend on -e. Series are named
// as dcgm-exporter names the same fields, so that both inputs mean the same to a rule; a column
// that is not known keeps its short name. Rows of GPUs are read; those of MIG instances, switches
// and CPUs name no GPU and are left out.
//
// dcgmi writes no time: a row may begin with the one that a shell put there (seconds since 1970, or
// a date and time); without it rows of one GPU count as a second apart, dcgmi's default period.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kDcgmiReader;

}  // namespace fathom::diagnose
