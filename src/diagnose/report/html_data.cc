// What the HTML page draws, gathered into one JSON object.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "diagnose/report/colours.h"
#include "diagnose/report/describe.h"
#include "diagnose/report/html_report.h"
#include "diagnose/report/json_report.h"
#include "diagnose/understand/flame.h"
#include "diagnose/understand/heatmap.h"
#include "diagnose/understand/roofline.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::ordered_json;

// A page of some megabytes opens at once; more slices than this would not.
constexpr size_t kMaxSlices = 30'000;
constexpr size_t kMaxSteps = 240;
constexpr size_t kMaxPoints = 400;    // of a metric lane
constexpr size_t kMinLogPoints = 3;   // of a log's lane: fewer are no course
constexpr int kMaxDepth = 12;         // of nested CPU slices
constexpr double kMarginShare = 0.1;  // around a step

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::vector<uint32_t> ByWall(const Diagnosis& d, const Bucket& bucket) {
  std::vector<uint32_t> order = bucket.counted;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return d.accounts[a].wall_ns < d.accounts[b].wall_ns; });
  return order;
}

// The stretches of time that the timeline shows: each phase's typical and slowest step and every
// step that a finding points into.
class TimelineData {
 public:
  explicit TimelineData(const Diagnosis& d) : d_(d), t_(*d.timeline) {}

  Json Build() {
    ChooseSteps();
    if (windows_.empty()) return nullptr;
    base_ = windows_.begin()->first;
    Json out;
    for (const auto& [start, end] : windows_) {
      if (slices_.size() >= kMaxSlices) break;
      AddWindow(start, end);
    }
    AddEvidence();
    AddGapsAndSteps();
    out["base_us"] = static_cast<double>(base_) / 1e3;
    out["tracks"] = tracks_;
    out["names"] = names_;
    out["slices"] = slices_;
    out["note"] = chosen_.empty() ? "html.timeline.whole" : "html.timeline.note";
    return out;
  }

 private:
  void Choose(uint32_t number) {
    const Step& step = d_.steps.all[number];
    const auto margin = static_cast<int64_t>(kMarginShare * static_cast<double>(step.wall_ns()));
    chosen_.insert(number);
    int64_t start = step.start_ns - margin;
    int64_t end = step.end_ns + margin;
    // Windows that touch become one.
    auto it = windows_.upper_bound(end);
    while (it != windows_.begin()) {
      --it;
      if (it->second < start) break;
      start = std::min(start, it->first);
      end = std::max(end, it->second);
      it = windows_.erase(it);
    }
    windows_[start] = end;
  }

