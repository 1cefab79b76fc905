// fathom doctor: samples a live machine for some seconds and diagnoses what it saw.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/http_get.h"
#include "base/strings.h"
#include "base/write_file.h"
#include "cli/command.h"
#include "cli/read_artifacts.h"
#include "cli/terminal.h"
#include "diagnose/clock.h"
#include "diagnose/diagnosis.h"
#include "diagnose/readers/samples.h"
#include "diagnose/report/json_report.h"
#include "diagnose/report/next_steps.h"
#include "diagnose/report/text_report.h"
#include "diagnose/scrape.h"
#include "diagnose/understand/signals.h"
#include "observe/live/nvml_source.h"
#include "observe/live/perf_source.h"
#include "observe/live/proc_source.h"
#include "observe/live/sampler.h"
#include "observe/live/thread_source.h"

namespace fathom::cli {
namespace {

struct DoctorOptions {
  std::string url;
  int pid = 0;
  int seconds = 10;
  int period_ms = 10;
  std::string nvml;
  std::string record;
  std::string json;
  std::string language = "en";
};

volatile std::sig_atomic_t g_stop = 0;

// Everything that was seen, before it becomes a timeline.
struct Observed {
  std::vector<event::Sample> samples;
  std::vector<observe::GpuInfo> gpus;
  std::string no_gpu;      // why there is none; empty with one
  int numa_nodes = 0;      // with CPUs
  std::string threads_of;  // what named the processes whose threads count: "nvml" or "pid"
  std::vector<observe::Sampler::Skipped> skipped;
  uint64_t lost = 0;
  int64_t alignment_error_ns = 0;
  int64_t utc_ns_at_zero = 0;  // of the monotonic clock
  double seconds = 0;
  std::string scrapes;  // "# Time: ..." before each
  int scraped = 0, scrape_failures = 0;
};

// The newest value of each metric, for the line that a terminal shows.
class LiveLine {
 public:
  void Add(const event::Sample& sample) { newest_[{sample.metric, sample.device}] = sample.value; }

  // What a server's page says of its load; a page that says nothing changes nothing.
  void AddPage(const std::string& page) {
    diagnose::Timeline timeline;
    auto input = diagnose::Input::FromMemory("page", page);
    if (!input || !diagnose::ReadArtifact(*input, timeline)) return;
    server_.clear();
    int64_t t_ns = 0;
    const auto newest = [&](diagnose::Signal signal) {
      std::optional<double> sum;  // over engines
      for (const diagnose::SignalSeries& s : diagnose::FindSignal(timeline, signal)) {
        if (s.size() == 0) continue;
        sum = sum.value_or(0) + s.value.back();
        t_ns = s.t_ns.back();
      }
      return sum;
    };
    if (const auto n = newest(diagnose::Signal::kRunning))
      server_ += fmt::format("  running {}", *n);
    if (const auto n = newest(diagnose::Signal::kWaiting))
      server_ += fmt::format("  waiting {}", *n);
    double usage = -1;
    for (const diagnose::SignalSeries& s :
         diagnose::FindSignal(timeline, diagnose::Signal::kKvUsage)) {
      if (s.size() > 0) usage = std::max(usage, s.value.back());
    }
    if (usage >= 0) server_ += fmt::format("  KV {:.0f}%", usage * 100);
    if (const auto n = newest(diagnose::Signal::kGenerated)) {
      if (generated_ && t_ns > generated_ns_ && *n >= *generated_) {
        const double seconds = static_cast<double>(t_ns - generated_ns_) / 1e9;
        server_ += fmt::format("  {:.0f} tokens/s", (*n - *generated_) / seconds);
      }
      generated_ = n;
      generated_ns_ = t_ns;
    }
  }

  std::string Text(int second) const {
    std::string line = fmt::format("{:>4} s", second);
    const auto share = [&](std::string_view label, event::Metric metric, uint16_t device) {
      const auto it = newest_.find({metric, device});
      if (it != newest_.end()) line += fmt::format("  {} {:.0f}%", label, it->second * 100);
    };
    share("CPU", event::Metric::kCpuBusy, 0);
    for (uint16_t gpu = 0; newest_.contains({event::Metric::kGpuBusy, gpu}); ++gpu) {
      share(fmt::format("GPU{}", gpu), event::Metric::kGpuBusy, gpu);
      share("memory", event::Metric::kGpuMemoryBusy, gpu);
      const auto rx = newest_.find({event::Metric::kPcieRx, gpu});
      if (rx != newest_.end()) line += fmt::format("  PCIe {:.2f} GB/s", rx->second / 1e9);
    }
    const auto resident = newest_.find({event::Metric::kProcessResident, uint16_t{0}});
    if (resident != newest_.end()) {
      line += fmt::format("  RSS {}", HumanBytes(static_cast<uint64_t>(resident->second)));
    }
    return line + server_;
  }

