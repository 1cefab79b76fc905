#include "diagnose/readers/reader.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "diagnose/clock.h"
#include "diagnose/readers/access.h"
#include "diagnose/readers/copies.h"
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
    if (timeline.sources.back().stats.kept == 0) timeline.sources.pop_back();
    return tl::unexpected(WithContext(std::move(read.error()), input.name()));
  }
  return source;
}

namespace {

// Reads inputs one after another, each recording once.
class RecordingSet {
 public:
  using Progress = std::function<void(std::string_view, double)>;
  RecordingSet(std::map<std::string, CopyOf> copies, Timeline& timeline, const Progress& progress)
      : copies_(std::move(copies)), timeline_(timeline), progress_(progress) {}

  Status Read(Input input) {
    FATHOM_TRY(FindReader(input));
    if (const auto copy = copies_.find(input.name()); copy != copies_.end()) {
      return Err(Code::kUnsupported, "{}: the same recording as {}{}", input.name(),
                 copy->second.whole, copy->second.cut_short ? ", cut short" : "");
    }
    // What can be read but once, from a pipe or an address, is known by how it begins.
    std::error_code error;
    const Seen here = {input.name(), std::filesystem::is_regular_file(input.name(), error)};
    const std::string_view prefix = input.prefix();
    const std::pair beginning(std::hash<std::string_view>()(prefix), prefix.size());
    const auto seen = seen_.find(beginning);
    if (seen != seen_.end() && !(here.is_file && seen->second.is_file)) {
      return Err(Code::kUnsupported, "{}: the same recording as {}", here.path, seen->second.path);
    }
    if (progress_) {
      input.set_progress([&](double share) { progress_(input.name(), share); });
    }
    FATHOM_TRY(ReadArtifact(input, timeline_));
    seen_.emplace(beginning, here);
    return {};
  }

 private:
  struct Seen {
    std::string path;
    bool is_file;
  };
  std::map<std::string, CopyOf> copies_;
  Timeline& timeline_;
  const Progress& progress_;
  std::map<std::pair<size_t, size_t>, Seen> seen_;  // by hash and size of a beginning
};

}  // namespace

Result<Timeline> ReadArtifacts(std::span<const std::string> paths,
                               const std::function<void(std::string_view, double)>& progress,
                               const std::function<Result<Input>(const std::string&)>& open) {
  Timeline timeline;
  std::vector<std::vector<std::string>> files_of;  // [path]
  std::vector<std::string> all;
  std::set<std::filesystem::path> taken;  // a folder's file may be named beside it
  for (const std::string& path : paths) {
    FATHOM_ASSIGN_OR_RETURN(std::vector<std::string> files, ExpandPaths({&path, 1}));
    std::erase_if(files, [&](const std::string& file) {
      std::error_code error;
      if (!std::filesystem::is_regular_file(file, error)) return false;
      const auto where = std::filesystem::canonical(file, error);
      return !error && !taken.insert(where).second;
    });
    all.insert(all.end(), files.begin(), files.end());
    files_of.push_back(std::move(files));
  }
  RecordingSet recordings(FindCopies(all, open), timeline, progress);
  const auto read = [&](const std::string& file) -> Status {
    FATHOM_ASSIGN_OR_RETURN(Input input, open(file));
    return recordings.Read(std::move(input));
  };
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    const std::vector<std::string>& files = files_of[i];
    if (files.empty()) continue;  // all of it belongs to another argument
    size_t num_read = 0;
    std::optional<Error> damaged;
    for (const std::string& file : files) {
      Status status = read(file);
      if (status) {
        ++num_read;
        continue;
      }
      // A folder may hold anything; a file that was named must be an artifact that can be read.
      if (file == path) return tl::unexpected(std::move(status.error()));
      const bool foreign = status.error().code == Code::kInvalidArgument;
      timeline.skipped.push_back({file, foreign ? "" : status.error().message});
      if (!foreign && !damaged) damaged = std::move(status.error());
    }
    if (num_read > 0) continue;
    if (damaged && files.size() == 1) return tl::unexpected(*damaged);
    return Err(Code::kNotFound,
               "{}: expected a directory with artifacts, found {} files of other kinds, the first "
               "of them {}{}",
               path, files.size(), files.front(),
               damaged ? fmt::format("; {}", damaged->message) : "");
  }
  AlignClocks(timeline);
  return timeline;
}

}  // namespace fathom::diagnose
