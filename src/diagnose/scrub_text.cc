#include "diagnose/scrub_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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

// Keys and labels whose value is a name of a place: "hostname": "x", hostname="x".
constexpr std::string_view kHostKeys[] = {"hostname",
                                          "Hostname",
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
                                          "master_addr",
                                          "data_parallel_address",
                                          "k8s.pod.name",
                                          "k8s.node.name",
                                          "service.instance.id"};
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

// Ends of the names of settings whose value is one: api_key='x', "admin_api_key": ["x", "y"].
constexpr std::string_view kCredentialKeys[] = {"api_key",    "apikey",     "api_keys",
                                                "hf_token",   "password",   "access_token",
                                                "auth_token", "secret_key", "client_secret"};

template <size_t N>
bool IsOneOf(std::string_view text, const std::string_view (&list)[N]) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}
template <size_t N>
bool StartsWithOneOf(std::string_view text, const std::string_view (&list)[N]) {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

// Where the string that opens at `at` (on its quote) closes; npos when it does not.
size_t StringEnd(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      return i;
    }
  }
  return npos;
}

// If a string value belongs to the key that ends before `at`, its range: `"key" : "value"`,
// `key="value"`, `key: 'value'`, `key: ['value', …]`, or OTLP's
// `"key","value":{"stringValue":"value"}`.
struct Range {
  size_t begin = npos;
  size_t end = npos;
  bool found() const { return begin != npos; }
};
Range ValueBehind(std::string_view text, size_t at) {
  size_t i = at;
  if (i < text.size() && (text[i] == '"' || text[i] == '\'')) ++i;
  i = std::min(text.find_first_not_of(" \t\r\n", i), text.size());
  if (i >= text.size()) return {};
  if (text[i] == ',') {
    const std::string_view rest = text.substr(i, 160);
    const size_t key = rest.find("\"stringValue\"");
    if (key == npos || rest.find("\"value\"") > key) return {};
    i += key + std::string_view("\"stringValue\"").size();
    i = std::min(text.find_first_not_of(" \t\r\n", i), text.size());
    if (i >= text.size()) return {};
  }
  if (text[i] != ':' && text[i] != '=') return {};
  i = std::min(text.find_first_not_of(" \t\r\n", i + 1), text.size());
  // Of a list its strings from the first to the last.
  const bool list = i < text.size() && text[i] == '[';
  if (list) i = std::min(text.find_first_not_of(" \t\r\n", i + 1), text.size());
  if (i >= text.size() || (text[i] != '"' && text[i] != '\'')) return {};
  const size_t begin = i + 1;
  size_t end = StringEnd(text, i);
  while (list && end != npos) {
    i = std::min(text.find_first_not_of(", \t\r\n", end + 1), text.size());
    if (i >= text.size() || (text[i] != '"' && text[i] != '\'')) break;
    end = StringEnd(text, i);
  }
  return {begin, end == npos ? text.size() : end};
}

// The key that ends at `end` (exclusive): a run of name bytes.
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

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.xX-+") == npos;
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
  // One letter or number is no name; the port of "host:9400" is none either.
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
    const bool host = IsOneOf(key, kHostKeys);
    if (host || IsOneOf(key, kUserKeys)) {
      const Range value = ValueBehind(text, at + key.size());
      if (value.found()) {
        LearnName(host ? Secret::kHost : Secret::kUser,
                  text.substr(value.begin, value.end - value.begin));
      } else if (StartsAt(text, at + key.size(), " : ")) {
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
  const Range value = ValueBehind(text, at + key.size());
  if (!value.found() || value.begin == value.end) return 0;
  out += text.substr(at, value.begin - at);
  Replace(Secret::kPrompt, "[removed]", out);
  return value.end - at;
}

size_t TextScrubber::ApplyKeyedCredential(std::string_view text, size_t at, std::string& out) {
  if (!IsAlpha(text[at])) return 0;
  const std::string_view key = KeyAt(text, at);
  if (!std::any_of(std::begin(kCredentialKeys), std::end(kCredentialKeys),
                   [&](std::string_view end) { return key.ends_with(end); })) {
    return 0;
  }
  const Range value = ValueBehind(text, at + key.size());
  if (!value.found() || value.begin == value.end) return 0;
  out += text.substr(at, value.begin - at);
  Replace(Secret::kCredential, "[removed]", out);
  return value.end - at;
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
    value_end = std::min(StringEnd(text, value_end), text.size());
  } else {
    value_end = std::min(text.find_first_of(" \t\r\n\"',;)]}", value_end), text.size());
  }
  const std::string_view value = text.substr(end + 1, value_end - end - 1);
  const bool credential =
      std::any_of(std::begin(kCredentialWords), std::end(kCredentialWords),
                  [&](std::string_view word) { return name.find(word) != npos; });
  if (value.empty() ||
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
    if (name != names_.end() && name->first.size() >= kCheckedLength) return name->first;
  }
  return {};
}

}  // namespace fathom::diagnose
