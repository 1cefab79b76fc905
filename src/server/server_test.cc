// The server over real sockets, on a session without a model.
#include "server/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "server/fake_session_for_test.h"

namespace fathom::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval timeout = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Until the text ends with `end`, or the server closes.
  std::string ReadUntil(std::string_view end) {
    std::string out;
    char buffer[4096];
    while (!out.ends_with(end) || end.empty()) {
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }
  std::string ReadAll() { return ReadUntil(""); }
  // One response with a Content-Length.
  std::string ReadResponse() {
    std::string out;
    char byte;
    while (!out.ends_with("\r\n\r\n")) {
      if (recv(fd_, &byte, 1, 0) != 1) return out;
      out += byte;
    }
    size_t length = 0;
    if (const size_t at = out.find("Content-Length: "); at != std::string::npos) {
      length = std::stoul(out.substr(at + 16));
    }
    while (length-- > 0) {
      if (recv(fd_, &byte, 1, 0) != 1) return out;
      out += byte;
    }
    return out;
  }

 private:
  int fd_;
  bool connected_ = false;
};

std::string Post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "{}\r\n{}",
      path, body.size(), headers, body);
}

std::string Get(std::string_view path, std::string_view headers = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, headers);
}

std::string BodyOf(const std::string& response) {
  const size_t at = response.find("\r\n\r\n");
  return at == std::string::npos ? "" : response.substr(at + 4);
}

constexpr std::string_view kChat =
    R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":8,"temperature":0})";

class ServerTest : public testing::Test {
 protected:
  void Start(ServerOptions options = {}) {
    options.port = 0;
    options.handle_signals = false;
    auto server =
        Server::Create(options, session_, {event::Sink(&ring_), &recorder_, &ledger_, &metrics_});
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    server_->Drain();
    thread_.join();
  }
  std::string Ask(std::string_view request) {
    Client client(server_->port());
    client.Write(request);
    return client.ReadResponse();
  }

  event::Ring ring_{1 << 16};
  observe::Ledger ledger_;
  observe::Metrics metrics_{{.model_name = "fake", .max_context_tokens = 2000},
                            [] { return observe::EngineGauges(); }};
  observe::Recorder recorder_{&ring_, {&ledger_, &metrics_}};
  FakeSession session_{event::Sink(&ring_)};
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(ServerTest, WithoutEventsALedgerIsRefusedAndTheRestWorks) {
  ServerOptions options;
  options.port = 0;
  options.handle_signals = false;
  auto server = Server::Create(options, session_, {.metrics = &metrics_});
  ASSERT_TRUE(server) << server.error().message;
  server_ = std::move(*server);
  thread_ = std::thread([this] { server_->Run(); });
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, "X-Request-Id: abc\r\n")),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  std::string body(kChat);
  body.insert(body.size() - 1, R"(,"fathom":{"ledger":true})");
  const std::string refused = Ask(Post("/v1/chat/completions", body));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(json::parse(BodyOf(refused))["error"]["message"].get<std::string>(),
              HasSubstr("--no-events"));
  const std::string page = Ask(Get("/v1/requests/abc/ledger"));
  EXPECT_THAT(page, StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(page, HasSubstr("--no-events"));
  EXPECT_THAT(Ask(Get("/metrics")), HasSubstr("http_requests_total"));
}

