#pragma once
// Files of one recording under several names: each of its steps would count twice.
#include <functional>
#include <map>
#include <span>
#include <string>

#include "diagnose/input.h"

namespace fathom::diagnose {

struct CopyOf {
  std::string whole;  // the file that holds all of it, and more where it is cut short
  bool cut_short = false;
};

// The artifacts among `files` whose uncompressed content another one has or begins with, however
// they are called and compressed; the longest stays, of equal ones the first. Content is read as
// far as it agrees. What is no regular file (a pipe, an address) is not looked at.
std::map<std::string, CopyOf> FindCopies(
    std::span<const std::string> files,
    const std::function<Result<Input>(const std::string&)>& open);

}  // namespace fathom::diagnose
