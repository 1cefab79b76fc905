#pragma once
// Removes what tells whose machine it was from text of any format: paths, host and user names,
// addresses, ids, credentials, environment values and prompts. Equal things get equal stand-ins, so
// that joins survive. Two passes: Learn finds the names by their contexts anywhere in a file, Apply
// then replaces them everywhere.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fathom::diagnose {

enum class Secret : uint8_t {
  kPath,         // absolute paths outside the system's own folders -> /path/1.py
  kHost,         // host, pod, container and namespace names, hosts of URLs -> host-1
  kUser,         // names behind /home/, mail addresses -> user-1
  kAddress,      // IPv4, IPv6, MAC -> 0.0.0.1, ::1, 00:00:00:00:00:01
  kId,           // UUIDs and long hexadecimal ids -> the same shape, counted
  kCredential,   // tokens of known shapes, values of *_TOKEN, api-key, ... -> [removed]
  kEnvironment,  // NAME=value of unknown variables -> NAME=[removed]
  kPrompt,       // text that a client sent or got -> [removed]
};
inline constexpr size_t kNumSecrets = static_cast<size_t>(Secret::kPrompt) + 1;
std::string_view SecretName(Secret secret);

class TextScrubber {
 public:
  // Finds names in `text`, which should not end inside a line or a JSON string.
  void Learn(std::string_view text);
  // Adds a name that a structured format told (a CSV column, a database row).
  void LearnName(Secret kind, std::string_view name);

  // `text` without what was learned and what looks secret by itself.
  std::string Apply(std::string_view text);

  // How many places of each kind Apply has replaced.
  const std::array<uint64_t, kNumSecrets>& replaced() const { return replaced_; }
  // A learned name (of four letters or more, and no stand-in itself) that `text` still holds as a
  // word, "" when there is none.
  std::string_view FindLearned(std::string_view text) const;
  size_t num_learned() const { return names_.size(); }

 private:
  // Each returns how much of `text` (from `at` on) it has taken over into `out`, 0 for nothing.
  size_t ApplyAt(std::string_view text, size_t at, std::string& out);
  size_t ApplyPrompt(std::string_view text, size_t at, std::string& out);
  size_t ApplyKeyedCredential(std::string_view text, size_t at, std::string& out);
  size_t ApplyUrl(std::string_view text, size_t at, std::string& out);
  size_t ApplyPath(std::string_view text, size_t at, std::string& out);
  size_t ApplyAssignment(std::string_view text, size_t at, std::string& out);
  size_t ApplyCredential(std::string_view text, size_t at, std::string& out);
  size_t ApplyMail(std::string_view text, size_t at, std::string& out);
  size_t ApplyId(std::string_view text, size_t at, std::string& out);
  size_t ApplyAddress(std::string_view text, size_t at, std::string& out);
  size_t ApplyName(std::string_view text, size_t at, std::string& out);

  std::unordered_map<std::string, Secret>::const_iterator FindName(std::string_view text,
                                                                   size_t at) const;
  void Replace(Secret kind, std::string_view with, std::string& out);
  // The stand-in's number of one text: 1, 2, ... in order of appearance.
  uint64_t NumberOf(Secret kind, std::string_view text);

  std::unordered_map<std::string, Secret> names_;
  std::array<std::map<std::string, uint64_t, std::less<>>, kNumSecrets> numbers_;
  std::array<uint64_t, kNumSecrets> replaced_{};
};

}  // namespace fathom::diagnose
