#include "diagnose/report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace fathom::diagnose {
namespace {

// Process ids of tracks that Fathom adds; those of the inputs are numbered from kFirstInput on.
constexpr int kFindingsPid = 1;
constexpr int kStepsPid = 2;
constexpr int kFirstInput = 10;
constexpr int64_t kLaneStride = 1'000'000;  // from the thread id of a lane to that of the next
constexpr size_t kPieceBytes = 1 << 20;
constexpr int64_t kLeastGapNs = 1000;  // shorter ones are the front end's own pace

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Complete events of one thread must nest, or the importer drops them: kernels of a stream that
// overlap, ranges that end a moment after their parent. Those go to further lanes of their track.
class Lanes {
 public:
  // The lane for an interval; earlier calls are taken to have started earlier, else it is another.
  size_t Place(int64_t start_ns, int64_t end_ns) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (start_ns < lane.last_start_ns) continue;
      while (!lane.open_ends_ns.empty() && lane.open_ends_ns.back() <= start_ns) {
        lane.open_ends_ns.pop_back();
      }
      if (!lane.open_ends_ns.empty() && end_ns > lane.open_ends_ns.back()) continue;
      lane.last_start_ns = start_ns;
      lane.open_ends_ns.push_back(end_ns);
      return i;
    }
    lanes_.push_back({start_ns, {end_ns}});
    return lanes_.size() - 1;
  }

 private:
  struct Lane {
    int64_t last_start_ns;
    std::vector<int64_t> open_ends_ns;  // innermost last
  };
  std::vector<Lane> lanes_;
};

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
  void NameThread(int pid, int64_t tid, std::string name) {
    Meta("thread_name", pid, tid, name);
    Thread& thread = threads_[{pid, tid}];
    thread.name = std::move(name);
    thread.named_lanes = 1;
  }
  void Complete(int pid, int64_t tid, int64_t start_ns, int64_t dur_ns, std::string_view quoted,
                std::string_view category, std::string_view args = {}) {
    Thread& thread = threads_[{pid, tid}];
    const size_t lane = thread.lanes.Place(start_ns, start_ns + dur_ns);
    tid += static_cast<int64_t>(lane) * kLaneStride;
    if (lane >= thread.named_lanes) {
      Meta("thread_name", pid, tid, fmt::format("{} ({})", thread.name, lane + 1));
      thread.named_lanes = lane + 1;
    }
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
      NameThread(kFindingsPid, tid, fmt::format("{} ({})", f.id, SeverityName(f.severity)));
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
      NameThread(kStepsPid, static_cast<int64_t>(2 * gpu + 1), fmt::format("steps, GPU {}", gpu));
      NameThread(kStepsPid, static_cast<int64_t>(2 * gpu + 2),
                 fmt::format("idle by cause, GPU {}", gpu));
    }
    for (size_t i = 0; i < d_.steps.all.size(); ++i) {
      const Step& step = d_.steps.all[i];
      const auto tid = static_cast<int64_t>(2 * step.gpu + 1);
      Complete(kStepsPid, tid, step.start_ns, step.wall_ns(),
               Quoted(fmt::format("{} {}", PhaseName(step.phase), i)), "step");
      if (step.num_work == 0) continue;  // no GPU rows: nobody knows when it idled
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
      NameThread(it->second, i,
                 gpu ? fmt::format("stream {}", track.stream)
                     : fmt::format("{} {}", t_.Name(track.thread_name), track.tid));
    }
    std::vector<std::string> quoted(t_.strings.size());
    for (TrackId track = 0; track < t_.tracks.size(); ++track) {
      for (const uint32_t s : d_.index->thread(track)) {
        std::string& name = quoted[t_.slices.name[s]];
        if (name.empty()) name = Quoted(t_.SliceName(s));
        Complete(pid_of[track], track, t_.slices.start_ns[s], t_.slices.dur_ns[s], name,
                 CategoryName(t_.slices.category[s]));
      }
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

  struct Thread {
    std::string name;
    Lanes lanes;
    size_t named_lanes = 0;
  };

  const Diagnosis& d_;
  const Timeline& t_;
  Language language_;
  std::map<std::pair<int, int64_t>, Thread> threads_;  // by pid, tid of the first lane
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
