#include "diagnose/scrub_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/strings.h"

namespace fathom::diagnose {
namespace {

constexpr size_t npos = std::string_view::npos;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWord(char c) { return IsAlpha(c) || IsDigit(c) || c == '_' || (c & 0x80) != 0; }
bool IsNameByte(char c) { return IsWord(c) || c == '-' || c == '.'; }
bool IsPathByte(char c) { return IsNameByte(c) || std::string_view("/+@~%#=").find(c) != npos; }

size_t RunOf(std::string_view text, size_t at, bool (*is)(char)) {
  size_t end = at;
  while (end < text.size() && is(text[end])) ++end;
  return end - at;
}

bool StartsAt(std::string_view text, size_t at, std::string_view what) {
  return text.substr(at, what.size()) == what;
}

// Shorter names are met by chance in binary data.
constexpr size_t kCheckedLength = 4;

// Folders that every machine has: what lies there is no secret.
constexpr std::string_view kSystemRoots[] = {"/usr/", "/lib/",        "/lib64/",  "/proc/",
                                             "/sys/", "/dev/",        "/bin/",    "/sbin/",
                                             "/etc/", "/opt/nvidia/", "/opt/rocm"};
// Behind these, a path is that of a published package.
constexpr std::string_view kPackageFolders[] = {"site-packages/", "dist-packages/"};
// Behind these stands a user's name.
constexpr std::string_view kHomes[] = {"/home/", "/Users/", "\\Users\\", "\\\\Users\\\\",
                                       "torchinductor_"};
// Accounts that say nothing, and words that traces are full of.
constexpr std::string_view kCommonNames[] = {
    "root",    "user",      "users",  "ubuntu", "admin",  "runner", "python", "python3", "torch",
    "cuda",    "local",     "public", "nvidia", "vllm",   "sglang", "model",  "models",  "data",
    "default", "bin",       "lib",    "src",    "app",    "tmp",    "none",   "main",    "node",
    "gpu",     "localhost", "pip",    "conda",  "docker", "debian", "shared", "jovyan"};

// Keys and labels whose value is a name of a place, as Folded writes them: "hostname": "x",
// hostname="x".
constexpr std::string_view kHostKeys[] = {"hostname",
                                          "host",
                                          "host.name",
                                          "nodename",
                                          "node",
                                          "instance",
                                          "pod",
                                          "container",
                                          "namespace",
                                          "pod_name",
                                          "exported_pod",
                                          "exported_container",
                                          "exported_namespace",
                                          "server.address",
                                          "dist_init_addr",
                                          "nccl_init_addr",
                                          "master_addr",
                                          "data_parallel_address",
                                          "k8s.pod.name",
                                          "k8s.node.name",
                                          "service.instance.id"};
// Those of them whose value is a name without quotes too; "node: 3" and "host: down" are text.
constexpr std::string_view kBareHostKeys[] = {"hostname", "_addr", "_address"};
constexpr std::string_view kUserKeys[] = {"user", "username", "user.name", "enduser.id"};
// What a client said: "prompt": "...", prompt: '...'.
constexpr std::string_view kPromptKeys[] = {"prompt",
                                            "text",
                                            "gen_ai.prompt",
                                            "gen_ai.completion",
                                            "gen_ai.content",
                                            "gen_ai.input.messages",
                                            "gen_ai.output.messages",
                                            "input_text",
                                            "output_text",
                                            "system_instructions"};

constexpr std::string_view kCredentialPrefixes[] = {"hf_",         "sk-",    "ghp_",  "gho_",
                                                    "github_pat_", "glpat-", "xoxb-", "xoxp-",
                                                    "AKIA",        "eyJ",    "nvapi-"};
// Variables that say how serving was set up; their values are kept (paths in them are not).
constexpr std::string_view kKnownVariables[] = {"NCCL_",   "CUDA_",   "TORCH", "PYTORCH", "VLLM_",
                                                "SGLANG_", "SGL_",    "OMP_",  "MKL_",    "HIP_",
                                                "ROCM",    "NVIDIA_", "NVTE_", "TRITON_", "FLASH"};
constexpr std::string_view kCredentialWords[] = {
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "_KEY", "CREDENTIAL", "APIKEY", "COOKIE", "AUTH"};

// Ends of the names of settings whose value is one, as Folded writes them: api_key='x',
// "x-api-key": ["x", "y"], --hf-token x.
constexpr std::string_view kCredentialKeys[] = {
    "_key",    "apikey",   "secretkey", "accesskey",  "privatekey",    "token",
    "secret",  "password", "passwd",    "passphrase", "authorization", "api_keys",
    "apikeys", "secrets",  "passwords", "api_tokens", "auth_tokens",   "access_tokens"};
// Keys of tables, and tokens that text is made of: what ends like this is no credential.
constexpr std::string_view kOrdinaryKeys[] = {
    "cache_key",   "hash_key",     "sort_key",     "group_key",    "lookup_key",  "primary_key",
    "routing_key", "dispatch_key", "prefix_key",   "query_key",    "bos_token",   "eos_token",
    "pad_token",   "unk_token",    "sep_token",    "cls_token",    "mask_token",  "stop_token",
    "start_token", "end_token",    "think_token",  "image_token",  "video_token", "audio_token",
    "new_token",   "next_token",   "output_token", "prompt_token", "input_token", "first_token",
    "per_token",   "draft_token",  "bonus_token",  "special_token"};
constexpr std::string_view kLiterals[] = {"None", "none", "null", "True", "true", "False", "false"};
constexpr std::string_view kRemoved = "[removed]";

template <size_t N>
bool IsOneOf(std::string_view text, const std::string_view (&list)[N]) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}
template <size_t N>
bool StartsWithOneOf(std::string_view text, const std::string_view (&list)[N]) {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}
template <size_t N>
bool EndsWithOneOf(std::string_view text, const std::string_view (&list)[N]) {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view ending) { return text.ends_with(ending); });
}

