#include "diagnose/report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace fathom::diagnose {
namespace {

// Process ids of tracks that Fathom adds; those of the inputs are numbered from kFirstInput on.
constexpr int kFindingsPid = 1;
constexpr int kStepsPid = 2;
constexpr int kFirstInput = 10;
constexpr size_t kPieceBytes = 1 << 20;
constexpr int64_t kLeastGapNs = 1000;  // shorter ones are the front end's own pace

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const Diagnosis& d, Language language,
         const std::function<Status(std::string_view)>& write)
      : d_(d), t_(*d.timeline), language_(language), write_(write) {}

  Status Run() {
    out_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
    Begin();
    Findings();
    StepsAndGaps();
    Inputs();
    Counters();
    out_ += "]}\n";
    Flush();
    return status_;
  }

 private:
  // Times are written relative to the first record: doubles of microseconds since 1970 lose the ns.
  void Begin() {
    base_ = INT64_MAX;
    for (const int64_t t : t_.slices.start_ns) base_ = std::min(base_, t);
    for (const int64_t t : t_.samples.t_ns) {
      if (t != kNoTime) base_ = std::min(base_, t);
    }
    if (base_ == INT64_MAX) base_ = 0;
  }

  void Flush() {
    if (status_) status_ = write_(out_);
    out_.clear();
  }

  void Separator() {
    if (out_.size() >= kPieceBytes) Flush();
    if (!first_) out_ += ",\n";
    first_ = false;
  }
  void Meta(std::string_view what, int pid, int64_t tid, std::string_view name) {
    Separator();
    fmt::format_to(std::back_inserter(out_),
                   R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what, pid,
                   tid, Quoted(name));
  }
  void Complete(int pid, int64_t tid, int64_t start_ns, int64_t dur_ns, std::string_view quoted,
                std::string_view category, std::string_view args = {}) {
    Separator();
    fmt::format_to(
        std::back_inserter(out_),
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}{}}})", quoted,
        category, pid, tid, static_cast<double>(start_ns - base_) / 1e3,
        static_cast<double>(dur_ns) / 1e3, args);
  }

  void Findings() {
    if (d_.findings.findings.empty()) return;
    Meta("process_name", kFindingsPid, 0, "fathom findings");
    int64_t tid = 0;
    for (const Finding& f : d_.findings.findings) {
      ++tid;
      Meta("thread_name", kFindingsPid, tid,
           fmt::format("{} ({})", f.id, SeverityName(f.severity)));
      for (const Evidence& e : f.evidence) {
        if (e.slice == kNone) continue;
        const std::string args =
            fmt::format(R"(,"args":{{"finding":{},"evidence":{},"change":{}}})",
                        Quoted(Say(language_, f.title)), Quoted(Say(language_, e.text)),
                        Quoted(Say(language_, f.change)));
        Complete(kFindingsPid, tid, t_.slices.start_ns[e.slice], t_.slices.dur_ns[e.slice],
                 Quoted(t_.SliceName(e.slice)), "finding", args);
      }
    }
  }

  void StepsAndGaps() {
    if (d_.steps.all.empty()) return;
    Meta("process_name", kStepsPid, 0, "fathom steps");
    for (size_t gpu = 0; gpu < std::max<size_t>(d_.index->gpus().size(), 1); ++gpu) {
      Meta("thread_name", kStepsPid, static_cast<int64_t>(2 * gpu + 1),
           fmt::format("steps, GPU {}", gpu));
      Meta("thread_name", kStepsPid, static_cast<int64_t>(2 * gpu + 2),
           fmt::format("idle by cause, GPU {}", gpu));
    }
    for (size_t i = 0; i < d_.steps.all.size(); ++i) {
      const Step& step = d_.steps.all[i];
      const auto tid = static_cast<int64_t>(2 * step.gpu + 1);
      Complete(kStepsPid, tid, step.start_ns, step.wall_ns(),
               Quoted(fmt::format("{} {}", PhaseName(step.phase), i)), "step");
      for (const Gap& gap : d_.accounts[i].gaps) {
        if (gap.length_ns() < kLeastGapNs) continue;
        Complete(kStepsPid, tid + 1, gap.start_ns, gap.length_ns(), Quoted(GapCauseName(gap.cause)),
                 "gap");
      }
    }
  }

  // A process an input and an operating-system process or GPU, a thread a track.
  void Inputs() {
    std::map<std::tuple<SourceId, bool, int64_t>, int> pids;
    std::vector<int> pid_of(t_.tracks.size());
    for (TrackId i = 0; i < t_.tracks.size(); ++i) {
      const Track& track = t_.tracks[i];
      const bool gpu = track.kind == TrackKind::kGpuStream;
      const int64_t owner = gpu ? track.device : track.pid;
      const auto [it, added] =
          pids.try_emplace({track.source, gpu, owner}, kFirstInput + static_cast<int>(pids.size()));
      pid_of[i] = it->second;
      if (added) {
        Meta("process_name", it->second, 0,
             fmt::format("{} {} ({})", gpu ? "GPU" : "process", owner,
                         t_.sources[track.source].path));
      }
      Meta("thread_name", it->second, i,
           gpu ? fmt::format("stream {}", track.stream)
               : fmt::format("{} {}", t_.Name(track.thread_name), track.tid));
    }
    std::vector<std::string> quoted(t_.strings.size());
    for (size_t s = 0; s < t_.slices.size(); ++s) {
      std::string& name = quoted[t_.slices.name[s]];
      if (name.empty()) name = Quoted(t_.SliceName(s));
      const TrackId track = t_.slices.track[s];
      Complete(pid_of[track], track, t_.slices.start_ns[s], t_.slices.dur_ns[s], name,
               CategoryName(t_.slices.category[s]));
    }
  }

  void Counters() {
    for (size_t i = 0; i < t_.samples.size(); ++i) {
      const Series& series = t_.series[t_.samples.series[i]];
      const Source& source = t_.sources[series.source];
      const int64_t t = t_.samples.t_ns[i];
      if (!source.aligned || t == kNoTime || !std::isfinite(t_.samples.value[i])) continue;
      if (series.kind == SeriesKind::kHistogramBucket) continue;
      std::string name(t_.Name(series.name));
      if (series.device >= 0) name += fmt::format(" {}", series.device);
      Separator();
      fmt::format_to(std::back_inserter(out_),
                     R"({{"ph":"C","name":{},"pid":0,"ts":{:.3f},"args":{{"value":{}}}}})",
                     Quoted(name), static_cast<double>(t - base_) / 1e3, t_.samples.value[i]);
    }
  }

  const Diagnosis& d_;
  const Timeline& t_;
  Language language_;
  const std::function<Status(std::string_view)>& write_;
  Status status_;
  std::string out_;  // what is not written yet
  int64_t base_ = 0;
  bool first_ = true;
};

}  // namespace

Status WritePerfettoTrace(const Diagnosis& diagnosis, Language language,
                          const std::function<Status(std::string_view)>& write) {
  return Writer(diagnosis, language, write).Run();
}

}  // namespace fathom::diagnose
