// NCCL_DEBUG=INFO (with NCCL_DEBUG_SUBSYS=COLL for the calls): "host:pid:tid [dev] NCCL INFO ...".
#include <algorithm>

#include "base/strings.h"
#include "diagnose/readers/log.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

// ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16,
// float8e4m3, float8e5m2.
constexpr uint64_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

int32_t Int32(std::optional<int64_t> value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value.value_or(-1), INT32_MIN, INT32_MAX));
}

struct Prefix {
  std::string_view host;
  int64_t pid = -1;
  int32_t device = -1;
};

// Takes "node-01:1465:1471 [0] NCCL INFO " off `text`.
bool TakePrefix(std::string_view& text, Prefix& prefix) {
  const size_t mark = text.find(" NCCL ");
  if (mark == std::string_view::npos) return false;
  std::string_view head = text.substr(0, mark);
  text.remove_prefix(mark + 6);
  TakeWord(text);  // INFO, WARN, TRACE
  text = Trim(text);
  if (!head.empty() && head.back() == ']') {
    const size_t open = head.rfind('[');
    if (open == std::string_view::npos) return false;
    const auto device = WholeInteger(head.substr(open + 1, head.size() - open - 2));
    prefix.device = Int32(device);
    head = Trim(head.substr(0, open));
  }
  // Another program's prefix may stand in front: the host is the last word.
  if (const size_t space = head.rfind(' '); space != std::string_view::npos) {
    head.remove_prefix(space + 1);
  }
  prefix.host = TakeUntil(head, ":");
  prefix.pid = WholeInteger(TakeUntil(head, ":")).value_or(-1);
  return !prefix.host.empty();
}

// "7[7]", "0[1e0]": the rank before the bracket.
int32_t Rank(std::string_view word) { return Int32(WholeInteger(TakeUntil(word, "["))); }

// "Channel 07/0 : 7[7] -> 0[0] [send] via P2P/IPC"
bool ReadChannel(std::string_view text, const Prefix& prefix, SourceId source, Timeline& timeline) {
  if (!text.starts_with("Channel ")) return false;
  text.remove_prefix(8);
  Transport transport;
  transport.source = source;
  transport.host = timeline.strings.Intern(prefix.host);
  std::string_view channel = TakeWord(text);
  transport.channel = Int32(WholeInteger(TakeUntil(channel, "/")));
  TakeWord(text);  // ":"
  transport.from_rank = Rank(TakeWord(text));
  if (TakeWord(text) != "->") return false;
  transport.to_rank = Rank(TakeWord(text));
  const size_t via = text.find("via ");
  if (via == std::string_view::npos) return false;
  text.remove_prefix(via + 4);
  transport.via = timeline.strings.Intern(TakeWord(text));
  timeline.transports.push_back(transport);
  return true;
}

// "AllReduce: opCount 0 sendbuff 0x.. recvbuff 0x.. count 2 datatype 7 op 0 root 0 comm 0x..
// [nranks=2] stream 0x.."; opCount is hexadecimal.
bool ReadCall(std::string_view text, const Prefix& prefix, const LogLine& line,
              Timeline& timeline) {
  const size_t colon = text.find(": opCount ");
  if (colon == std::string_view::npos || text.find(' ') < colon) return false;
  CollectiveCall call;
  call.t_ns = line.t_ns;
  call.source = line.source;
  call.name = timeline.strings.Intern(text.substr(0, colon));
  call.host = timeline.strings.Intern(prefix.host);
  call.pid = prefix.pid;
  call.device = prefix.device;
  const auto word_after = [&](std::string_view key) {
    const size_t at = text.find(key);
    if (at == std::string_view::npos) return std::string_view();
    std::string_view rest = text.substr(at + key.size());
    return TakeWord(rest);
  };
  call.op_count = static_cast<uint64_t>(WholeInteger(word_after(": opCount "), 16).value_or(0));
  call.count = static_cast<uint64_t>(WholeInteger(word_after(" count ")).value_or(0));
  call.datatype = Int32(WholeInteger(word_after(" datatype ")));
  call.communicator = timeline.strings.Intern(word_after(" comm "));
  call.num_ranks = ToInt32(NumberAfter(text, "[nranks="), -1);
  if (call.datatype >= 0 && static_cast<size_t>(call.datatype) < std::size(kTypeBytes)) {
    call.bytes = call.count * kTypeBytes[call.datatype];
  }
  timeline.collective_calls.push_back(call);
  return true;
}

}  // namespace

bool ReadNcclLine(std::string_view text, const LogLine& line, Timeline& timeline) {
  Prefix prefix;
  const std::string_view whole = text;
  if (!TakePrefix(text, prefix)) return false;
  if (ReadChannel(text, prefix, line.source, timeline)) return true;
  if (ReadCall(text, prefix, line, timeline)) return true;
  if (text.starts_with("NET/Socket: Using") || text.starts_with("Using network ")) {
    timeline.AddFact(line.source, "nccl.network", Trim(text.substr(0, text.find(':'))));
    return true;
  }
  if (const size_t at = text.find("NCCL version "); at != std::string_view::npos) {
    std::string_view rest = text.substr(at + 13);
    timeline.AddFact(line.source, "nccl.version", TakeWord(rest));
    return true;
  }
  if (const size_t at = text.find(" nranks ");
      at != std::string_view::npos && text.find("Init COMPLETE") != std::string_view::npos) {
    std::string_view rest = text.substr(at + 8);
    timeline.AddFact(line.source, "nccl.communicator_ranks",
                     WholeNumber(TakeWord(rest)).value_or(-1));
    return true;
  }
  if (whole.find(" NCCL WARN ") != std::string_view::npos) {
    timeline.AddFact(line.source, "nccl.warning", Trim(text));
    return true;
  }
  return true;  // other INFO lines state nothing that a rule needs, and are NCCL's all the same
}

}  // namespace fathom::diagnose