// Keys are written --api-key, api_key, API_KEY: one spelling of the end that tells them apart.
std::string Folded(std::string_view key) {
  constexpr size_t kLongest = 40;
  std::string folded(key.substr(key.size() - std::min(key.size(), kLongest)));
  for (char& c : folded) {
    if (c == '-') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return folded;
}

// Backslashes in front of the quote at `at`; npos where no quote stands behind them.
size_t EscapesOfQuote(std::string_view text, size_t at) {
  const size_t quote = text.find_first_not_of('\\', at);
  if (quote == npos || (text[quote] != '"' && text[quote] != '\'')) return npos;
  return quote - at;
}

// Where the string that opens at `at` (on its quote, behind `escapes` backslashes) closes: on its
// quote or the backslashes before it; npos when it does not. JSON in JSON: in \"a\\\"b\" each level
// of strings doubles the backslashes and adds one in front of a quote.
size_t StringEnd(std::string_view text, size_t at, size_t escapes) {
  const char quote = text[at];
  size_t backslashes = 0;
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++backslashes;
      continue;
    }
    if (text[i] == quote) {
      size_t left = backslashes;
      size_t levels = escapes;
      while (left % 2 == 1 && levels > 0) {
        left /= 2;
        levels /= 2;
      }
      if (left % 2 == 0) return i - std::min(escapes, backslashes);
    }
    backslashes = 0;
  }
  return npos;
}

// A value behind a key, without its quotes.
struct Value {
  size_t begin = 0;
  size_t end = 0;
  bool quoted = false;
  bool listed = false;  // one of several
};

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool IsBlank(char c) { return c == ' ' || c == '\t'; }
size_t SkipTo(std::string_view text, size_t at, bool (*skip)(char)) {
  return at + RunOf(text, std::min(at, text.size()), skip);
}

