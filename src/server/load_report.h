#pragma once
// What a load test found, under the names that users of `vllm bench serve` know. Pure.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fathom::server {

struct RequestOutcome {
  bool ok = false;
  std::string error;     // when not ok
  int64_t start_ns = 0;  // sent
  int64_t ttft_ns = 0;   // to the first text
  int64_t latency_ns = 0;
  std::vector<int64_t> itl_ns;  // between two texts of a stream
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

// Limits that a request must meet to count as good; absent ones always hold.
struct ServiceLevel {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool empty() const { return !ttft_ms && !tpot_ms && !e2el_ms; }
};

// {mean,std,median,p90,p99}_{ttft,tpot,itl,e2el}_ms, request_throughput, output_throughput, ...
// tpot = (latency - ttft) / (output tokens - 1), of answers with more than one token.
// Percentiles interpolate linearly. Throughputs divide by duration_ns.
nlohmann::ordered_json LoadReport(const std::vector<RequestOutcome>& outcomes, int64_t duration_ns,
                                  int32_t max_concurrent_requests, const ServiceLevel& goodput);

// The report as an aligned table.
std::string LoadTable(const nlohmann::ordered_json& report);

}  // namespace fathom::server
