#include "session/session.h"

#include <array>
#include <utility>

namespace fathom::session {
namespace {

constexpr std::array<std::pair<std::string_view, ChatRole>, 5> kRoles = {{
    {"system", ChatRole::kSystem},
    {"user", ChatRole::kUser},
    {"assistant", ChatRole::kAssistant},
    {"tool", ChatRole::kTool},
    {"developer", ChatRole::kSystem},
}};

}  // namespace

std::string_view NameOf(ChatRole role) {
  for (const auto& [name, value] : kRoles) {
    if (value == role) return name;
  }
  return "unknown";
}

std::optional<ChatRole> ChatRoleFromName(std::string_view name) {
  for (const auto& [known, value] : kRoles) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace fathom::session