// Behind what stands between a key that ends before `at` and its value: `key=`, `"key" : `, OTLP's
// `"key","value":{"stringValue":`, and behind an option also ` ` or `', `. npos where none does.
size_t BehindSeparator(std::string_view text, size_t at, bool option) {
  size_t i = at;
  const size_t escapes = EscapesOfQuote(text, i);
  if (escapes != npos) i += escapes + 1;
  const size_t behind_key = i;
  i = SkipTo(text, i, IsSpace);
  if (i >= text.size()) return npos;
  if (option && text[i] != '=' && text[i] != ':') {
    if (escapes == npos) return i > behind_key && IsBlank(text[i - 1]) ? i : npos;
    if (text[i] == ',') return SkipTo(text, i + 1, IsSpace);
  }
  if (text[i] == ',') {
    constexpr std::string_view kString = "\"stringValue\"";
    const std::string_view rest = text.substr(i, 160);
    const size_t key = rest.find(kString);
    if (key == npos || rest.find("\"value\"") > key) return npos;
    i = SkipTo(text, i + key + kString.size(), IsSpace);
    if (i >= text.size()) return npos;
  }
  if (text[i] != ':' && text[i] != '=') return npos;
  // "Key::type", "token == x" are code.
  if (i + 1 < text.size() && text[i + 1] == text[i]) return npos;
  return SkipTo(text, i + 1, IsSpace);
}

// The values of the key that ends before `at`: of `key="value"`, `key: ['value', None, …]`,
// `key=("value", …)`, `key=b'value'`, `key=SecretStr('value')`, `\"key\": \"value\"`; with `bare`
// also of `key=value` on one line. An option (a key behind "--") may have only a space behind it.
std::vector<Value> ValuesBehind(std::string_view text, size_t at, bool bare, bool option) {
  std::vector<Value> values;
  size_t i = BehindSeparator(text, at, option);
  if (i == npos) return values;
  if (text.substr(at, i - at).find('\n') != npos) bare = false;
  int depth = 0;
  while (i < text.size() && !StartsAt(text, i, kRemoved)) {
    const size_t word = RunOf(text, i, IsWord);
    const size_t behind_word = i + word;
    if (behind_word < text.size() &&
        (text[behind_word] == '(' || EscapesOfQuote(text, behind_word) != npos)) {
      i = behind_word;  // SecretStr(…, b'…'
    }
    if (text[i] == '[' || text[i] == '(') {
      ++depth;
      i = SkipTo(text, i + 1, IsSpace);
      continue;
    }
    if (const size_t escapes = EscapesOfQuote(text, i); escapes != npos) {
      const size_t quote = i + escapes;
      const size_t end = StringEnd(text, quote, escapes);
      values.push_back({quote + 1, std::min(end, text.size()), true, depth > 0});
      if (end == npos) break;
      i = end + escapes + 1;
    } else {
      const std::string_view stops = option ? " \t\r\n\"'\\" : " \t\r\n\"'\\,;()[]{}";
      const size_t end = std::min(text.find_first_of(stops, i), text.size());
      if (end == i || StartsAt(text, i, "--")) break;
      if (bare) {
        values.push_back({i, end, false, depth > 0});
      } else if (depth == 0) {
        break;
      }
      i = end;
    }
    for (; depth > 0 && i < text.size(); ++i) {
      if (text[i] == ']' || text[i] == ')') {
        --depth;
      } else if (text[i] != ',' && !IsSpace(text[i])) {
        break;
      }
    }
    if (depth == 0) break;
  }
  return values;
}

// The key that starts at `at`: a run of name bytes.
std::string_view KeyAt(std::string_view text, size_t at) {
  return text.substr(at, RunOf(text, at, IsNameByte));
}

// Whether the letter in front of `at` belongs to a JSON escape ("\\n") and not to a word.
bool BehindEscape(std::string_view text, size_t at) {
  return at >= 2 && text[at - 2] == '\\' && std::string_view("ntrbf").find(text[at - 1]) != npos &&
         (at < 3 || text[at - 3] != '\\');
}

bool AtWordStart(std::string_view text, size_t at) {
  return at == 0 || !IsWord(text[at - 1]) || BehindEscape(text, at);
}

bool IsSystemPath(std::string_view path) {
  if (path.starts_with("/usr/local/")) {
    const std::string_view rest = path.substr(11);
    return rest.starts_with("cuda") || rest.starts_with("lib/python") || rest.starts_with("nvidia");
  }
  return StartsWithOneOf(path, kSystemRoots);
}

