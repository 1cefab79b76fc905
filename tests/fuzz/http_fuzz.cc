// Bytes of a client on a real socket: whatever they are, the connection ends and the server lives.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

#include "server/fake_session_for_test.h"
#include "server/server.h"

namespace {

using namespace fathom;

class Target {
 public:
  Target() {
    spdlog::set_level(spdlog::level::off);
    server::ServerOptions options;
    options.port = 0;
    options.handle_signals = false;
    options.limits.max_body_bytes = 1 << 16;
    server_ = *server::Server::Create(options, session_,
                                      {event::Sink(&ring_), &recorder_, &ledger_, &metrics_});
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~Target() {
    server_->Drain();
    thread_.join();
  }
  uint16_t port() const { return server_->port(); }

 private:
  event::Ring ring_{1 << 16};
  observe::Ledger ledger_;
  observe::Metrics metrics_{{.model_name = "fake", .max_context_tokens = 2000},
                            [] { return observe::EngineGauges(); }};
  observe::Recorder recorder_{&ring_, {&ledger_, &metrics_}};
  server::FakeSession session_{event::Sink(&ring_), std::chrono::microseconds(20)};
  std::unique_ptr<server::Server> server_;
  std::thread thread_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target target;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) std::abort();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(target.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  const linger reset = {.l_onoff = 1, .l_linger = 0};  // else the ports run out
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  (void)send(fd, data, size, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char buffer[4096];
  while (recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
  close(fd);
  return 0;
}
