#pragma once
// What is known of one input: where it came from, which clock it kept, what was wrong with it.
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::diagnose {

// All times of the timeline are int64 nanoseconds. kNoTime marks a record whose input gives none.
inline constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min();

// Which clock an input's times were read from.
enum class ClockDomain : uint8_t {
  kNone,       // the input carries no times (Nsight Compute, a single scrape)
  kUnix,       // nanoseconds since 1970 UTC
  kWallLocal,  // calendar time in an unstated zone, perhaps without a year (logs, dmon)
  kMonotonic,  // since the machine's boot or another origin that a machine shares (perf, CUPTI)
  kRelative,   // since an origin that only this input knows
};
std::string_view ClockDomainName(ClockDomain domain);

// What can be wrong with a record. Each is counted per input, with the place of the first.
enum class Defect : uint8_t {
  kTruncated,        // the input ends inside a record or a compressed member
  kMalformed,        // not readable even by the recovery parser: dropped
  kRecovered,        // broken syntax, kept with the fields that could be read
  kControlByte,      // raw control byte (a line break in a name) inside a string: kept
  kBadEscape,        // "\q", a lone "\" of a Windows path, half a surrogate pair: kept literally
  kInvalidUtf8,      // bytes that are no UTF-8 in a string: kept as U+FFFD (each text once)
  kNonFinite,        // inf or nan where a number belongs: the field counts as absent
  kBigInteger,       // an id beyond int64: kept as its unsigned bits
  kBadTime,          // no readable time, or one outside +-73 years of its origin: dropped
  kZeroTime,         // a GPU record whose start is 0, as CUPTI writes when it lost it: dropped
  kNegativeTime,     // a duration below zero: kept as 0
  kUnmatchedBegin,   // a begin without its end: dropped
  kUnmatchedEnd,     // an end without its begin: dropped
  kBlankValue,       // a sentinel for "not measured" (DCGM's blank, dmon's "-"): not stored
  kUnknownRecord,    // well-formed, of a kind that this reader does not know: dropped
  kImpossibleValue,  // a number that its quantity cannot have (a use of 300 %): dropped
  kDropped,          // records that the producer itself says it lost
};
inline constexpr size_t kNumDefects = static_cast<size_t>(Defect::kDropped) + 1;
std::string_view DefectName(Defect defect);
// Whether a record with this defect is missing from the timeline.
bool DefectDropsRecord(Defect defect);

struct DefectCount {
  uint64_t count = 0;
  uint64_t first_offset = 0;  // byte offset in the uncompressed input, or row of a table
  static constexpr uint64_t kNoOffset = UINT64_MAX;  // found when the input was no longer at hand
};

// What a reader did with its input.
struct ReadStats {
  uint64_t bytes = 0;    // uncompressed
  uint64_t records = 0;  // events, rows, lines or samples that were seen
  uint64_t kept = 0;     // of these, stored in the timeline
  uint64_t ignored = 0;  // well-formed and of a kind that no rule needs (flow arrows, sort indexes)
  std::array<DefectCount, kNumDefects> defects{};

  void Count(Defect defect, uint64_t offset, uint64_t n = 1) {
    DefectCount& entry = defects[static_cast<size_t>(defect)];
    if (entry.count == 0) entry.first_offset = offset;
    entry.count += n;
  }
  const DefectCount& operator[](Defect defect) const {
    return defects[static_cast<size_t>(defect)];
  }
  // Records that are not in the timeline although they were meant to be.
  uint64_t dropped() const;
};

// One GPU, as far as the input describes it; 0 and "" mean "not said".
struct DeviceInfo {
  int32_t id = -1;
  std::string name;  // "NVIDIA H200"
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  int32_t num_sms = 0;
  int32_t warp_size = 0;
  int32_t max_threads_per_sm = 0;
  int32_t registers_per_sm = 0;
  int64_t shared_bytes_per_sm = 0;
  int64_t shared_bytes_per_block_optin = 0;
  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // peak
  int32_t numa_node = -1;         // of its PCIe slot; -1: not said

  // ROCm fills in the same fields: its wavefronts have 64 lanes.
  bool is_cuda() const { return warp_size != 64; }
};

struct ProcessGroup {
  std::string name;
  std::string description;
  std::vector<int32_t> ranks;
};

struct Source {
  std::string path;    // as the user named it; "-" for stdin
  std::string format;  // the reader's name: "kineto", "nsys-sqlite", "vllm-log", ...
  ReadStats stats;

  // Clock. Until AlignClocks (clock.h) the rows of this source are on the source's own clock;
  // afterwards they are on the timeline's: t_timeline = t_source + offset_ns, true to within
  // error_ns. The timeline's clock is that of the source with the most slices, so that its own
  // error is 0. Sources that nothing ties together keep aligned = false: no join across them.
  ClockDomain clock = ClockDomain::kNone;
  bool aligned = false;
  int64_t offset_ns = 0;
  int64_t error_ns = 0;
  int64_t resolution_ns = 1;  // granularity of the source's own times (a log's is a second)
  // How the offset was found: a key of the report's catalogue, with its arguments.
  std::string_view alignment;
  std::vector<std::pair<std::string_view, std::string>> alignment_args;
  int64_t utc_anchor_ns = kNoTime;  // UTC of the source's time 0, where the input states it

  // Extent of the records, on the clock described above.
  int64_t first_ns = kNoTime;
  int64_t last_ns = kNoTime;

  // Place in a distributed job; -1 when not stated.
  int32_t rank = -1;
  int32_t world_size = -1;
  std::vector<ProcessGroup> process_groups;
  std::vector<DeviceInfo> devices;
  int32_t numa_nodes = 0;  // of the machine, those with CPUs; 0: not said

  // How the recording was made: what it can show and how it disturbed the run.
  std::optional<bool> with_stack;  // Python stacks recorded: CPU times are inflated
  std::optional<bool> record_shapes;
  std::optional<bool> profile_memory;
  std::string producer;         // "cupti 130001", "roctracer 4.1", "Nsight Systems 2024.6"
  std::string schema;           // version of the format, where it has one
  bool threads_listed = false;  // gpu_threads_*: the driver named the processes, not the user
  int64_t overhead_ns = 0;      // CPU time inside the profiler's own overhead events
  uint64_t unknown_names = 0;   // records that the producer named "unknown"
};

}  // namespace fathom::diagnose