// "host-1": what an earlier scrub has written.
bool IsStandIn(std::string_view name) {
  if (!name.starts_with("host-") && !name.starts_with("user-")) return false;
  return name.size() > 5 && RunOf(name, 5, IsDigit) == name.size() - 5;
}

// "--key"
bool IsOption(std::string_view text, size_t at) {
  return at >= 2 && text[at - 1] == '-' && text[at - 2] == '-';
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.xX-+") == npos;
}

// Bytes of the number at the front: all of "1.5e-05", all but the unit of "0.5ms".
size_t NumberLength(std::string_view text) {
  if (text.empty() || IsAlpha(text[0])) return 0;
  return std::min(text.find_first_not_of("0123456789.eE-+"), text.size());
}

}  // namespace

std::string_view SecretName(Secret secret) {
  constexpr std::string_view kNames[] = {
      "paths",  "hosts", "users", "addresses", "ids", "credentials", "environment values",
      "prompts"};
  static_assert(std::size(kNames) == kNumSecrets);
  return kNames[static_cast<size_t>(secret)];
}

void TextScrubber::LearnName(Secret kind, std::string_view name) {
  // One letter or number is no name; the "tcp://" and the port of "tcp://host:9400" are none
  // either.
  if (const size_t scheme = name.find("://"); scheme != npos) name.remove_prefix(scheme + 3);
  name = name.substr(0, name.find(':'));
  if (name.size() < 2 || IsNumber(name) || IsOneOf(name, kCommonNames)) return;
  if (RunOf(name, 0, IsNameByte) != name.size()) return;
  names_.try_emplace(std::string(name), kind);
}

void TextScrubber::Learn(std::string_view text) {
  for (const std::string_view home : kHomes) {
    for (size_t at = 0; (at = text.find(home, at)) != npos; at += home.size()) {
      const size_t begin = at + home.size();
      LearnName(Secret::kUser, text.substr(begin, RunOf(text, begin, IsNameByte)));
    }
  }
  for (size_t at = 0; at < text.size(); ++at) {
    if (!AtWordStart(text, at) || !IsAlpha(text[at])) continue;
    const std::string_view key = KeyAt(text, at);
    const std::string folded = Folded(key);
    const bool host = IsOneOf(std::string_view(folded), kHostKeys);
    if (host || IsOneOf(std::string_view(folded), kUserKeys)) {
      const bool option = IsOption(text, at);
      const bool bare = option || EndsWithOneOf(folded, kBareHostKeys);
      const std::vector<Value> values = ValuesBehind(text, at + key.size(), bare, option);
      for (const Value& value : values) {
        const std::string_view name = text.substr(value.begin, value.end - value.begin);
        if (!value.quoted && IsOneOf(name, kLiterals)) continue;
        LearnName(host ? Secret::kHost : Secret::kUser, name);
      }
      if (!values.empty()) {
        at += key.size() - 1;
        continue;
      }
      if (StartsAt(text, at + key.size(), " : ")) {
        // perf's header: "# hostname : node-01"
        const size_t begin = at + key.size() + 3;
        LearnName(Secret::kHost, text.substr(begin, RunOf(text, begin, IsNameByte)));
      }
    }
    at += key.size() - 1;
  }
  // NCCL: "host:pid:tid [device] NCCL INFO".
  for (size_t at = 0; (at = text.find(" NCCL ", at)) != npos; at += 6) {
    size_t end = text.rfind(" [", at);
    if (end == npos || at - end > 16) end = at;
    size_t begin = end == 0 ? npos : text.find_last_of("\n \"", end - 1);
    begin = begin == npos ? 0 : begin + 1;
    const size_t length = RunOf(text, begin, IsNameByte);
    if (begin + length < at && text[begin + length] == ':' && IsDigit(text[begin + length + 1])) {
      LearnName(Secret::kHost, text.substr(begin, length));
    }
  }
}

