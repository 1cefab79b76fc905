#pragma once
// Sends requests to any OpenAI-compatible server as a load test does: at random times of a given
// rate and burstiness, at most so many at once, and records what each one saw.
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/load_report.h"

namespace fathom::server {

struct LoadTarget {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string base_path;  // before /v1, usually empty
  std::string api_key;    // empty: none is sent
  std::string model;
  bool chat = false;        // /v1/chat/completions, else /v1/completions
  int32_t timeout_s = 600;  // of one request
};

struct LoadRequest {
  nlohmann::json prompt;  // a string, or an array of messages for a chat
  int32_t max_tokens = 0;
};

struct LoadShape {
  // Requests a second; infinite: all at once.
  double request_rate = std::numeric_limits<double>::infinity();
  // Shape of the gamma distribution of the pauses: 1 is a Poisson process, less is burstier.
  double burstiness = 1.0;
  int32_t max_concurrency = 0;  // 0: no limit
  uint64_t seed = 0;
  bool ignore_eos = false;  // answers of exactly max_tokens (a field of vLLM's and ours)
  nlohmann::json extra = nlohmann::json::object();  // further fields of each request
};

struct LoadResult {
  std::vector<RequestOutcome> outcomes;  // [requests.size()]
  int64_t duration_ns = 0;               // from the first request sent to the last answer
  int32_t max_concurrent_requests = 0;
};

// When to send each request, from the start, in order.
std::vector<int64_t> ArrivalTimes(size_t count, const LoadShape& shape);

// `progress(done, count)` is called after each answer.
Result<LoadResult> RunLoad(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                           const LoadShape& shape,
                           const std::function<void(size_t, size_t)>& progress);

// One request without a stream; the answer's JSON. For asking a server what it serves.
Result<nlohmann::json> Fetch(const LoadTarget& target, std::string_view method,
                             std::string_view path, const std::string& body);

}  // namespace fathom::server
