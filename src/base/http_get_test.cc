#include "base/http_get.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

namespace fathom {
namespace {

// Answers one connection with fixed bytes; an empty answer keeps the client waiting.
class OneShotServer {
 public:
  explicit OneShotServer(std::string answer) : answer_(std::move(answer)) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    listen(fd_, 1);
    thread_ = std::thread([this] {
      const int client = accept(fd_, nullptr, nullptr);
      std::array<char, 4096> request{};
      (void)!read(client, request.data(), request.size());
      (void)!write(client, answer_.data(), answer_.size());
      if (answer_.empty()) (void)!read(client, request.data(), request.size());  // until it leaves
      close(client);
    });
  }
  ~OneShotServer() {
    thread_.join();
    close(fd_);
  }
  Url url() const { return {.host = "127.0.0.1", .port = std::to_string(port_), .target = "/m"}; }

 private:
  std::string answer_;
  int fd_ = -1;
  int port_ = 0;
  std::thread thread_;
};

TEST(HttpGet, ReturnsTheBody) {
  OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  const auto body = HttpGet(server.url());
  ASSERT_TRUE(body) << body.error().message;
  EXPECT_EQ(*body, "hello");
}

TEST(HttpGet, OtherAnswersAreErrors) {
  {
    OneShotServer server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    EXPECT_NE(HttpGet(server.url()).error().message.find("found 404"), std::string::npos);
  }
  {
    OneShotServer server("");
    EXPECT_EQ(HttpGet(server.url(), {.timeout_ms = 50}).error().code, Code::kDeadlineExceeded);
  }
  {
    OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n0123456789");
    EXPECT_FALSE(HttpGet(server.url(), {.max_bytes = 20}));
  }
  {
    OneShotServer server("not http at all\r\n\r\n");
    EXPECT_FALSE(HttpGet(server.url()));
  }
}

TEST(HttpGet, ParsesUrls) {
  const auto url = ParseUrl("http://[::1]:8000/metrics?x=1");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, "8000");
  EXPECT_EQ(url->target, "/metrics?x=1");
  EXPECT_EQ(ParseUrl("localhost:9")->target, "/");
  for (const char* bad :
       {"", "http://", "http://:80", "http://h:port", "http://h:", "https://h", "[::1"}) {
    EXPECT_FALSE(ParseUrl(bad)) << bad;
  }
}

}  // namespace
}  // namespace fathom
