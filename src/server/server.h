#pragma once
// `fathom serve` without the command line: one I/O thread, the endpoints, and an orderly end.
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/api.h"
#include "server/http_server.h"
#include "session/session.h"

namespace fathom::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0 picks a free one
  HttpLimits limits;
  ApiOptions api;
  int32_t drain_s = 30;        // how long admitted requests may go on after SIGTERM
  bool handle_signals = true;  // SIGTERM and SIGINT: drain; a second one ends at once
};

class Server {
 public:
  // Binds. `session` and the observers outlive the server.
  static Result<std::unique_ptr<Server>> Create(const ServerOptions& options,
                                                session::Session& session,
                                                const Observers& observers);
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // Serves on the calling thread until it was told to end and has drained.
  virtual void Run() = 0;
  // Any thread: refuse new generations, let the admitted ones end, then return from Run.
  virtual void Drain() = 0;
};

}  // namespace fathom::server
