#include "observe/ledger_report.h"

#include <array>
#include <utility>

#include "base/strings.h"

namespace fathom::observe {
namespace {

using nlohmann::ordered_json;

constexpr std::array<Part, 3> kOwnSteps = {Part::kPrefill, Part::kRecompute, Part::kDecode};

double Percent(int64_t ns, int64_t of) {
  return of <= 0 ? 0.0 : 100.0 * static_cast<double>(ns) / static_cast<double>(of);
}

ordered_json OpsJson(const OpTimes& ops) {
  ordered_json out = ordered_json::object();
  for (size_t op = 0; op < kNumOps; ++op) {
    if (ops[op] > 0) out[std::string(NameOf(static_cast<event::Op>(op)))] = ops[op];
  }
  return out;
}

// Every part but the empty ones, and always "unexplained"; the ns add up to the wall time.
ordered_json PartsJson(const Breakdown& breakdown) {
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < kNumParts; ++i) {
    const Part part = static_cast<Part>(i);
    if (breakdown.ns[i] == 0 && part != Part::kUnexplained) continue;
    ordered_json row = {{"part", NameOf(part)}, {"ns", breakdown.ns[i]}};
    row["percent"] = Percent(breakdown.ns[i], breakdown.wall_ns);
    for (Part own : kOwnSteps) {
      if (part == own) row["ops_ns"] = OpsJson(breakdown.op_ns[i]);
    }
    if (part == Part::kQueue) {
      row["while_ns"] = {{"others_prefill", breakdown.queue_others_prefill_ns},
                         {"others_decode", breakdown.queue_others_decode_ns},
                         {"idle", breakdown.ns[i] - breakdown.queue_others_prefill_ns -
                                      breakdown.queue_others_decode_ns}};
    }
    out.push_back(std::move(row));
  }
  return out;
}

ordered_json BreakdownJson(const Breakdown& breakdown) {
  return {{"wall_ns", breakdown.wall_ns}, {"parts", PartsJson(breakdown)}};
}

// Columns that a terminal gives UTF-8 text: two for each CJK character.
size_t Columns(std::string_view text) {
  size_t columns = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) continue;
    columns += byte >= 0xE3 ? 2 : 1;
  }
  return columns;
}

std::string Padded(std::string_view text, size_t columns) {
  std::string out(text);
  for (size_t n = Columns(text); n < columns; ++n) out += ' ';
  return out;
}

struct Words {
  std::string_view title, chunks, steps, tokens, while_prefill, while_decode, slowest, token_took,
      prefix, dropped;
  std::array<std::string_view, kNumParts> parts;
};

constexpr Words kEnglishWords = {
    "where the time went",
    "chunks",
    "steps",
    "tokens",
    "of it while others' prompts ran",
    "of it while others generated",
    "slowest tokens",
    "token {} took {}: {}",
    "prefix cache: {} of {} prompt tokens reused",
    "not exact: {} events lost, {} late, {} steps forgotten",
    {"parse", "tokenize", "prefix lookup", "queue", "preempted", "prefill", "recompute", "decode",
     "others' prefill", "others' decode", "schedule", "detokenize", "ledger", "network",
     "others' detokenize", "waiting for a CPU", "unexplained"}};

constexpr Words kChineseWords = {
    "时间去向",
    "块",
    "步",
    "词元",
    "其中他人提示在预填充",
    "其中他人在生成",
    "最慢的词元",
    "词元 {} 用了 {}：{}",
    "前缀缓存：复用 {} / {} 个提示词元",
    "不精确：丢失 {} 个事件，迟到 {} 个，遗忘 {} 步",
    {"解析请求", "分词", "查前缀缓存", "排队", "被抢占", "预填充", "重算", "解码", "他人的预填充",
     "他人的解码", "调度", "反分词", "生成账单", "网络", "他人的反分词", "等待 CPU", "未解释"}};

constexpr size_t kNameColumns = 32;

std::string Line(std::string_view name, int64_t ns, int64_t wall_ns, std::string_view note = "") {
  std::string out = fmt::format("{} {:>10} {:>6.1f} %", Padded(name, kNameColumns), HumanNs(ns),
                                Percent(ns, wall_ns));
  if (!note.empty()) out += fmt::format("  {}", note);
  return out + "\n";
}

std::string LargestParts(const Breakdown& breakdown, const Words& words) {
  std::array<std::pair<int64_t, size_t>, kNumParts> order;
  for (size_t i = 0; i < kNumParts; ++i) order[i] = {-breakdown.ns[i], i};
  std::sort(order.begin(), order.end());
  std::string out;
  for (size_t i = 0; i < 3 && order[i].first < 0; ++i) {
    if (i > 0) out += ", ";
    out += fmt::format("{} {}", words.parts[order[i].second], HumanNs(-order[i].first));
  }
  return out;
}

}  // namespace