uint64_t TextScrubber::NumberOf(Secret kind, std::string_view text) {
  auto& numbers = numbers_[static_cast<size_t>(kind)];
  const auto entry = numbers.find(text);
  if (entry != numbers.end()) return entry->second;
  const uint64_t number = numbers.size() + 1;
  numbers.emplace(std::string(text), number);
  return number;
}

void TextScrubber::Replace(Secret kind, std::string_view with, std::string& out) {
  out += with;
  ++replaced_[static_cast<size_t>(kind)];
}

std::string TextScrubber::Apply(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t taken = ApplyAt(text, at, out);
    if (taken > 0) {
      at += taken;
      continue;
    }
    // Nothing starts here: go on behind this word, or this byte.
    const size_t word = std::max<size_t>(RunOf(text, at, IsWord), 1);
    out += text.substr(at, word);
    at += word;
  }
  return out;
}

size_t TextScrubber::ApplyAt(std::string_view text, size_t at, std::string& out) {
  const char byte = text[at];
  if (byte == '/' || StartsAt(text, at, "\\/")) return ApplyPath(text, at, out);
  if (byte == '\\') {  // an escape: what follows it is a word of its own
    const std::string_view escape = text.substr(at, 2);
    out += escape;
    return escape.size();
  }
  if (!IsWord(byte) && byte != ':') return 0;
  if (!AtWordStart(text, at)) return 0;
  for (const auto apply :
       {&TextScrubber::ApplyPrompt, &TextScrubber::ApplyKeyedCredential, &TextScrubber::ApplyUrl,
        &TextScrubber::ApplyCredential, &TextScrubber::ApplyAssignment, &TextScrubber::ApplyMail,
        &TextScrubber::ApplyPath, &TextScrubber::ApplyId, &TextScrubber::ApplyAddress,
        &TextScrubber::ApplyName}) {
    const size_t taken = (this->*apply)(text, at, out);
    if (taken > 0) return taken;
  }
  return 0;
}

size_t TextScrubber::ApplyPrompt(std::string_view text, size_t at, std::string& out) {
  if (!IsAlpha(text[at])) return 0;
  const std::string_view key = KeyAt(text, at);
  if (!IsOneOf(key, kPromptKeys)) return 0;
  size_t taken = at;
  for (const Value& value : ValuesBehind(text, at + key.size(), /*bare=*/false, /*option=*/false)) {
    if (value.begin == value.end) continue;
    out += text.substr(taken, value.begin - taken);
    Replace(Secret::kPrompt, kRemoved, out);
    taken = value.end;
  }
  return taken - at;
}

size_t TextScrubber::ApplyKeyedCredential(std::string_view text, size_t at, std::string& out) {
  if (!IsAlpha(text[at])) return 0;
  const std::string_view key = KeyAt(text, at);
  const std::string folded = Folded(key);
  if (!EndsWithOneOf(folded, kCredentialKeys) || EndsWithOneOf(folded, kOrdinaryKeys)) return 0;
  size_t taken = at;
  for (Value value : ValuesBehind(text, at + key.size(), /*bare=*/true, IsOption(text, at))) {
    std::string_view old = text.substr(value.begin, value.end - value.begin);
    std::string_view stand_in = kRemoved;
    if (!value.quoted) {
      if (IsOneOf(old, kLiterals)) continue;
      // "#new-token: 12" and "per token: 0.5ms" are counts; a number stays one, so that JSON stays
      // JSON.
      const size_t number = NumberLength(old);
      const bool count = number > 0 && old.size() - number <= 2 && folded.ends_with("token");
      if (count || (value.listed && number == old.size())) continue;
      if (number == old.size()) stand_in = "0";
      // "Authorization: Basic dXNlcjpw": behind the scheme.
      if (!value.listed && folded.ends_with("authorization") && StartsAt(text, value.end, " ")) {
        value.begin = value.end + 1;
        value.end = std::min(text.find_first_of(" \t\r\n\"',\\", value.begin), text.size());
      }
    }
    if (value.begin == value.end) continue;
    out += text.substr(taken, value.begin - taken);
    Replace(Secret::kCredential, stand_in, out);
    taken = value.end;
  }
  return taken - at;
}