  void ChooseSteps() {
    for (const Finding& f : d_.findings.findings) {
      for (const Evidence& e : f.evidence) {
        if (e.slice == kNone) continue;
        const int64_t t = t_.slices.start_ns[e.slice];
        for (uint32_t i = 0; i < d_.steps.all.size(); ++i) {
          const Step& step = d_.steps.all[i];
          if (step.start_ns <= t && t <= step.end_ns) {
            Choose(i);
            break;
          }
        }
      }
    }
    for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kMixed, Phase::kUnknown}) {
      const Bucket* bucket = d_.steps.Main(phase);
      if (bucket == nullptr || bucket->counted.empty()) continue;
      const std::vector<uint32_t> order = ByWall(d_, *bucket);
      Choose(order[order.size() / 2]);
      Choose(order.back());
    }
    if (windows_.empty()) ChooseWithoutSteps();
  }

  // No steps: the whole recording, or a stretch from its middle when it has too many slices.
  void ChooseWithoutSteps() {
    int64_t first = INT64_MAX;
    int64_t last = INT64_MIN;
    size_t pieces = 0;
    for (size_t gpu = 0; gpu < d_.index->gpus().size(); ++gpu) {
      for (const uint32_t s : d_.index->work(gpu)) {
        first = std::min(first, t_.slices.start_ns[s]);
        last = std::max(last, t_.slices.end_ns(s));
        ++pieces;
      }
    }
    if (pieces == 0) return;
    if (t_.slices.size() > kMaxSlices) {
      const double share = static_cast<double>(kMaxSlices) / static_cast<double>(t_.slices.size());
      const int64_t middle = first + (last - first) / 2;
      const auto half = static_cast<int64_t>(share * static_cast<double>(last - first) / 2);
      first = middle - half;
      last = middle + half;
    }
    windows_[first] = last;
  }

  size_t Track(std::string name, std::string_view kind) {
    const auto [it, added] = track_ids_.try_emplace(name, tracks_.size());
    if (added) tracks_.push_back({{"name", name}, {"kind", kind}});
    return it->second;
  }
  size_t Name(std::string_view name) {
    const auto [it, added] = name_ids_.try_emplace(std::string(name), names_.size());
    if (added) names_.push_back(name);
    return it->second;
  }

  void Add(int64_t start_ns, int64_t dur_ns, std::string_view name, size_t track, int depth,
           std::string_view kind, int64_t id) {
    if (slices_.size() >= kMaxSlices) return;
    slices_.push_back({static_cast<double>(start_ns - base_) / 1e3,
                       static_cast<double>(dur_ns) / 1e3, Name(name), track, depth, Name(kind),
                       id});
  }

  void AddSlice(uint32_t s) {
    if (!shown_.insert(s).second) return;
    const Category c = t_.slices.category[s];
    const fathom::diagnose::Track& track = t_.SliceTrack(s);
    if (IsGpuWork(c)) {
      const size_t id = Track(fmt::format("GPU {} stream {}", track.device, track.stream), "gpu");
      Add(t_.slices.start_ns[s], t_.slices.dur_ns[s], t_.SliceName(s), id, 0,
          KernelClassName(d_.index->kind(s)), s);
      return;
    }
    int depth = 0;
    for (uint32_t p = d_.index->parent(s); p != kNone; p = d_.index->parent(p)) {
      depth += IsShown(p) ? 1 : 0;
    }
    if (depth >= kMaxDepth) return;
    const size_t id = Track(fmt::format("CPU thread {}", track.tid), "cpu");
    Add(t_.slices.start_ns[s], t_.slices.dur_ns[s], t_.SliceName(s), id, depth, CategoryName(c), s);
  }

  bool IsShown(uint32_t s) const {
    const Category c = t_.slices.category[s];
    return c == Category::kCpuOp || c == Category::kAnnotation || c == Category::kNvtx ||
           c == Category::kRuntime || c == Category::kDriver || c == Category::kOverhead ||
           c == Category::kEngine;
  }

  void AddWindow(int64_t start, int64_t end) {
    const auto overlaps = [&](uint32_t s) {
      return t_.slices.start_ns[s] < end && t_.slices.end_ns(s) > start;
    };
    for (size_t gpu = 0; gpu < d_.index->gpus().size(); ++gpu) {
      for (const uint32_t s : d_.index->work(gpu)) {
        if (overlaps(s)) AddSlice(s);
      }
    }
    for (TrackId track = 0; track < t_.tracks.size(); ++track) {
      if (t_.tracks[track].kind == TrackKind::kGpuStream) continue;
      for (const uint32_t s : d_.index->thread(track)) {
        if (t_.slices.start_ns[s] >= end) break;
        if (IsShown(s) && overlaps(s)) AddSlice(s);
      }
    }
  }

  // Whatever a finding names is there, even a Python frame or something outside all steps.
  void AddEvidence() {
    for (const Finding& f : d_.findings.findings) {
      for (const Evidence& e : f.evidence) {
        if (e.slice != kNone) AddSlice(e.slice);
      }
    }
  }

  void AddGapsAndSteps() {
    if (chosen_.empty()) return;
    const size_t steps = Track("steps", "step");
    const bool gpu = !d_.index->gpus().empty();
    const size_t idle = gpu ? Track("idle", "gap") : 0;
    for (const uint32_t number : chosen_) {
      const Step& step = d_.steps.all[number];
      Add(step.start_ns, step.wall_ns(), PhaseName(step.phase), steps, 0, PhaseName(step.phase),
          -1);
      if (step.num_work == 0) continue;  // no GPU rows: nobody knows when it idled
      for (const Gap& gap : d_.accounts[number].gaps) {
        if (gap.length_ns() < 1000) continue;  // the front end's own pace
        const std::string cause = fmt::format("idle:{}", GapCauseName(gap.cause));
        Add(gap.start_ns, gap.length_ns(), cause, idle, 0, cause, -1);
      }
    }
  }

  const Diagnosis& d_;
  const Timeline& t_;
  std::map<int64_t, int64_t> windows_;  // start -> end, disjoint
  std::set<uint32_t> chosen_;
  std::set<uint32_t> shown_;
  int64_t base_ = 0;
  Json tracks_ = Json::array();
  Json names_ = Json::array();
  Json slices_ = Json::array();
  std::map<std::string, size_t> track_ids_;
  std::unordered_map<std::string, size_t> name_ids_;
};

