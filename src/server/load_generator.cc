#include "server/load_generator.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "base/clock.h"

namespace fathom::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxErrorText = 300;

using Request = http::request<http::string_body>;

Request MakeRequest(const LoadTarget& target, std::string_view method, std::string_view path,
                    const std::string& body) {
  Request request;
  request.method_string(beast::string_view(method.data(), method.size()));
  request.target(target.base_path + std::string(path));
  request.version(11);
  request.set(http::field::host, target.host);
  request.set(http::field::connection, "close");
  if (!target.api_key.empty()) request.set(http::field::authorization, "Bearer " + target.api_key);
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  return request;
}

// Cuts a stream of server-sent events into the data of each.
class EventSplitter {
 public:
  template <class Handle>
  void Push(std::string_view bytes, Handle handle) {
    text_ += bytes;
    size_t begin = 0;
    for (size_t end = 0; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(text_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      handle(line);
    }
    text_.erase(0, begin);
  }

 private:
  std::string text_;
};

// What a chunk of an answer carries.
struct Chunk {
  bool has_text = false;
  std::optional<int64_t> prompt_tokens, completion_tokens;
  std::string error;
};

Chunk ParseChunk(simdjson::dom::parser& parser, std::string_view data) {
  Chunk out;
  simdjson::dom::element root;
  if (parser.parse(data.data(), data.size()).get(root) != simdjson::SUCCESS) {
    out.error = "a stream chunk is not JSON";
    return out;
  }
  if (simdjson::dom::element error; root["error"].get(error) == simdjson::SUCCESS) {
    std::string_view message;
    out.error = error["message"].get(message) == simdjson::SUCCESS ? std::string(message)
                                                                   : simdjson::minify(error);
    return out;
  }
  simdjson::dom::array choices;
  if (root["choices"].get(choices) == simdjson::SUCCESS) {
    for (const simdjson::dom::element choice : choices) {
      std::string_view text;
      for (const auto& value :
           {choice["text"], choice["delta"]["content"], choice["delta"]["reasoning_content"]}) {
        simdjson::dom::element element;
        if (value.get(element) == simdjson::SUCCESS && element.get(text) == simdjson::SUCCESS &&
            !text.empty()) {
          out.has_text = true;
        }
      }
    }
  }
  int64_t count = 0;
  if (root["usage"]["prompt_tokens"].get(count) == simdjson::SUCCESS) out.prompt_tokens = count;
  if (root["usage"]["completion_tokens"].get(count) == simdjson::SUCCESS) {
    out.completion_tokens = count;
  }
  return out;
}

// One answer as it arrives.
class Answer {
 public:
  void Take(std::string_view bytes, int64_t now_ns, RequestOutcome* outcome) {
    splitter_.Push(bytes, [&](std::string_view data) {
      if (data == "[DONE]") return;
      const Chunk chunk = ParseChunk(parser_, data);
      if (!chunk.error.empty()) outcome->error = chunk.error;
      if (chunk.prompt_tokens) outcome->prompt_tokens = *chunk.prompt_tokens;
      if (chunk.completion_tokens) outcome->output_tokens = *chunk.completion_tokens;
      if (!chunk.has_text) return;
      if (last_ns_ == 0) {
        outcome->ttft_ns = now_ns - outcome->start_ns;
      } else {
        outcome->itl_ns.push_back(now_ns - last_ns_);
      }
      last_ns_ = now_ns;
      outcome->latency_ns = now_ns - outcome->start_ns;
    });
  }

 private:
  EventSplitter splitter_;
  simdjson::dom::parser parser_;
  int64_t last_ns_ = 0;
};

Result<tcp::resolver::results_type> Resolve(asio::io_context& io, const LoadTarget& target) {
  boost::system::error_code error;
  auto endpoints = tcp::resolver(io).resolve(target.host, target.port, error);
  if (error) {
    return Err(Code::kUnavailable, "{}:{}: {}", target.host, target.port, error.message());
  }
  return endpoints;
}

class Load {
 public:
  Load(const LoadTarget& target, const std::vector<LoadRequest>& requests, const LoadShape& shape,
       const std::function<void(size_t, size_t)>& progress)
      : target_(target), requests_(requests), shape_(shape), progress_(progress), turn_(io_) {
    result_.outcomes.resize(requests.size());
    turn_.expires_at(asio::steady_timer::time_point::max());
  }

  Result<LoadResult> Run() {
    FATHOM_ASSIGN_OR_RETURN(endpoints_, Resolve(io_, target_));
    asio::co_spawn(io_, Dispatch(), asio::detached);
    const int64_t begin = NowNs();
    io_.run();
    result_.duration_ns = NowNs() - begin;
    return std::move(result_);
  }

 private:
  awaitable<void> Dispatch() {
    const std::vector<int64_t> arrivals = ArrivalTimes(requests_.size(), shape_);
    asio::steady_timer clock(io_);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (arrivals[i] > 0) {
        clock.expires_at(begin + std::chrono::nanoseconds(arrivals[i]));
        co_await clock.async_wait(kTuple);
      }
      while (shape_.max_concurrency > 0 && running_ >= shape_.max_concurrency) {
        co_await turn_.async_wait(kTuple);
      }
      ++running_;
      result_.max_concurrent_requests = std::max(result_.max_concurrent_requests, running_);
      asio::co_spawn(io_, One(i), asio::detached);
    }
  }

