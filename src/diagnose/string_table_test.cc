#include "diagnose/string_table.h"

#include <gtest/gtest.h>

#include <string>

namespace fathom::diagnose {
namespace {

TEST(StringTable, EqualTextHasOneId) {
  StringTable table;
  std::vector<StringId> ids;
  for (int i = 0; i < 20000; ++i) ids.push_back(table.Intern("name " + std::to_string(i)));
  for (int i = 0; i < 20000; ++i) {
    EXPECT_EQ(table.Intern("name " + std::to_string(i)), ids[i]);
    EXPECT_EQ(table.Get(ids[i]), "name " + std::to_string(i));
  }
  EXPECT_EQ(table.size(), 20001u);
}

TEST(StringTable, EmptyIsZeroAndFindAddsNothing) {
  StringTable table;
  EXPECT_EQ(table.Intern(""), 0u);
  EXPECT_EQ(table.Get(0), "");
  EXPECT_EQ(table.Find("absent"), 0u);
  EXPECT_EQ(table.size(), 1u);
  const StringId id = table.Intern("present");
  EXPECT_EQ(table.Find("present"), id);
}

TEST(StringTable, LongTextKeepsItsPlace) {
  StringTable table;
  const StringId first = table.Intern("short");
  const std::string_view before = table.Get(first);
  const StringId id = table.Intern(std::string(100000, 'x'));
  EXPECT_EQ(table.Get(id).size(), 100000u);
  EXPECT_EQ(before.data(), table.Get(first).data());
}

TEST(StringTable, RepairsUtf8) {
  StringTable table;
  EXPECT_EQ(table.Get(table.Intern("\xe4\xb8\xad\xe4")), "\xe4\xb8\xad\xef\xbf\xbd");
  EXPECT_EQ(table.Get(table.Intern("\xc0\x80")), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(table.invalid_utf8(), 2u);
}

}  // namespace
}  // namespace fathom::diagnose
