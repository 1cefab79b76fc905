#include "ops/cuda/attention_case.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/strings.h"

namespace fathom::ops {
namespace {

constexpr int64_t kMaxKeys = int64_t{1} << 30;
constexpr int64_t kMaxSequences = 1 << 20;

// A positive integer with an optional k (1024); `expected` says what stands in its place.
Result<int64_t> Number(std::string_view text, int64_t most, std::string_view what,
                       std::string_view expected = "1") {
  std::string_view digits = text;
  int64_t unit = 1;
  if (!digits.empty() && (digits.back() == 'k' || digits.back() == 'K')) {
    unit = 1024;
    digits.remove_suffix(1);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 1 ||
      value > most / unit) {
    return Err(Code::kInvalidArgument, "{} \"{}\": expected {} to {}; k is the only unit (1024)",
               what, text, expected, most);
  }
  return value * unit;
}

// A, which counts twice, or A/B; `forms` names what is legal.
Result<std::pair<int, int>> Pair(const std::string& text, int64_t most, std::string_view what,
                                 std::string_view forms) {
  const std::vector<std::string_view> parts = Split(text, '/');
  if (parts.size() > 2) {
    return Err(Code::kInvalidArgument, "{} \"{}\": expected {}", what, text, forms);
  }
  const std::string expected = fmt::format("{}, each 1", forms);
  FATHOM_ASSIGN_OR_RETURN(const int64_t first, Number(parts[0], most, what, expected));
  FATHOM_ASSIGN_OR_RETURN(const int64_t second, Number(parts.back(), most, what, expected));
  return std::pair(static_cast<int>(first), static_cast<int>(second));
}

std::string InK(int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}k", tokens / 1024) : fmt::format("{}", tokens);
}

}  // namespace

std::string AttentionCase::Name() const {
  std::string name;
  const char* const cache = call.cache == cost::CacheEncoding::kInt8  ? "int8 "
                            : call.cache == cost::CacheEncoding::kFp8 ? "e4m3 "
                                                                      : "";
  const std::string code = fmt::format("{}{}", cache, decode && dtype == DType::kF16 ? "f16 " : "");
  if (!decode && call.expanded_from != 0) {
    name = fmt::format("mla {}h {}", call.heads, call.causal ? "" : "full ");
  } else if (!decode) {
    name = fmt::format("{}/{}h d{}{} {} ", call.heads, call.kv_heads, call.dim_qk,
                       call.dim_qk == call.dim_v ? "" : fmt::format("/{}", call.dim_v),
                       call.causal ? "causal" : "full");
  } else if (call.latent) {
    name = fmt::format("mla {}h {}", call.heads, code);
  } else {
    name = fmt::format("gqa {}/{}h d{} {}", call.heads, call.kv_heads,
                       call.dim_qk == call.dim_v ? std::to_string(call.dim_v)
                                                 : fmt::format("{}/{}", call.dim_qk, call.dim_v),
                       code);
  }
  const auto& sequences = call.sequences;
  for (size_t first = 0, next = 0; first < sequences.size(); first = next) {
    while (next < sequences.size() && sequences[next].keys == sequences[first].keys &&
           sequences[next].queries == sequences[first].queries) {
      ++next;
    }
    const cost::AttentionSequence& s = sequences[first];
    if (first != 0) name += " + ";
    if (decode) {
      name += fmt::format("{} x {}", next - first, InK(s.keys));
      if (s.queries != 1) name += fmt::format(", {} queries", s.queries);
    } else if (s.queries == s.keys) {
      name += fmt::format("{} x {}", next - first, s.keys);
    } else {
      name += next - first == 1 ? "" : fmt::format("{} x ", next - first);
      name += fmt::format("{} of {}", s.queries, s.keys);
    }
  }
  if (call.window >= 0) name += fmt::format(", window {} + {} first", call.window, call.anchors);
  if (!decode && dtype == DType::kF16) name += ", float16";
  if (!decode && !code.empty()) name += fmt::format(", {}cache", code);
  return name;
}

DecodeAttentionShape AttentionCase::DecodeShape() const {
  using kernels::cuda::CacheCode;
  int64_t queries = 1;
  int64_t keys = 1;
  for (const cost::AttentionSequence& s : call.sequences) {
    queries = std::max(queries, s.queries);
    keys = std::max(keys, s.keys);
  }
  return {.num_sequences = static_cast<int32_t>(call.sequences.size()),
          .max_query_tokens = static_cast<int32_t>(queries),
          .num_heads = call.heads,
          .num_kv_heads = call.kv_heads,
          .head_dim_qk = call.dim_qk,
          .head_dim_v = call.dim_v,
          .page_tokens = page_tokens,
          .max_kv_tokens = static_cast<int32_t>(keys),
          .dtype = dtype,
          .code = call.cache == cost::CacheEncoding::kInt8  ? CacheCode::kInt8
                  : call.cache == cost::CacheEncoding::kFp8 ? CacheCode::kE4m3
                                                            : CacheCode::kBf16,
          .tile_lists = call.window >= 0};
}

