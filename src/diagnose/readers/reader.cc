#include "diagnose/readers/reader.h"

#include <fmt/ranges.h>

#include <vector>

#include "diagnose/clock.h"
#include "diagnose/readers/access.h"
#include "diagnose/readers/dcgmi.h"
#include "diagnose/readers/dmon.h"
#include "diagnose/readers/experts.h"
#include "diagnose/readers/kineto.h"
#include "diagnose/readers/log.h"
#include "diagnose/readers/ncu.h"
#include "diagnose/readers/nsys.h"
#include "diagnose/readers/otlp.h"
#include "diagnose/readers/perf.h"
#include "diagnose/readers/prometheus.h"
#include "diagnose/readers/samples.h"
#include "diagnose/readers/schedule.h"

namespace fathom::diagnose {
namespace {

// In the order of the error message that lists them.
const Reader kReaders[] = {kKinetoReader,     kNsysReader,   kNcuReader,     kLogReader,
                           kPrometheusReader, kDmonReader,   kDcgmiReader,   kPerfScriptReader,
                           kPerfC2cReader,    kOtlpReader,   kExpertsReader, kScheduleReader,
                           kAccessReader,     kSamplesReader};

// Recordings that only their producer's tool can open, told apart by their first bytes.
struct Recording {
  std::string_view name;
  std::string_view export_command;
  bool (*matches)(std::string_view prefix);
};

bool IsPerfetto(std::string_view prefix) {
  // A Trace message is a run of TracePackets: field 1, length-delimited (tag 0x0a), each holding
  // small tags; text never starts so, since 0x0a is followed by a length and another tag.
  if (prefix.size() < 4 || prefix[0] != '\x0a') return false;
  size_t at = 0;
  for (int packet = 0; packet < 3 && at < prefix.size(); ++packet) {
    if (prefix[at] != '\x0a') return false;
    uint64_t length = 0;
    int shift = 0;
    for (++at; at < prefix.size() && shift < 35; shift += 7) {
      const auto byte = static_cast<unsigned char>(prefix[at++]);
      length |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    if (length == 0 || at >= prefix.size()) return false;
    // The first tag of the packet: a known wire type and a field that TracePacket has.
    const auto tag = static_cast<unsigned char>(prefix[at]);
    if ((tag & 7) == 3 || (tag & 7) == 4 || (tag & 7) > 5 || tag >> 3 == 0) return false;
    at += length;
  }
  return true;
}

constexpr Recording kRecordings[] = {
    {"Nsight Systems report (.nsys-rep)",
     "nsys export --type sqlite --output report.sqlite report.nsys-rep",
     [](std::string_view prefix) {
       // Texts may speak of Nsight Systems, too: the report is binary.
       const std::string_view head = prefix.substr(0, 4096);
       return prefix.starts_with("QDSSARGO") ||
              (head.find('\0') != std::string_view::npos &&
               head.find("Nsight Systems") != std::string_view::npos);
     }},
    {"Nsight Compute report (.ncu-rep)",
     "ncu --import report.ncu-rep --page raw --csv > report.csv",
     [](std::string_view prefix) { return prefix.starts_with("NVR"); }},
    {"perf recording (perf.data)", "perf script -i perf.data > perf.txt",
     [](std::string_view prefix) {
       return prefix.starts_with("PERFILE2") || prefix.starts_with("2ELIFREP");
     }},
    {"Perfetto protobuf trace", "traceconv json trace.perfetto-trace trace.json", IsPerfetto},
};

}  // namespace

std::span<const Reader> Readers() { return kReaders; }

Result<const Reader*> FindReader(const Input& input) {
  const std::string_view prefix = input.prefix();
  const Reader* best = nullptr;
  int confidence = 0;
  for (const Reader& reader : kReaders) {
    const int sure = reader.detect(prefix);
    if (sure > confidence) {
      confidence = sure;
      best = &reader;
    }
  }
  if (best == nullptr) {
    for (const Recording& recording : kRecordings) {
      if (recording.matches(prefix)) {
        return Err(
            Code::kUnsupported,
            "{}: found a recording that only its own tool reads, {}; export it with\n  {}\nand "
            "give Fathom the result",
            input.name(), recording.name, recording.export_command);
      }
    }
    if (input.name().starts_with("http://")) {
      const size_t page = prefix.find('\n') + 1;  // behind the line that Scrape puts in front
      return Err(
          Code::kInvalidArgument,
          "{}: expected a server's metrics as Prometheus text, found a page that begins with "
          "'{}'; vLLM, SGLang and Fathom have them at /metrics (SGLang with --enable-metrics)",
          input.name(), prefix.substr(page, std::min<size_t>(prefix.find('\n', page) - page, 60)));
    }
    std::vector<std::string_view> known;
    for (const Reader& reader : kReaders) known.push_back(reader.artifact);
    return Err(Code::kInvalidArgument,
               "{}: expected one of the artifacts below, plain, .gz or .zst, found {}{}\n  {}\n"
               "docs/diagnose.md says how to record each of them",
               input.name(), prefix.empty() ? "no data" : "none of them",
               input.damaged() ? " (the compressed stream is damaged)" : "",
               fmt::join(known, "\n  "));
  }
  return best;
}

Result<SourceId> ReadArtifact(Input& input, Timeline& timeline) {
  FATHOM_ASSIGN_OR_RETURN(const Reader* const best, FindReader(input));
  const SourceId source = timeline.AddSource(input.name(), std::string(best->format));
  if (Status read = best->read(input, timeline, source); !read) {
    return tl::unexpected(WithContext(std::move(read.error()), input.name()));
  }
  return source;
}

Result<Timeline> ReadArtifacts(std::span<const std::string> paths,
                               const std::function<void(std::string_view, double)>& progress,
                               const std::function<Result<Input>(const std::string&)>& open) {
  Timeline timeline;
  for (const std::string& path : paths) {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandPaths({&path, 1}));
    const size_t read_before = timeline.sources.size();
    for (const std::string& file : files) {
      FATHOM_ASSIGN_OR_RETURN(Input input, open(file));
      // A folder may hold anything; a file that was named must be an artifact.
      if (const auto reader = FindReader(input); !reader && file != path) {
        const bool known = reader.error().code == Code::kUnsupported;
        timeline.skipped.push_back({file, known ? reader.error().message : ""});
        continue;
      }
      if (progress) input.set_progress([&](double share) { progress(file, share); });
      FATHOM_TRY(ReadArtifact(input, timeline));
    }
    if (timeline.sources.size() == read_before) {
      return Err(
          Code::kNotFound,
          "{}: expected a directory with artifacts, found {} files of other kinds, the first "
          "of them {}",
          path, files.size(), files.front());
    }
  }
  AlignClocks(timeline);
  return timeline;
}

}  // namespace fathom::diagnose