// Typical against slowest step of each phase's main bucket: indices into the report's steps.
Json TailOf(const Diagnosis& d) {
  Json tail = Json::array();
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kMixed}) {
    const Bucket* bucket = d.steps.Main(phase);
    if (bucket == nullptr || bucket->counted.size() < 3) continue;
    const std::vector<uint32_t> order = ByWall(d, *bucket);
    const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(order.size())));
    tail.push_back({{"phase", PhaseName(phase)},
                    {"typical", order[order.size() / 2]},
                    {"slow", order[std::max<size_t>(rank, 1) - 1]},
                    {"of", order.size()}});
  }
  return tail;
}

Json RooflineOf(const Diagnosis& d) {
  const Roofline roofline = MakeRoofline(*d.index, d.steps);
  Json points = Json::array();
  for (const RooflinePoint& p : roofline.points) {
    if (p.seconds <= 0 || p.cost.bytes <= 0) continue;
    points.push_back({{"name", p.name},
                      {"phase", PhaseName(p.phase)},
                      {"kind", KernelClassName(p.kind)},
                      {"intensity", p.cost.flops / p.cost.bytes},
                      {"tflops", p.cost.flops / p.seconds / 1e12},
                      {"gb_per_s", p.cost.bytes / p.seconds / 1e9},
                      {"us", p.seconds * 1e6},
                      {"count", p.count},
                      {"slice", p.slice}});
  }
  if (points.empty()) return nullptr;
  Json out = {{"points", std::move(points)}, {"hardware", nullptr}};
  if (roofline.hardware) {
    out["hardware"] = {{"name", roofline.hardware->name},
                       {"gb_per_s", roofline.hardware->memory_bytes_per_s / 1e9},
                       {"tflops", roofline.hardware->bf16_flops_per_s / 1e12}};
  }
  return out;
}

Json NodeOf(const FlameNode& node) {
  Json out = {{"n", node.name}, {"v", node.value}};
  if (node.children.empty()) return out;
  Json children = Json::array();
  for (const FlameNode& child : node.children) children.push_back(NodeOf(child));
  out["c"] = std::move(children);
  return out;
}

Json FlameOf(const Diagnosis& d) {
  const Flame flame = MakeFlame(*d.index);
  if (flame.root.value <= 0) return nullptr;
  return {{"unit", flame.unit}, {"root", NodeOf(flame.root)}};
}

Json HeatMapOf(const Diagnosis& d) {
  const HeatMap map = MakeHeatMap(*d.index, d.steps);
  if (map.num_layers == 0) return nullptr;
  Json cells = Json::array();
  for (const HeatCell& c : map.cells) {
    cells.push_back({c.column, c.layer, KernelClassName(c.kind), c.us});
  }
  return {{"steps", map.steps}, {"layers", map.num_layers}, {"cells", std::move(cells)}};
}