 private:
  std::map<std::pair<event::Metric, uint16_t>, double> newest_;
  std::string server_;
  std::optional<double> generated_;  // tokens, by the last page
  int64_t generated_ns_ = 0;
};

void AddSources(const DoctorOptions& options, observe::Sampler& sampler, Observed& seen) {
  seen.numa_nodes = observe::NumaTopology::Read().num_cpu_nodes();
  sampler.Add(std::make_unique<observe::ProcSource>(options.pid));
  if (options.pid > 0) sampler.Add(std::make_unique<observe::PerfSource>(options.pid));
  const auto nvml = observe::Nvml::Load(options.nvml);
  if (!nvml) {
    seen.no_gpu = nvml.error().message;
    return;
  }
  seen.gpus = (*nvml)->gpus();
  sampler.Add(std::make_unique<observe::NvmlSource>(*nvml));
  sampler.Add(std::make_unique<observe::NvmlPcieSource>(*nvml));
  if (seen.numa_nodes < 2) return;  // every thread is on the GPUs' node
  std::vector<int> node_of_gpu;
  for (const observe::GpuInfo& gpu : seen.gpus) node_of_gpu.push_back(gpu.numa_node);
  auto threads = std::make_unique<observe::ThreadSource>(observe::ThreadSourceOptions{
      .node_of_gpu = std::move(node_of_gpu),
      .list_processes = [nvml = *nvml](int gpu) { return nvml->ComputeProcesses(gpu); },
      .pid = options.pid,
      .root = ""});
  seen.threads_of = threads->listed() ? "nvml" : "pid";
  sampler.Add(std::move(threads));
}

void AddScrape(const Url& url, Observed& seen, LiveLine& line) {
  const auto page = diagnose::Scrape(url, {.timeout_ms = 900});
  if (!page) {
    ++seen.scrape_failures;
    return;
  }
  ++seen.scraped;
  seen.scrapes += *page;
  line.AddPage(*page);
}

Observed Watch(const DoctorOptions& options, const std::optional<Url>& url) {
  Observed seen;
  observe::Sampler sampler({.period_ms = options.period_ms});
  AddSources(options, sampler, seen);
  seen.skipped = sampler.skipped();
  seen.utc_ns_at_zero = WallNowNs() - NowNs();
  const bool terminal = IsTerminal(STDERR_FILENO);
  LiveLine line;
  uint64_t cursor = 0;
  const int64_t begin = NowNs();
  sampler.Start();
  for (int second = 1; second <= options.seconds && g_stop == 0; ++second) {
    if (url) AddScrape(*url, seen, line);
    const int64_t until = begin + int64_t{second} * 1'000'000'000;
    while (g_stop == 0 && NowNs() < until) {
      const int64_t left = std::min<int64_t>(until - NowNs(), 50'000'000);
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<int64_t>(left, 0)));
    }
    for (const event::Sample& sample : sampler.Since(&cursor)) {
      seen.samples.push_back(sample);
      line.Add(sample);
    }
    if (terminal) fmt::print(stderr, "\r\033[K{}", line.Text(second));
  }
  sampler.Stop();
  for (const event::Sample& sample : sampler.Since(&cursor)) seen.samples.push_back(sample);
  if (terminal) fmt::print(stderr, "\r\033[K");
  seen.seconds = static_cast<double>(NowNs() - begin) / 1e9;
  seen.lost = sampler.lost();
  seen.alignment_error_ns = sampler.alignment_error_ns();
  return seen;
}