TEST_F(ServerTest, AnswersAChatWithUsageIdAndLedger) {
  Start();
  std::string body(kChat);
  body.insert(body.size() - 1, R"(,"fathom":{"ledger":true},"n":2)");
  const std::string response = Ask(Post("/v1/chat/completions", body, "X-Request-Id: abc\r\n"));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(response, HasSubstr("X-Request-Id: abc\r\n"));
  const json j = json::parse(BodyOf(response));
  EXPECT_EQ(j["id"], "chatcmpl-abc");
  EXPECT_EQ(j["choices"][1]["message"]["content"], FakeSession::kText.substr(0, 8));
  EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(j["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(j["usage"]["completion_tokens"], 16);
  ASSERT_EQ(j["fathom"]["ledger"].size(), 2u);
  const json& ledger = j["fathom"]["ledger"][0];
  EXPECT_EQ(ledger["schema"], "fathom.ledger/1");
  EXPECT_EQ(ledger["generated_tokens"], 8);
  EXPECT_EQ(ledger["finish_reason"], "length");
  int64_t sum = 0;
  for (const auto& part : ledger["parts"]) sum += part["ns"].get<int64_t>();
  EXPECT_EQ(sum, ledger["wall_ns"].get<int64_t>());

  for (const auto* id : {"abc", "chatcmpl-abc"}) {
    const std::string page = Ask(Get(fmt::format("/v1/requests/{}/ledger", id)));
    EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(json::parse(BodyOf(page))[0]["ended"], true);
  }
  EXPECT_THAT(Ask(Get("/v1/requests/nobody/ledger")), StartsWith("HTTP/1.1 404"));
}

TEST_F(ServerTest, StreamsEventsUsageAndDone) {
  Start();
  std::string body(kChat);
  body.insert(body.size() - 1,
              R"(,"stream":true,"stream_options":{"include_usage":true},"fathom":{"ledger":true})");
  Client client(server_->port());
  client.Write(Post("/v1/chat/completions", body));
  const std::string response = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(response, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_THAT(response, HasSubstr("data: [DONE]\n\n"));
  std::string text;
  json last;
  for (size_t at = response.find("data: {"); at != std::string::npos;
       at = response.find("data: {", at + 1)) {
    last = json::parse(response.substr(at + 6, response.find("\n\n", at) - at - 6));
    for (const auto& choice : last["choices"]) text += choice["delta"].value("content", "");
  }
  EXPECT_EQ(text, FakeSession::kText.substr(0, 8));
  EXPECT_EQ(last["usage"]["completion_tokens"], 8);
  EXPECT_EQ(last["choices"].size(), 0u);
  EXPECT_EQ(last["fathom"]["ledger"]["schema"], "fathom.ledger/1");
  // The connection goes on.
  client.Write(Get("/health"));
  EXPECT_THAT(client.ReadResponse(), HasSubstr("\"ok\""));
}

TEST_F(ServerTest, Http10StreamEndsWithTheConnection) {
  Start();
  std::string body(kChat);
  body.insert(body.size() - 1, R"(,"stream":true)");
  Client client(server_->port());
  client.Write(
      fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  body.size(), body));
  const std::string response = client.ReadAll();
  EXPECT_THAT(response, testing::Not(HasSubstr("chunked")));
  EXPECT_TRUE(response.ends_with("data: [DONE]\n\n")) << response;
}

TEST_F(ServerTest, ErrorsHaveStatusAndShape) {
  Start();
  EXPECT_THAT(Ask(Get("/generate")), HasSubstr("the paths are /v1/chat/completions, "));
  struct Case {
    std::string request;
    std::string_view status;
    std::string_view code;
  };
  const Case kCases[] = {
      {Get("/v1/modles"), "404", "not_found"},
      {Get("/v1/chat/completions"), "405", "method_not_allowed"},
      {Post("/v1/chat/completions", "{"), "400", "invalid_json"},
      {Post("/v1/chat/completions", R"({"model":"gpt-4","messages":[]})"), "404",
       "model_not_found"},
      {Post("/v1/completions", R"({"prompt":"abc","max_tokens":1999})"), "400", "invalid_value"},
      {"POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
       "415", "unsupported_media_type"},
      {Get("/health", "X-Request-Id: " + std::string(200, 'a') + "\r\n"), "400", "invalid_value"},
      {"NONSENSE\r\n\r\n", "400", "invalid_http"},
      {"GET / HTTP/9.9\r\n\r\n", "505", "unavailable"},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n", "431", "invalid_http"},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "413",
       "invalid_http"},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "400", "invalid_http"},
      {"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400",
       "invalid_http"},
  };
  for (const Case& c : kCases) {
    const std::string response = Ask(c.request);
    EXPECT_THAT(response, StartsWith(fmt::format("HTTP/1.1 {} ", c.status)))
        << c.request.substr(0, 100);
    const json body = json::parse(BodyOf(response), nullptr, false);
    ASSERT_FALSE(body.is_discarded()) << response;
    EXPECT_EQ(body["error"]["code"], c.code) << response;
    EXPECT_TRUE(body["error"].contains("param") && body["error"].contains("type"));
  }
}

TEST_F(ServerTest, TakesChunkedBodiesExpectAndPipelinedRequests) {
  Start();
  EXPECT_THAT(Ask("POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"prompt\r\n6\r\n\":\"a\"}\r\n"
                  "0\r\n\r\n"),
              HasSubstr("\"tokens\":[97]"));
  Client client(server_->port());
  client.Write(Get("/health") + Post("/tokenize", R"({"prompt":"b"})") +
               Post("/detokenize", R"({"tokens":[99]})"));
  EXPECT_THAT(client.ReadResponse(), HasSubstr("\"ok\""));
  EXPECT_THAT(client.ReadResponse(), HasSubstr("[98]"));
  EXPECT_THAT(client.ReadResponse(), HasSubstr(R"({"prompt":"c"})"));
  client.Write(
      "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 14\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 100 Continue"));
  client.Write(R"({"prompt":"b"})");
  EXPECT_THAT(client.ReadResponse(), HasSubstr("[98]"));
  client.Write("HEAD /health HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("Content-Length: 15"));
}