Json ExpertsOf(const Diagnosis& d) {
  std::map<int32_t, std::map<int32_t, double>> layers;
  for (const ExpertLoad& load : d.timeline->expert_loads) {
    layers[load.layer][load.expert] += load.tokens;
  }
  if (layers.empty()) return nullptr;
  Json out = Json::array();
  for (const auto& [layer, experts] : layers) {
    Json row = Json::array();
    for (const auto& [expert, tokens] : experts) row.push_back({expert, tokens});
    out.push_back({{"layer", layer}, {"experts", std::move(row)}});
  }
  return out;
}

// Which inputs share a time axis: those on the timeline's clock whose times lie near each other
// (within the length of the longer). Others have an axis of their own.
class Clocks {
 public:
  explicit Clocks(const std::vector<Source>& sources) : of_source_(sources.size()) {
    std::vector<size_t> order;
    for (size_t i = 0; i < sources.size(); ++i) {
      of_source_[i] = i;
      if (sources[i].aligned && sources[i].first_ns != kNoTime) order.push_back(i);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return sources[a].first_ns < sources[b].first_ns; });
    int64_t end = 0;
    int64_t length = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const Source& source = sources[order[k]];
      const int64_t own = source.last_ns - source.first_ns;
      if (k > 0 && source.first_ns - end <= std::max(length, own)) {
        of_source_[order[k]] = of_source_[order[k - 1]];
        end = std::max(end, source.last_ns);
        length = std::max(length, own);
      } else {
        end = source.last_ns;
        length = own;
      }
    }
  }
  size_t Of(SourceId source) const { return of_source_[source]; }

 private:
  std::vector<size_t> of_source_;
};

// What the traces cover, in seconds, by clock.
Json TraceWindows(const Diagnosis& d, const Clocks& clocks) {
  std::set<SourceId> traces;
  for (const GpuKey& gpu : d.index->gpus()) traces.insert(gpu.source);
  Json windows = Json::array();
  for (const SourceId id : traces) {
    const Source& source = d.timeline->sources[id];
    if (source.first_ns == kNoTime) continue;
    windows.push_back({clocks.Of(id), static_cast<double>(source.first_ns) / 1e9,
                       static_cast<double>(source.last_ns) / 1e9});
  }
  return windows;
}

struct Lane {
  std::string_view key;  // html.lane.<key>
  double scale;
  std::string_view unit;
};

Json LaneOf(const Lane& lane, const SignalSeries& s, const Clocks& clocks) {
  const size_t stride = (s.size() + kMaxPoints - 1) / kMaxPoints;
  Json t = Json::array();
  Json v = Json::array();
  for (size_t i = 0; i < s.size(); i += stride) {
    double sum = 0;
    const size_t end = std::min(i + stride, s.size());
    for (size_t k = i; k < end; ++k) sum += s.value[k];
    t.push_back(static_cast<double>(s.t_ns[i]) / 1e9);
    v.push_back(Number(sum / static_cast<double>(end - i) * lane.scale));
  }
  return {{"key", lane.key},    {"name", s.name},
          {"device", s.device}, {"clock", clocks.Of(s.source)},
          {"unit", lane.unit},  {"t", std::move(t)},
          {"v", std::move(v)}};
}

// What the lines of server logs say over time: a series a log and engine.
std::vector<SignalSeries> LogSeries(const Timeline& t, LogField field) {
  std::map<std::pair<SourceId, int32_t>, SignalSeries> series;
  for (const LogLine& line : t.log_lines) {
    const std::optional<double> value = t.Value(line, field);
    if (!value || line.t_ns == kNoTime) continue;
    SignalSeries& s = series[{line.source, line.engine}];
    s.source = line.source;
    s.device = -1;
    const std::string& path = t.sources[line.source].path;
    s.name = path.substr(path.rfind('/') + 1);
    if (line.engine > 0) s.name += fmt::format(" engine {}", line.engine);
    // Lines of ranks are not always in order.
    if (!s.t_ns.empty() && line.t_ns < s.t_ns.back()) continue;
    s.t_ns.push_back(line.t_ns);
    s.value.push_back(*value);
  }
  std::vector<SignalSeries> list;
  for (auto& [key, s] : series) list.push_back(std::move(s));
  return list;
}

