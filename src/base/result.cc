#include "base/result.h"

namespace fathom {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kNotFound:
      return "not_found";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kOutOfRange:
      return "out_of_range";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Error::ToString() const { return fmt::format("{}: {}", CodeName(code), message); }

Error WithContext(Error error, std::string_view where) {
  error.message = fmt::format("{}: {}", where, error.message);
  return error;
}

}  // namespace fathom