TEST_F(ServerTest, AsksForAKeyWhereTextGoesInOrOut) {
  ServerOptions options;
  options.api.api_keys = {"first", "second"};
  Start(options);
  EXPECT_THAT(Ask(Get("/health")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Get("/v1/models")), HasSubstr("invalid_api_key"));
  EXPECT_THAT(Ask(Get("/v1/models", "Authorization: Bearer secon\r\n")),
              StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Ask(Get("/v1/models", "Authorization: Bearer second\r\n")), HasSubstr("\"fake\""));
}

TEST_F(ServerTest, CorsOnlyWhenAskedFor) {
  Start();
  EXPECT_THAT(Ask("OPTIONS /v1/models HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  TearDown();
  thread_ = {};
  ServerOptions options;
  options.api.cors_allow_origin = "https://app.example";
  Start(options);
  EXPECT_THAT(Ask("OPTIONS /v1/models HTTP/1.1\r\n\r\n"),
              HasSubstr("Access-Control-Allow-Origin: https://app.example"));
}

TEST_F(ServerTest, AClientThatHangsUpEndsItsRequest) {
  Start();
  for (const bool stream : {false, true}) {
    const uint64_t before = session_.num_cancelled();
    Client client(server_->port());
    client.Write(Post("/v1/completions",
                      fmt::format(R"({{"prompt":"a","max_tokens":1900,"stream":{}}})", stream)));
    while (session_.num_live() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    client.Close();
    for (int i = 0; i < 1000 && session_.num_live() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(session_.num_live(), 0u);
    EXPECT_EQ(session_.num_cancelled(), before + 1);
  }
}

TEST_F(ServerTest, DeadlineBeforeTheEndIsAnError) {
  Start();
  EXPECT_THAT(Ask(Post("/v1/completions",
                       R"({"prompt":"a","max_tokens":1900,"fathom":{"deadline_ms":20}})")),
              StartsWith("HTTP/1.1 504"));
}

TEST_F(ServerTest, DrainLetsAdmittedRequestsEndAndTurnsHealthRed) {
  Start();
  Client streaming(server_->port());
  streaming.Write(Post("/v1/completions", R"({"prompt":"a","max_tokens":300,"stream":true})"));
  while (session_.num_live() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Client idle(server_->port());
  server_->Drain();
  std::string health;
  for (int i = 0; i < 100 && health.find("draining") == std::string::npos; ++i) {
    health = Ask(Get("/health"));
  }
  EXPECT_THAT(health, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Ask(Post("/v1/completions", R"({"prompt":"a"})")), HasSubstr("shutting down"));
  const std::string response = streaming.ReadAll();
  EXPECT_THAT(response, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(response, HasSubstr("[DONE]"));
  thread_.join();
}

TEST_F(ServerTest, UnhealthyEngineTurnsHealthRed) {
  Start();
  session_.healthy = false;
  EXPECT_THAT(Ask(Get("/health")), HasSubstr("unhealthy"));
}

TEST_F(ServerTest, LimitsTimeAndNumberOfConnections) {
  ServerOptions options;
  options.limits.header_ms = 100;
  options.limits.idle_ms = 200;
  options.limits.max_connections = 2;
  Start(options);
  Client slow(server_->port());
  slow.Write("GET /hea");
  Client idle(server_->port());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Client third(server_->port());
  EXPECT_THAT(third.ReadAll(), HasSubstr("too many connections"));
  EXPECT_EQ(slow.ReadAll(), "");  // closed when its header did not end
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_THAT(Ask(Get("/health")), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, MetricsCountWhatHappened) {
  Start();
  Ask(Post("/v1/chat/completions", kChat));
  recorder_.Flush();
  const std::string text = Ask(Get("/metrics"));
  EXPECT_THAT(text, HasSubstr("http_requests_total{handler=\"/v1/chat/completions\","
                              "method=\"POST\",status=\"200\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("fathom:time_to_first_token_seconds_count{model_name=\"fake\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("fathom:request_success_total{model_name=\"fake\","
                              "finished_reason=\"length\"} 1\n"));
}

TEST(Server, SaysWhyItCannotListen) {
  event::Ring ring(16);
  observe::Ledger ledger;
  observe::Metrics metrics({}, [] { return observe::EngineGauges(); });
  observe::Recorder recorder(&ring, {&ledger, &metrics});
  FakeSession session{event::Sink()};
  const Observers observers = {event::Sink(), &recorder, &ledger, &metrics};
  const auto first = Server::Create({.port = 0, .handle_signals = false}, session, observers);
  ASSERT_TRUE(first);
  const auto second =
      Server::Create({.port = (*first)->port(), .handle_signals = false}, session, observers);
  ASSERT_FALSE(second);
  EXPECT_THAT(
      second.error().message,
      HasSubstr(fmt::format("127.0.0.1:{}: another program listens there", (*first)->port())));
  const auto elsewhere =
      Server::Create({.host = "300.1.1.1", .handle_signals = false}, session, observers);
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("expected an address of this machine"));
}

}  // namespace
}  // namespace fathom::server