Json LanesOf(const Diagnosis& d, const Clocks& clocks) {
  constexpr std::pair<Signal, Lane> kSignals[] = {
      {Signal::kGpuBusy, {"gpu_busy", 100, "%"}},
      {Signal::kSmActive, {"sm_active", 100, "%"}},
      {Signal::kDramActive, {"memory", 100, "%"}},
      {Signal::kPcieRx, {"pcie_rx", 1e-9, "GB/s"}},
      {Signal::kPcieTx, {"pcie_tx", 1e-9, "GB/s"}},
      {Signal::kNvlink, {"nvlink", 1e-9, "GB/s"}},
      {Signal::kRunning, {"running", 1, ""}},
      {Signal::kWaiting, {"waiting", 1, ""}},
      {Signal::kKvUsage, {"kv_usage", 100, "%"}},
      {Signal::kNumaRemote, {"numa", 1, "1/s"}},
      {Signal::kMemoryReserved, {"reserved", 1e-9, "GB"}}};
  constexpr std::pair<LogField, Lane> kLogFields[] = {
      {LogField::kRunning, {"running", 1, ""}},
      {LogField::kWaiting, {"waiting", 1, ""}},
      {LogField::kKvUsage, {"kv_usage", 100, "%"}},
      {LogField::kPrefixHitRate, {"hit_rate", 100, "%"}},
      {LogField::kPromptTokensPerS, {"prompt_rate", 1, "1/s"}},
      {LogField::kDecodeTokensPerS, {"decode_rate", 1, "1/s"}}};
  Json lanes = Json::array();
  for (const auto& [signal, lane] : kSignals) {
    for (const SignalSeries& s : FindSignal(*d.timeline, signal)) {
      if (s.size() >= 2) lanes.push_back(LaneOf(lane, s, clocks));
    }
  }
  for (const auto& [field, lane] : kLogFields) {
    for (const SignalSeries& s : LogSeries(*d.timeline, field)) {
      // What never changes is a fact of the report, not a course.
      const auto [least, most] = std::minmax_element(s.value.begin(), s.value.end());
      if (s.size() >= kMinLogPoints && *least != *most) lanes.push_back(LaneOf(lane, s, clocks));
    }
  }
  return lanes;
}

// The words that the page needs, in its language.
Json WordsOf(Language language) {
  Json words = Json::object();
  for (const std::string& key : CatalogueKeys(language)) {
    for (const std::string_view family :
         {"html.", "class.", "cause.", "phase.", "severity.", "report."}) {
      if (key.starts_with(family)) words[key] = Sentence(language, key);
    }
  }
  return words;
}

Json Colours() {
  Json colours = Json::object();
  for (size_t i = 0; i < kNumKernelClasses; ++i) {
    const auto kind = static_cast<KernelClass>(i);
    colours[std::string(KernelClassName(kind))] = ColourOf(kind);
  }
  for (size_t i = 0; i < kNumGapCauses; ++i) {
    const auto cause = static_cast<GapCause>(i);
    colours[fmt::format("idle:{}", GapCauseName(cause))] = ColourOf(cause);
  }
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kMixed, Phase::kUnknown}) {
    colours[std::string(PhaseName(phase))] = ColourOf(phase);
  }
  return colours;
}