size_t TextScrubber::ApplyUrl(std::string_view text, size_t at, std::string& out) {
  const size_t scheme = RunOf(text, at, IsAlpha);
  if (scheme == 0 || !StartsAt(text, at + scheme, "://")) return 0;
  const size_t begin = at + scheme + 3;
  size_t end = begin;
  while (end < text.size() && (IsPathByte(text[end]) || text[end] == ':' || text[end] == '?' ||
                               text[end] == '&' || text[end] == '[' || text[end] == ']')) {
    ++end;
  }
  const std::string_view host =
      text.substr(begin, std::min(text.find_first_of("/?", begin), end) - begin);
  out += text.substr(at, scheme + 3);
  Replace(Secret::kHost, fmt::format("host-{}", NumberOf(Secret::kHost, host)), out);
  return end - at;
}

// "/a/b.py", "C:\a\b.py" (backslashes perhaps doubled by JSON), "\/a\/b.py".
size_t TextScrubber::ApplyPath(std::string_view text, size_t at, std::string& out) {
  size_t end = at;
  const bool drive =
      IsAlpha(text[at]) && at + 2 < text.size() && text[at + 1] == ':' && text[at + 2] == '\\';
  if (drive) {
    end = at + 2;
    while (end < text.size() && (IsNameByte(text[end]) || text[end] == '\\')) ++end;
  } else {
    const bool escaped = StartsAt(text, at, "\\/");
    if (text[at] != '/' && !escaped) return 0;
    // "a/b" and "tokens/s" are no absolute paths.
    constexpr std::string_view kNoPathBehind = ".)/*<";
    if (at > 0 && !BehindEscape(text, at) &&
        (IsWord(text[at - 1]) || kNoPathBehind.find(text[at - 1]) != npos)) {
      return 0;
    }
    const auto run = [&](size_t from) {
      while (from < text.size() && (IsPathByte(text[from]) || StartsAt(text, from, "\\/"))) {
        from += text[from] == '\\' ? 2 : 1;
      }
      return from;
    };
    end = run(at);
    // "/data/my models/x": a word behind a space that holds a slash goes on with the path.
    for (;;) {
      if (end >= text.size() || text[end] != ' ') break;
      const size_t next = run(end + 1);
      const size_t slash = text.substr(0, next).find('/', end + 1);
      if (slash == npos || slash == end + 1) break;
      end = next;
    }
  }
  while (end > at + 1 && text[end - 1] == '.') --end;  // the end of a sentence
  std::string path(text.substr(at, end - at));
  for (size_t i = 0; (i = path.find("\\/", i)) != npos;) path.erase(i, 1);
  if (path.find_first_not_of("/\\") == npos || (!drive && path.size() < 3)) return 0;
  for (const std::string_view folder : kPackageFolders) {
    if (const size_t package = path.rfind(folder); package != npos) {
      Replace(Secret::kPath, "", out);
      out += Apply(std::string_view(path).substr(package));
      return end - at;
    }
  }
  if (IsSystemPath(path)) {
    // Names that were learned may stand below a system folder too.
    out += '/';
    out += Apply(std::string_view(path).substr(1));
    return end - at;
  }
  std::string extension;
  const size_t dot = path.rfind('.');
  if (dot != npos && path.find_first_of("/\\", dot) == npos && path.size() - dot <= 8) {
    extension = path.substr(dot);
  }
  Replace(Secret::kPath, fmt::format("/path/{}{}", NumberOf(Secret::kPath, path), extension), out);
  return end - at;
}

