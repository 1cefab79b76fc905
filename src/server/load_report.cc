#include "server/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace fathom::server {
namespace {

using nlohmann::ordered_json;

double Percentile(const std::vector<double>& sorted, double p) {
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Nothing measured is null, not 0.
void AddStatistics(const std::string& name, std::vector<double> values, ordered_json* out) {
  auto set = [&](const char* statistic, double value) {
    ordered_json& slot = (*out)[fmt::format("{}_{}_ms", statistic, name)];
    if (values.empty()) {
      slot = nullptr;
    } else {
      slot = value;
    }
  };
  if (values.empty()) {
    for (const char* statistic : {"mean", "std", "median", "p90", "p99"}) set(statistic, 0);
    return;
  }
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  set("mean", mean);
  set("std", std::sqrt(squares / n));
  set("median", Percentile(values, 50));
  set("p90", Percentile(values, 90));
  set("p99", Percentile(values, 99));
}

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::optional<double> Tpot(const RequestOutcome& outcome) {
  if (outcome.output_tokens < 2) return std::nullopt;
  return Ms(outcome.latency_ns - outcome.ttft_ns) / static_cast<double>(outcome.output_tokens - 1);
}

bool Meets(const RequestOutcome& outcome, const ServiceLevel& level) {
  return (!level.ttft_ms || Ms(outcome.ttft_ns) <= *level.ttft_ms) &&
         (!level.tpot_ms || Tpot(outcome).value_or(0) <= *level.tpot_ms) &&
         (!level.e2el_ms || Ms(outcome.latency_ns) <= *level.e2el_ms);
}

}  // namespace

ordered_json LoadReport(const std::vector<RequestOutcome>& outcomes, int64_t duration_ns,
                        int32_t max_concurrent_requests, const ServiceLevel& goodput) {
  int64_t completed = 0, good = 0, input = 0, output = 0;
  std::vector<double> ttft, tpot, itl, e2el;
  std::map<std::string, int64_t> errors;
  for (const RequestOutcome& outcome : outcomes) {
    if (!outcome.ok) {
      ++errors[outcome.error];
      continue;
    }
    ++completed;
    good += Meets(outcome, goodput) ? 1 : 0;
    input += outcome.prompt_tokens;
    output += outcome.output_tokens;
    ttft.push_back(Ms(outcome.ttft_ns));
    e2el.push_back(Ms(outcome.latency_ns));
    if (const auto ms = Tpot(outcome)) tpot.push_back(*ms);
    for (const int64_t ns : outcome.itl_ns) itl.push_back(Ms(ns));
  }
  const double seconds = std::max(static_cast<double>(duration_ns) * 1e-9, 1e-9);
  auto rate = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  ordered_json out = {{"schema", "fathom.bench_serve/1"}};
  out["completed"] = completed;
  out["failed"] = static_cast<int64_t>(outcomes.size()) - completed;
  out["duration"] = static_cast<double>(duration_ns) * 1e-9;
  out["total_input_tokens"] = input;
  out["total_output_tokens"] = output;
  out["request_throughput"] = rate(completed);
  out["request_goodput"] = nullptr;
  if (!goodput.empty()) out["request_goodput"] = rate(good);
  out["output_throughput"] = rate(output);
  out["total_token_throughput"] = rate(input + output);
  out["max_concurrent_requests"] = max_concurrent_requests;
  AddStatistics("ttft", std::move(ttft), &out);
  AddStatistics("tpot", std::move(tpot), &out);
  AddStatistics("itl", std::move(itl), &out);
  AddStatistics("e2el", std::move(e2el), &out);
  out["errors"] = ordered_json::array();
  for (const auto& [error, count] : errors) {
    out["errors"].push_back({{"error", error}, {"count", count}});
  }
  return out;
}

std::string LoadTable(const ordered_json& report) {
  auto number = [&](const char* key) {
    const ordered_json& value = report[key];
    return value.is_null() ? std::string("-") : fmt::format("{:.2f}", value.get<double>());
  };
  std::string out =
      fmt::format("requests        {} completed, {} failed in {} s, at most {} at once\n",
                  report["completed"].get<int64_t>(), report["failed"].get<int64_t>(),
                  number("duration"), report["max_concurrent_requests"].get<int64_t>());
  out += fmt::format("tokens          {} in, {} out\n", report["total_input_tokens"].get<int64_t>(),
                     report["total_output_tokens"].get<int64_t>());
  out += fmt::format("throughput      {} requests/s, {} output tokens/s, {} tokens/s\n",
                     number("request_throughput"), number("output_throughput"),
                     number("total_token_throughput"));
  if (!report["request_goodput"].is_null()) {
    out += fmt::format("goodput         {} requests/s\n", number("request_goodput"));
  }
  out += fmt::format("{:<10}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "ms", "mean", "std", "median", "p90",
                     "p99");
  for (const char* name : {"ttft", "tpot", "itl", "e2el"}) {
    out += fmt::format("{:<10}", name);
    for (const char* statistic : {"mean", "std", "median", "p90", "p99"}) {
      out += fmt::format("{:>12}", number(fmt::format("{}_{}_ms", statistic, name).c_str()));
    }
    out += "\n";
  }
  for (const ordered_json& error : report["errors"]) {
    out += fmt::format("failed {} times: {}\n", error["count"].get<int64_t>(),
                       error["error"].get<std::string>());
  }
  return out;
}

}  // namespace fathom::server