// A recording: the format that diagnose/readers/samples.h reads.
std::string Recording(const DoctorOptions& options, const Observed& seen) {
  nlohmann::ordered_json header = {{"schema", "fathom.samples/1"},
                                   {"utc_ns_at_zero", seen.utc_ns_at_zero},
                                   {"period_ms", options.period_ms},
                                   {"alignment_error_ns", seen.alignment_error_ns},
                                   {"gpus", nlohmann::ordered_json::array()}};
  if (seen.numa_nodes > 0) header["numa_nodes"] = seen.numa_nodes;
  if (!seen.threads_of.empty()) header["threads_of"] = seen.threads_of;
  for (const observe::GpuInfo& gpu : seen.gpus) {
    header["gpus"].push_back(
        {{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}, {"numa_node", gpu.numa_node}});
  }
  std::string out = header.dump() + "\n";
  for (const event::Sample& s : seen.samples) {
    out += fmt::format(R"({{"t_ns":{},"metric":"{}","device":{},"value":{},"half_width_ns":{}}})"
                       "\n",
                       s.t_ns, event::NameOf(s.metric), s.device, s.value, s.half_width_ns);
  }
  return out;
}

// Reads the recording back: live and recorded samples take the same way into a timeline.
Result<diagnose::Timeline> TimelineOf(const std::string& recording, const Observed& seen,
                                      const std::string& url) {
  diagnose::Timeline timeline;
  FATHOM_ASSIGN_OR_RETURN(diagnose::Input samples,
                          diagnose::Input::FromMemory("live samples", recording));
  FATHOM_TRY(diagnose::ReadArtifact(samples, timeline));
  if (seen.scraped > 0) {
    FATHOM_ASSIGN_OR_RETURN(diagnose::Input scrapes,
                            diagnose::Input::FromMemory(url, seen.scrapes));
    FATHOM_TRY(diagnose::ReadArtifact(scrapes, timeline));
  }
  diagnose::AlignClocks(timeline);
  return timeline;
}

// Scrapes are kept beside the samples, in the format that a server prints them.
std::string ScrapesPath(const DoctorOptions& options) { return options.record + ".prom"; }
bool KeepsScrapes(const DoctorOptions& options, const Observed& seen) {
  return !options.record.empty() && options.record != "-" && seen.scraped > 0;
}

std::string Preface(const DoctorOptions& options, const Observed& seen,
                    diagnose::Language language) {
  using diagnose::Say;
  using diagnose::Text;
  std::string out = Say(language, Text{"doctor.live",
                                       {{"n", std::to_string(seen.samples.size())},
                                        {"s", fmt::format("{:.1f}", seen.seconds)},
                                        {"period", std::to_string(options.period_ms)},
                                        {"error", HumanNs(seen.alignment_error_ns)}}}) +
                    "\n";
  if (!seen.no_gpu.empty()) {
    out += Say(language, Text{"doctor.no_gpu", {{"why", seen.no_gpu}}}) + "\n";
  }
  for (const observe::Sampler::Skipped& s : seen.skipped) {
    out += Say(language, Text{"doctor.skipped", {{"source", s.source}, {"why", s.why}}}) + "\n";
  }
  if (seen.lost > 0) {
    out += Say(language, Text{"doctor.lost", {{"n", std::to_string(seen.lost)}}}) + "\n";
  }
  if (!options.url.empty()) {
    out += Say(language, Text{"doctor.scrapes",
                              {{"n", std::to_string(seen.scraped)},
                               {"url", options.url},
                               {"failed", std::to_string(seen.scrape_failures)}}}) +
           "\n";
  }
  if (!options.record.empty()) {
    out += Say(language, Text{"doctor.recorded", {{"path", options.record}}}) + "\n";
    if (KeepsScrapes(options, seen)) {
      out += Say(language, Text{"doctor.recorded", {{"path", ScrapesPath(options)}}}) + "\n";
    }
  }
  return out + "\n";
}

nlohmann::ordered_json LiveJson(const DoctorOptions& options, const Observed& seen) {
  nlohmann::ordered_json skipped = nlohmann::ordered_json::array();
  if (!seen.no_gpu.empty()) skipped.push_back({{"source", "nvml"}, {"why", seen.no_gpu}});
  for (const observe::Sampler::Skipped& s : seen.skipped) {
    skipped.push_back({{"source", s.source}, {"why", s.why}});
  }
  return {{"seconds", seen.seconds},
          {"period_ms", options.period_ms},
          {"samples", seen.samples.size()},
          {"lost", seen.lost},
          {"alignment_error_us", static_cast<double>(seen.alignment_error_ns) / 1e3},
          {"scrapes", seen.scraped},
          {"scrape_failures", seen.scrape_failures},
          {"skipped", std::move(skipped)}};
}