ordered_json LedgerJson(const RequestLedger& ledger, std::string_view id) {
  ordered_json out = {{"schema", "fathom.ledger/1"}, {"id", id}};
  out["request"] = ledger.request_id;
  out["ended"] = ledger.ended;
  out["finish_reason"] = nullptr;
  if (ledger.finish_reason) out["finish_reason"] = FinishReasonName(*ledger.finish_reason);
  out["prompt_tokens"] = ledger.prompt_tokens;
  out["generated_tokens"] = ledger.generated_tokens;
  out["decode_steps"] = ledger.decode_steps;
  out["wall_ns"] = ledger.total.wall_ns;
  out["unexplained_percent"] = Percent(ledger.total.of(Part::kUnexplained), ledger.total.wall_ns);
  out["parts"] = PartsJson(ledger.total);
  out["prefill_chunks"] = ordered_json::array();
  for (const PrefillChunk& chunk : ledger.chunks) {
    out["prefill_chunks"].push_back({{"step", chunk.step_id},
                                     {"first_position", chunk.first_position},
                                     {"tokens", chunk.tokens},
                                     {"ns", chunk.ns},
                                     {"others_prefill_ns", chunk.others_prefill_ns}});
  }
  out["first_token"] = nullptr;
  if (ledger.to_first) out["first_token"] = BreakdownJson(*ledger.to_first);
  out["slowest_tokens"] = ordered_json::array();
  for (const SlowToken& token : ledger.slowest) {
    ordered_json row = {{"index", token.index}, {"step", token.step_id}};
    row.update(BreakdownJson(token.breakdown));
    out["slowest_tokens"].push_back(std::move(row));
  }
  out["prefix_cache"] = nullptr;
  if (ledger.prefix) {
    out["prefix_cache"] = {
        {"asked_tokens", ledger.prefix->asked_tokens},
        {"found_tokens", ledger.prefix->found_tokens},
        {"recomputed_tokens", ledger.prefix->asked_tokens - ledger.prefix->found_tokens},
        {"first_divergent_token", ledger.prefix->first_divergent_token},
        {"cause", NameOf(ledger.prefix->cause)}};
  }
  out["dropped_events"] = ledger.dropped_events;
  out["late_events"] = ledger.late_events;
  out["forgotten_steps"] = ledger.forgotten_steps;
  return out;
}

std::string LedgerTable(const RequestLedger& ledger, Language language) {
  const Words& words = language == Language::kChinese ? kChineseWords : kEnglishWords;
  const Breakdown& total = ledger.total;
  std::string out = Line(words.title, total.wall_ns, total.wall_ns);
  for (size_t i = 0; i < kNumParts; ++i) {
    const Part part = static_cast<Part>(i);
    if (total.ns[i] == 0 && part != Part::kUnexplained) continue;
    std::string note;
    if (part == Part::kPrefill) {
      uint64_t tokens = 0;
      for (const PrefillChunk& chunk : ledger.chunks) tokens += chunk.tokens;
      note = fmt::format("{} {}, {} {}", words.chunks, ledger.chunks.size(), words.tokens, tokens);
    } else if (part == Part::kDecode) {
      note = fmt::format("{} {}, {} {}", words.steps, ledger.decode_steps, words.tokens,
                         ledger.generated_tokens);
    }
    out += Line(fmt::format("  {}", words.parts[i]), total.ns[i], total.wall_ns, note);
    if (part == Part::kQueue) {
      if (total.queue_others_prefill_ns > 0) {
        out += Line(fmt::format("    {}", words.while_prefill), total.queue_others_prefill_ns,
                    total.wall_ns);
      }
      if (total.queue_others_decode_ns > 0) {
        out += Line(fmt::format("    {}", words.while_decode), total.queue_others_decode_ns,
                    total.wall_ns);
      }
    }
    for (size_t op = 0; op < kNumOps; ++op) {
      if (total.op_ns[i][op] == 0) continue;
      out += Line(fmt::format("    {}", NameOf(static_cast<event::Op>(op))), total.op_ns[i][op],
                  total.wall_ns);
    }
  }
  if (!ledger.slowest.empty()) {
    out += fmt::format("{}\n", words.slowest);
    for (const SlowToken& token : ledger.slowest) {
      out += fmt::format("  {}\n", fmt::format(fmt::runtime(words.token_took), token.index,
                                               HumanNs(token.breakdown.wall_ns),
                                               LargestParts(token.breakdown, words)));
    }
  }
  if (ledger.prefix && ledger.prefix->asked_tokens > 0) {
    out += fmt::format(fmt::runtime(words.prefix), ledger.prefix->found_tokens,
                       ledger.prefix->asked_tokens);
    if (ledger.prefix->cause != event::MissCause::kNone) {
      out += fmt::format(" ({} @ {})", NameOf(ledger.prefix->cause),
                         ledger.prefix->first_divergent_token);
    }
    out += "\n";
  }
  if (ledger.dropped_events + ledger.late_events + ledger.forgotten_steps > 0) {
    out += fmt::format(fmt::runtime(words.dropped), ledger.dropped_events, ledger.late_events,
                       ledger.forgotten_steps);
    out += "\n";
  }
  return out;
}

}  // namespace fathom::observe