size_t TextScrubber::ApplyAssignment(std::string_view text, size_t at, std::string& out) {
  size_t end = at;
  while (end < text.size() &&
         ((text[end] >= 'A' && text[end] <= 'Z') || IsDigit(text[end]) || text[end] == '_')) {
    ++end;
  }
  if (end - at < 3 || end >= text.size() || text[end] != '=' || !IsAlpha(text[at])) return 0;
  const std::string_view name = text.substr(at, end - at);
  size_t value_end = end + 1;
  if (value_end < text.size() && (text[value_end] == '"' || text[value_end] == '\'')) {
    value_end = std::min(StringEnd(text, value_end, 0), text.size());
  } else {
    value_end = std::min(text.find_first_of(" \t\r\n\"',;)]}", value_end), text.size());
  }
  const std::string_view value = text.substr(end + 1, value_end - end - 1);
  const bool credential =
      std::any_of(std::begin(kCredentialWords), std::end(kCredentialWords),
                  [&](std::string_view word) { return name.find(word) != npos; });
  if (value.empty() || StartsAt(text, end + 1, kRemoved) ||
      (!credential && (IsNumber(value) || StartsWithOneOf(name, kKnownVariables)))) {
    return 0;
  }
  out += name;
  out += '=';
  Replace(credential ? Secret::kCredential : Secret::kEnvironment, "[removed]", out);
  return value_end - at;
}

size_t TextScrubber::ApplyCredential(std::string_view text, size_t at, std::string& out) {
  if (StartsAt(text, at, "Bearer ")) {
    const size_t end = std::min(text.find_first_of(" \t\r\n\"',", at + 7), text.size());
    out += "Bearer ";
    Replace(Secret::kCredential, "[removed]", out);
    return end - at;
  }
  for (const std::string_view prefix : kCredentialPrefixes) {
    if (!StartsAt(text, at, prefix)) continue;
    const size_t length = RunOf(text, at, IsNameByte);
    if (length < prefix.size() + 12) return 0;
    Replace(Secret::kCredential, "[removed]", out);
    return length;
  }
  return 0;
}

size_t TextScrubber::ApplyMail(std::string_view text, size_t at, std::string& out) {
  const size_t name = RunOf(text, at, IsNameByte);
  if (name == 0 || at + name >= text.size() || text[at + name] != '@') return 0;
  const size_t domain = RunOf(text, at + name + 1, IsNameByte);
  const std::string_view whole = text.substr(at, name + 1 + domain);
  if (text.substr(at + name + 1, domain).find('.') == npos) return 0;
  // "memcpy@GLIBC_2.14" is a symbol's version.
  if (StartsAt(text, at + name + 1, "GLIBC") || StartsAt(text, at + name + 1, "CXX")) return 0;
  Replace(Secret::kUser, fmt::format("user-{}", NumberOf(Secret::kUser, whole)), out);
  return whole.size();
}

// 8-4-4-4-12 hexadecimal digits, or 24 and more in a row, keep their shape; an id that is all zeros
// but its end has been through here before.
size_t TextScrubber::ApplyId(std::string_view text, size_t at, std::string& out) {
  if (!IsHexDigit(text[at])) return 0;
  size_t end = at;
  size_t digits = 0;
  constexpr size_t kGroups[] = {8, 4, 4, 4, 12};
  size_t group_end = at;
  bool uuid = true;
  for (const size_t group : kGroups) {
    if (RunOf(text, group_end, IsHexDigit) != group) {
      uuid = false;
      break;
    }
    group_end += group;
    if (group != 12) {
      if (group_end >= text.size() || text[group_end] != '-') {
        uuid = false;
        break;
      }
      ++group_end;
    }
  }
  end = uuid ? group_end : at + RunOf(text, at, IsHexDigit);
  digits = uuid ? 32 : end - at;
  if (digits < 24 || (end < text.size() && IsWord(text[end]))) return 0;
  const std::string_view id = text.substr(at, end - at);
  if (!uuid && std::all_of(id.begin(), id.end(), IsDigit)) return 0;  // a number
  std::string stand_in(id.size(), '0');
  if (uuid) {
    for (size_t i = 0; i < id.size(); ++i) {
      if (id[i] == '-') stand_in[i] = '-';
    }
  }
  const std::string number = fmt::format("{:x}", NumberOf(Secret::kId, id));
  stand_in.replace(stand_in.size() - number.size(), number.size(), number);
  Replace(Secret::kId, stand_in, out);
  return id.size();
}

