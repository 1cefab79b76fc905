#include "session/session.h"

#include <gtest/gtest.h>

namespace fathom::session {
namespace {

TEST(ChatRole, NamesRoundTripAndDeveloperIsSystem) {
  for (const ChatRole role :
       {ChatRole::kSystem, ChatRole::kUser, ChatRole::kAssistant, ChatRole::kTool}) {
    EXPECT_EQ(ChatRoleFromName(NameOf(role)), role);
  }
  EXPECT_EQ(ChatRoleFromName("developer"), ChatRole::kSystem);
  EXPECT_EQ(ChatRoleFromName("User"), std::nullopt);
}

}  // namespace
}  // namespace fathom::session