Status CheckRange(std::string_view name, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return Err(Code::kInvalidArgument, "{} {}: expected {} to {}", name, value, least, most);
}

Result<int> Doctor(const DoctorOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const diagnose::Language language,
                          diagnose::LanguageFromName(options.language));
  FATHOM_TRY(CheckRange("--seconds", options.seconds, 1, 3600));
  FATHOM_TRY(CheckRange("--period-ms", options.period_ms, 1, 10'000));
  FATHOM_TRY(CheckOutputs({options.json, options.record, ScrapesPath(options)}, {}));
  std::optional<Url> url;
  if (!options.url.empty()) {
    FATHOM_ASSIGN_OR_RETURN(url, ParseUrl(options.url));
    // One answer before the wait: a wrong address should not cost --seconds to learn of.
    if (const auto page = HttpGet(*url); !page) {
      return Err(Code::kInvalidArgument, "--url: {}", page.error().message);
    }
  }
  if (options.pid < 0 ||
      (options.pid > 0 && access(fmt::format("/proc/{}", options.pid).c_str(), F_OK) != 0)) {
    return Err(Code::kInvalidArgument,
               "--pid {}: no such process; expected the id of one that runs, as pgrep prints it",
               options.pid);
  }
  std::signal(SIGINT, [](int) { g_stop = 1; });  // ends the sampling, not the report
  const Observed seen = Watch(options, url);
  const std::string recording = Recording(options, seen);
  if (!options.record.empty()) FATHOM_TRY(WriteFile(options.record, recording));
  if (KeepsScrapes(options, seen)) FATHOM_TRY(WriteFile(ScrapesPath(options), seen.scrapes));
  FATHOM_ASSIGN_OR_RETURN(diagnose::Timeline timeline, TimelineOf(recording, seen, options.url));
  const diagnose::Diagnosis diagnosis =
      diagnose::Diagnose(std::move(timeline), diagnose::Thresholds::Default());
  const diagnose::Seen where = {
      .gpu = !seen.gpus.empty(),
      .fathom = diagnosis.timeline->strings.Find("fathom:num_requests_running") != 0};
  const std::vector<diagnose::NextStep> next = diagnose::NextSteps(diagnosis.findings, where);
  if (!options.json.empty()) {
    nlohmann::ordered_json report = diagnose::JsonReport(diagnosis, language);
    report["live"] = LiveJson(options, seen);
    report["next"] = diagnose::NextStepsJson(next, language);
    FATHOM_TRY(WriteFile(options.json, report.dump(1) + "\n"));
  }
  if (options.json != "-" && options.record != "-") {
    const Style style = StyleFor(STDOUT_FILENO);
    const std::string report =
        diagnose::TextReport(diagnosis, language,
                             {style.bold, style.dim, style.red, style.yellow, style.green,
                              style.reset, ColumnsOf(STDOUT_FILENO)});
    FATHOM_TRY(WriteFile("-", Preface(options, seen, language) + report +
                                  diagnose::NextStepsText(next, where, language)));
  }
  return kExitDone;
}

}  // namespace

void AddDoctor(Commands& commands) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* app =
      commands.Add("doctor", "Watches a live machine for some seconds and says what holds it back",
                   [options] { return Doctor(*options); });
  app->add_option("--url", options->url, "A server's /metrics, scraped every second");
  app->add_option("--pid", options->pid, "A process to watch: CPU, memory, switches, counters");
  app->add_option("--seconds", options->seconds, "How long to watch")->capture_default_str();
  app->add_option("--period-ms", options->period_ms, "Time between two readings")
      ->capture_default_str();
  app->add_option("--nvml", options->nvml,
                  "NVIDIA's management library, where the loader does not find it");
  app->add_option("--record", options->record,
                  "Keep the samples (fathom.samples/1) and, in FILE.prom, the scrapes, inputs of "
                  "diagnose; - for stdout, without scrapes");
  app->add_option("--json", options->json,
                  "Write the report as JSON (fathom.report/1 with live and next); - for stdout");
  app->add_option("--lang", options->language, "Language: en or zh")->capture_default_str();
}

}  // namespace fathom::cli