size_t TextScrubber::ApplyAddress(std::string_view text, size_t at, std::string& out) {
  if (!IsHexDigit(text[at]) && text[at] != ':') return 0;
  // IPv4: four numbers below 256.
  size_t end = at;
  int parts = 0;
  while (parts < 4) {
    const size_t length = RunOf(text, end, IsDigit);
    if (length == 0 || length > 3 || std::stoi(std::string(text.substr(end, length))) > 255) break;
    end += length;
    ++parts;
    if (parts < 4) {
      if (end >= text.size() || text[end] != '.') break;
      ++end;
    }
  }
  const auto closed = [&](size_t where) {
    return where >= text.size() || (!IsWord(text[where]) && text[where] != '.') ||
           (text[where] == '.' && (where + 1 == text.size() || !IsWord(text[where + 1])));
  };
  if (parts == 4 && closed(end)) {
    const uint64_t number = NumberOf(Secret::kAddress, text.substr(at, end - at));
    Replace(Secret::kAddress, fmt::format("0.0.{}.{}", number / 256 % 256, number % 256), out);
    return end - at;
  }
  // MAC and IPv6: groups of hexadecimal digits between colons.
  end = at;
  int groups = 0;
  int colons = 0;
  bool empty_group = false;
  bool all_two = true;
  for (;;) {
    const size_t length = RunOf(text, end, IsHexDigit);
    if (length > 4) return 0;
    all_two &= length == 2;
    groups += length > 0;
    empty_group |= length == 0 && colons > 0;
    end += length;
    if (end >= text.size() || text[end] != ':') break;
    ++colons;
    ++end;
  }
  const bool mac = colons == 5 && groups == 6 && all_two;
  const bool ipv6 = (colons == 7 && groups == 8) ||
                    (empty_group && groups >= 3 && colons >= groups && colons <= 7);
  if ((!mac && !ipv6) || (end < text.size() && IsWord(text[end]))) return 0;
  const uint64_t number = NumberOf(Secret::kAddress, text.substr(at, end - at));
  Replace(Secret::kAddress,
          mac ? fmt::format("00:00:00:00:{:02x}:{:02x}", number / 256 % 256, number % 256)
              : fmt::format("::{:x}", number),
          out);
  return end - at;
}

// The longest learned name at a place: "node-01.cluster" before "node-01". An underscore parts
// words here, as in "torchinductor_alice".
std::unordered_map<std::string, Secret>::const_iterator TextScrubber::FindName(
    std::string_view text, size_t at) const {
  for (size_t length = RunOf(text, at, IsNameByte); length >= 2; --length) {
    if (at + length < text.size() && IsWord(text[at + length]) && text[at + length] != '_')
      continue;
    const auto name = names_.find(std::string(text.substr(at, length)));
    if (name != names_.end()) return name;
  }
  return names_.end();
}

size_t TextScrubber::ApplyName(std::string_view text, size_t at, std::string& out) {
  if (names_.empty()) return 0;
  const size_t word_end = at + RunOf(text, at, IsWord);
  for (size_t start = at; start < word_end;) {
    if (const auto name = FindName(text, start); name != names_.end()) {
      out += text.substr(at, start - at);
      const bool host = name->second == Secret::kHost;
      Replace(name->second,
              fmt::format("{}-{}", host ? "host" : "user", NumberOf(name->second, name->first)),
              out);
      return start + name->first.size() - at;
    }
    const size_t underscore = text.substr(0, word_end).find('_', start);
    if (underscore == npos) break;
    start = underscore + 1;
  }
  return 0;
}

std::string_view TextScrubber::FindLearned(std::string_view text) const {
  for (size_t at = 0; at < text.size(); ++at) {
    const bool start = AtWordStart(text, at) || text[at - 1] == '_';
    if (!start || !IsWord(text[at])) continue;
    const auto name = FindName(text, at);
    if (name == names_.end() || name->first.size() < kCheckedLength) continue;
    if (!IsStandIn(name->first)) return name->first;
  }
  return {};
}

}  // namespace fathom::diagnose