PrefillAttentionShape AttentionCase::PrefillShape() const {
  int64_t tokens = 0;
  int64_t longest = 1;
  int64_t keys = 0;
  for (const cost::AttentionSequence& s : call.sequences) {
    tokens += s.queries;
    longest = std::max(longest, s.keys);
    keys += s.keys;
  }
  return {.num_sequences = static_cast<int32_t>(call.sequences.size()),
          .num_tokens = static_cast<int32_t>(std::min(tokens, kMaxKeys)),
          .max_kv_tokens = static_cast<int32_t>(longest),
          .max_total_kv_tokens = keys,
          .num_heads = call.heads,
          .num_kv_heads = call.kv_heads,
          .head_dim_qk = call.dim_qk,
          .head_dim_v = call.dim_v,
          .page_tokens = page_tokens,
          .causal = call.causal,
          .window = call.window < 0 ? std::numeric_limits<int32_t>::max()
                                    : static_cast<int32_t>(call.window),
          .anchors = static_cast<int32_t>(call.window < 0 ? 0 : call.anchors),
          .dtype = dtype};
}

MlaPrefillShape AttentionCase::LatentPrefillShape() const {
  const PrefillAttentionShape shape = PrefillShape();
  return {.num_sequences = shape.num_sequences,
          .num_tokens = shape.num_tokens,
          .max_kv_tokens = shape.max_kv_tokens,
          .max_total_kv_tokens = shape.max_total_kv_tokens,
          .num_heads = shape.num_heads,
          .page_tokens = page_tokens,
          .causal = shape.causal,
          .dtype = shape.dtype};
}

Status ParseHeads(const std::string& text, AttentionCase* out) {
  constexpr int64_t kMaxHeads = 4096;
  FATHOM_ASSIGN_OR_RETURN(const auto heads, Pair(text, kMaxHeads, "heads", "QUERY or QUERY/KV"));
  if (heads.first % heads.second != 0) {
    return Err(Code::kInvalidArgument,
               "heads \"{}\": expected query heads to be a multiple of kv heads", text);
  }
  out->call.heads = heads.first;
  out->call.kv_heads = heads.second;
  return {};
}

Status ParseDims(const std::string& text, AttentionCase* out) {
  if (text == "mla" && !out->decode) {
    out->call.dim_qk = kernels::cuda::kMlaNope + kernels::cuda::kMlaRope;
    out->call.dim_v = kernels::cuda::kMlaV;
    out->call.kv_heads = out->call.heads;
    out->call.expanded_from = kernels::cuda::kMlaLatent;
    return {};
  }
  if (text == "mla") {
    out->call.dim_qk = 576;
    out->call.dim_v = 512;
    out->call.kv_heads = 1;
    out->call.latent = true;
    return {};
  }
  constexpr int64_t kMaxDim = 1024;
  FATHOM_ASSIGN_OR_RETURN(const auto dims, Pair(text, kMaxDim, "head dims", "mla, D or QK/V"));
  out->call.dim_qk = dims.first;
  out->call.dim_v = dims.second;
  out->call.latent = false;
  out->call.expanded_from = 0;
  return {};
}

Status ParseLengths(const std::string& text, int64_t queries, AttentionCase* out) {
  out->call.sequences.clear();
  for (const std::string_view entry : Split(text, ',')) {
    const size_t times = entry.find('x');
    int64_t count = 1;
    if (times != std::string_view::npos) {
      FATHOM_ASSIGN_OR_RETURN(count, Number(entry.substr(0, times), kMaxSequences, "sequences"));
    }
    FATHOM_ASSIGN_OR_RETURN(
        const int64_t keys,
        Number(times == std::string_view::npos ? entry : entry.substr(times + 1), kMaxKeys,
               "keys"));
    const int64_t asks = queries > 0 ? queries : out->decode ? 1 : keys;
    if (asks > keys) {
      return Err(Code::kInvalidArgument, "{} queries of a sequence of {} keys: expected at most {}",
                 asks, keys, keys);
    }
    if (static_cast<int64_t>(out->call.sequences.size()) + count > kMaxSequences) {
      return Err(Code::kInvalidArgument, "lengths \"{}\": expected at most {} sequences", text,
                 kMaxSequences);
    }
    out->call.sequences.insert(out->call.sequences.end(), static_cast<size_t>(count), {asks, keys});
  }
  return {};
}

}  // namespace fathom::ops