Json AddressOf(const AddressHeatMap& map, Language language) {
  static constexpr std::string_view kUnits[] = {"", "ns", "bytes"};
  Json rows = Json::array();
  Json values = Json::array();
  for (size_t r = 0; r < size_t{map.num_channels} * map.num_banks; ++r) {
    rows.push_back(fmt::format("{} / {}", r / map.num_banks, r % map.num_banks));
    Json row = Json::array();
    for (size_t c = 0; c < map.num_columns; ++c) {
      row.push_back(Number(map.values[r * map.num_columns + c]));
    }
    values.push_back(std::move(row));
  }
  return {{"rows", std::move(rows)},
          {"first_token", map.first_token},
          {"tokens_per_column", map.tokens_per_column},
          {"unit", kUnits[static_cast<size_t>(map.value_kind)]},
          {"note", AddressMapNote(map, language)},
          {"values", std::move(values)}};
}

}  // namespace

nlohmann::ordered_json HtmlData(const AddressHeatMap& map, Language language) {
  return {{"picture", "address"},
          {"words", WordsOf(language)},
          {"colours", Colours()},
          {"address", AddressOf(map, language)}};
}

nlohmann::ordered_json HtmlData(const Diagnosis& d, Language language, Picture picture) {
  static constexpr std::string_view kNames[] = {"all", "heatmap", "roofline", "flame"};
  Json data = {{"picture", kNames[static_cast<size_t>(picture)]},
               {"words", WordsOf(language)},
               {"colours", Colours()}};
  const bool all = picture == Picture::kAll;
  if (all || picture == Picture::kRoofline) data["roofline"] = RooflineOf(d);
  if (all || picture == Picture::kFlame) data["flame"] = FlameOf(d);
  if (all || picture == Picture::kHeatMap) data["heatmap"] = HeatMapOf(d);
  if (!all) return data;
  data["headline"] = Headline(d, language);
  data["report"] = JsonReport(d, language);
  // Where each piece of evidence lies in the timeline, by finding; null where it points nowhere.
  Json places = Json::array();
  for (const Finding& f : d.findings.findings) {
    Json row = Json::array();
    for (const Evidence& e : f.evidence) {
      row.push_back(e.slice == kNone ? Json(nullptr) : Json(e.slice));
    }
    places.push_back(std::move(row));
  }
  data["places"] = std::move(places);
  Json notes = Json::array();
  for (const Source& source : d.timeline->sources) {
    notes.push_back({{"path", source.path},
                     {"format", source.format},
                     {"summary", SourceSummary(source, language)},
                     {"notes", SourceNotes(d, source, language)}});
  }
  data["inputs"] = std::move(notes);
  data["devices"] = DeviceLines(d, language);
  Json shares = Json::object();
  Json typical = Json::object();
  for (const PhaseSummary& s : Summarise(d)) {
    const std::string phase(PhaseName(s.phase));
    shares[phase] = GpuShares(s, language);
    Json parts = Json::array();
    for (const auto& [name, ns] : TypicalStep(d, s.phase, language)) parts.push_back({name, ns});
    typical[phase] = std::move(parts);
  }
  data["shares"] = std::move(shares);
  data["step_notes"] = StepNotes(d, language);
  data["server_phases"] = ServerPhaseLines(d, language);
  data["typical"] = std::move(typical);
  Json reasons = Json::array();
  for (const auto& [why, ids] : AbstentionsByReason(d.findings, language)) {
    reasons.push_back({{"why", why}, {"ids", ids}});
  }
  data["abstained"] = std::move(reasons);
  // Steps beyond what a page can draw are thinned evenly; the tail's are always there.
  Json& steps = data["report"]["steps"];
  Json shown = Json::array();
  const size_t n = steps.size();
  const size_t kept = std::min(n, kMaxSteps);
  for (size_t i = 0; i < kept; ++i) shown.push_back(i * n / kept);
  data["shown_steps"] = std::move(shown);
  data["tail"] = TailOf(d);
  data["timeline"] = TimelineData(d).Build();
  data["experts"] = ExpertsOf(d);
  const Clocks clocks(d.timeline->sources);
  data["lanes"] = LanesOf(d, clocks);
  data["trace_windows"] = TraceWindows(d, clocks);
  return data;
}

}  // namespace fathom::diagnose
