#include "diagnose/understand/parallelism.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

#include "diagnose/understand/attention_calls.h"
#include "diagnose/understand/classify.h"

namespace fathom::diagnose {
namespace {

// By the published configurations; the longer names first.
struct Family {
  std::string_view part;
  int kv_heads;
};
constexpr Family kFamilies[] = {
    {"distill-qwen-1.5b", 2}, {"distill-qwen-7b", 4},   {"distill-qwen-14b", 8},
    {"distill-qwen-32b", 8},  {"distill-llama-8b", 8},  {"distill-llama-70b", 8},
    {"r1-0528-qwen3-8b", 8},  {"deepseek-coder-v2", 0}, {"deepseek-v2", 0},
    {"deepseek-v3", 0},       {"deepseek-r1", 0},
};

// More of anything than this is a broken input.
constexpr int kMost = 1 << 15;

// A number of ranks, groups or heads; 0 for what is none.
int Count(double value) { return value >= 1 && value <= kMost ? static_cast<int>(value) : 0; }

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Distilled models go by names like "deepseek-r1-14b" too: MLA models are not that small, but for
// the 16 billion of V2-Lite and Coder-V2-Lite, which say so. "4bit" is no size.
bool NamesASmallSize(std::string_view lower) {
  if (lower.find("lite") != std::string_view::npos) return false;
  for (size_t at = 0; at < lower.size(); ++at) {
    if (lower[at] < '0' || lower[at] > '9' || (at > 0 && lower[at - 1] != '-')) continue;
    double billions = 0;
    const char* const end = lower.data() + lower.size();
    const auto [after, error] = std::from_chars(lower.data() + at, end, billions);
    if (error != std::errc() || after == end || *after != 'b' || billions >= 200) continue;
    if (after + 1 == end || !IsLetter(after[1])) return true;
  }
  return false;
}

// "flash_mla_…", "FlashMLA…", "sm100_fmha_mla…": MLA as a word, or behind "flash".
bool IsLatentKernel(std::string_view name) {
  const std::string lower = Lower(name);
  for (size_t at = lower.find("mla"); at != std::string::npos; at = lower.find("mla", at + 1)) {
    const bool begins = at == 0 || !IsLetter(lower[at - 1]) ||
                        std::string_view(lower).substr(0, at).ends_with("flash");
    const bool ends = at + 3 == lower.size() || !IsLetter(lower[at + 3]);
    if (begins && ends) return true;
  }
  return lower.find("decodelatentkernel") != std::string::npos;
}

// "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(…)": ranks are its last argument.
int RanksOfCustomReduce(std::string_view name) {
  const size_t at = name.find("cross_device_reduce_");
  if (at == std::string_view::npos) return 0;
  const size_t close = name.find('>', at);
  const size_t comma = close == std::string_view::npos ? close : name.rfind(',', close);
  if (comma == std::string_view::npos || comma < at) return 0;
  const size_t digit = name.find_first_not_of(' ', comma + 1);
  int ranks = 0;
  std::from_chars(name.data() + digit, name.data() + close, ranks);
  return ranks;
}

void ReadLogs(const Timeline& t, AttentionParallelism& p) {
  for (const LogLine& line : t.log_lines) {
    if (line.kind != LogKind::kStartup) continue;
    if (const auto n = t.Value(line, LogField::kAttentionRanks)) p.ranks = Count(*n);
    if (const auto n = t.Value(line, LogField::kAttentionReplicas)) p.replicas = Count(*n);
  }
  for (const Fact& fact : t.facts) {
    if (t.Name(fact.key) == kModelFact) p.kv_heads = KvHeadsByName(t.Name(fact.text));
  }
}

void ReadTrace(const TraceIndex& index, const Steps& steps, AttentionParallelism& p) {
  const Timeline& t = index.timeline();
  const Bucket* bucket = steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.empty()) return;
  const Step& step = steps.all[bucket->counted[bucket->counted.size() / 2]];
  int ranks = 0;
  for (const uint32_t s : steps.WorkOf(step)) {
    const std::string_view name = t.SliceName(s);
    if (index.kind(s) == KernelClass::kAttention && IsLatentKernel(name)) p.kv_heads = 0;
    if (index.kind(s) != KernelClass::kCollective) continue;
    ranks = std::max(ranks, RanksOfCustomReduce(name));
    if (t.slices.category[s] != Category::kKernel || t.slices.detail[s] == kNone) continue;
    const uint32_t row = t.kernels[t.slices.detail[s]].collective;
    if (row == kNone) continue;
    const CollectiveDetail& c = t.collectives[row];
    if (t.Name(c.name).find("allreduce") != std::string_view::npos) {
      ranks = std::max(ranks, c.group_size);
    }
  }
  if (p.ranks == 0) p.ranks = Count(ranks);
  // Two heads and more on this rank are a part of the model's, none of them a copy.
  const std::vector<AttentionCall> calls = FindAttentionCalls(index, steps, step);
  const int heads = calls.empty() ? 0 : Count(calls.front().kv_heads);
  if (p.kv_heads < 0 && p.ranks > 0 && heads >= 2) p.kv_heads = heads * p.ranks;
}

}  // namespace

int KvHeadsByName(std::string_view model) {
  const std::string lower = Lower(model);
  for (const Family& family : kFamilies) {
    if (lower.find(family.part) == std::string::npos) continue;
    if (family.kv_heads > 0) return family.kv_heads;
    const bool other = lower.find("qwen") != std::string::npos ||
                       lower.find("llama") != std::string::npos || NamesASmallSize(lower);
    return other ? -1 : 0;
  }
  return -1;
}

int AttentionParallelism::copies() const {
  if (ranks <= 0 || kv_heads < 0) return 0;
  return kv_heads == 0 ? ranks : std::max(ranks / kv_heads, 1);
}

AttentionParallelism FindAttentionParallelism(const TraceIndex& index, const Steps& steps) {
  AttentionParallelism p;
  ReadLogs(index.timeline(), p);
  ReadTrace(index, steps, p);
  return p;
}

}  // namespace fathom::diagnose