  awaitable<void> One(size_t index) {
    RequestOutcome& outcome = result_.outcomes[index];
    co_await Send(requests_[index], &outcome);
    --running_;
    turn_.cancel();
    progress_(++done_, requests_.size());
  }

  std::string Body(const LoadRequest& request) const {
    nlohmann::json body = shape_.extra;
    body["model"] = target_.model;
    body[target_.chat ? "messages" : "prompt"] = request.prompt;
    if (request.max_tokens > 0) body["max_tokens"] = request.max_tokens;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (shape_.ignore_eos) body["ignore_eos"] = true;
    return body.dump();
  }

  awaitable<void> Send(const LoadRequest& load, RequestOutcome* outcome) {
    const Request request = MakeRequest(
        target_, "POST", target_.chat ? "/v1/chat/completions" : "/v1/completions", Body(load));
    outcome->start_ns = NowNs();
    beast::tcp_stream stream(io_);
    stream.expires_after(std::chrono::seconds(target_.timeout_s));
    {
      const auto [error, endpoint] = co_await stream.async_connect(endpoints_, kTuple);
      if (error) {
        outcome->error = "connect: " + error.message();
        co_return;
      }
    }
    {
      const auto [error, n] = co_await http::async_write(stream, request, kTuple);
      if (error) {
        outcome->error = "write: " + error.message();
        co_return;
      }
    }
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    beast::flat_buffer buffer;
    {
      const auto [error, n] = co_await http::async_read_header(stream, buffer, parser, kTuple);
      if (error) {
        outcome->error = "read: " + error.message();
        co_return;
      }
    }
    const unsigned status = parser.get().result_int();
    std::string refusal;
    std::vector<char> data(16 << 10);
    Answer answer;
    while (!parser.is_done()) {
      parser.get().body().data = data.data();
      parser.get().body().size = data.size();
      const auto [error, n] = co_await http::async_read_some(stream, buffer, parser, kTuple);
      if (error && error != http::error::need_buffer) {
        outcome->error = "read: " + error.message();
        co_return;
      }
      const std::string_view part(data.data(), data.size() - parser.get().body().size);
      if (status == 200) {
        answer.Take(part, NowNs(), outcome);
      } else {
        refusal += part.substr(0, kMaxErrorText - std::min(kMaxErrorText, refusal.size()));
      }
    }
    if (status != 200) outcome->error = fmt::format("HTTP {}: {}", status, refusal);
    if (outcome->error.empty() && outcome->ttft_ns == 0) outcome->error = "an answer without text";
    outcome->ok = outcome->error.empty();
  }

  const LoadTarget& target_;
  const std::vector<LoadRequest>& requests_;
  const LoadShape& shape_;
  const std::function<void(size_t, size_t)>& progress_;
  asio::io_context io_{1};
  asio::steady_timer turn_;  // cancelled whenever a request ends
  tcp::resolver::results_type endpoints_;
  LoadResult result_;
  int32_t running_ = 0;
  size_t done_ = 0;
};

}  // namespace

std::vector<int64_t> ArrivalTimes(size_t count, const LoadShape& shape) {
  std::vector<int64_t> out(count, 0);
  if (std::isinf(shape.request_rate)) return out;
  std::mt19937_64 random(shape.seed);
  // Mean pause 1 / rate whatever the shape.
  std::gamma_distribution<double> pause(shape.burstiness,
                                        1.0 / (shape.request_rate * shape.burstiness));
  double at = 0;
  for (int64_t& arrival : out) {
    arrival = static_cast<int64_t>(at * 1e9);
    at += pause(random);
  }
  return out;
}

Result<LoadResult> RunLoad(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                           const LoadShape& shape,
                           const std::function<void(size_t, size_t)>& progress) {
  return Load(target, requests, shape, progress).Run();
}

Result<nlohmann::json> Fetch(const LoadTarget& target, std::string_view method,
                             std::string_view path, const std::string& body) {
  asio::io_context io;
  FATHOM_ASSIGN_OR_RETURN(const auto endpoints, Resolve(io, target));
  const std::string where =
      fmt::format("http://{}:{}{}{}", target.host, target.port, target.base_path, path);
  boost::system::error_code error;
  auto failed = [&] { return Err(Code::kUnavailable, "{}: {}", where, error.message()); };
  beast::tcp_stream stream(io);
  stream.connect(endpoints, error);
  if (error) return failed();
  http::write(stream, MakeRequest(target, method, path, body), error);
  if (error) return failed();
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  http::read(stream, buffer, response, error);
  if (error) return failed();
  if (response.result_int() != 200) {
    return Err(Code::kInvalidArgument, "{}: HTTP {}: {}", where, response.result_int(),
               response.body().substr(0, kMaxErrorText));
  }
  nlohmann::json json = nlohmann::json::parse(response.body(), nullptr, false);
  if (json.is_discarded()) return Err(Code::kDataLoss, "{}: the answer is not JSON", where);
  return json;
}

}  // namespace fathom::server
