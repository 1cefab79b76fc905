#include "event/event.h"

#include <array>

namespace fathom::event {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(Kind::kCount)> kKinds = {
    "request_arrived", "tokenize",      "queued",        "scheduled",
    "schedule",        "step",          "step_sequence", "op",
    "token",           "detokenize",    "network_write", "preempted",
    "finished",        "prefix_lookup", "cache_miss",    "kv_version_mismatch",
    "model_load",      "responded",     "parse",         "wait_for_cpu",
    "ledger"};

constexpr std::array<std::string_view, static_cast<size_t>(Op::kCount)> kOps = {
    "none", "embed",   "norm",          "qkv",  "rope_cache", "attention", "out_proj", "dense_mlp",
    "gate", "experts", "shared_expert", "head", "sample",     "copy",      "comm"};

constexpr std::array<std::string_view, static_cast<size_t>(MissCause::kCount)> kCauses = {
    "none",          "first_use", "other_text", "bos",    "stripped_thinking", "evicted",
    "page_rounding", "version",   "capacity",   "tenant", "generated"};

template <class E, size_t N>
std::string_view Name(const std::array<std::string_view, N>& names, E value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? names[index] : "unknown";
}

}  // namespace

std::string_view NameOf(Kind kind) { return Name(kKinds, kind); }
std::string_view NameOf(Op op) { return Name(kOps, op); }
std::string_view NameOf(MissCause cause) { return Name(kCauses, cause); }

}  // namespace fathom::event
