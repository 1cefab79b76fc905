#pragma once
// Every limit of every rule, in one file (thresholds.json, shipped inside the program): its value,
// unit, legal range, source and known counter-example. --thresholds FILE changes values by name.
// The handbook's figures are there beside the trusted ones, each with a verdict: limits, which
// decide while they are enabled (rules/handbook.h), and references, which no artifact can be held
// against.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "diagnose/finding.h"

namespace fathom::diagnose {

struct Threshold {
  std::string name;  // "kv-copy.warn_share"
  double value = 0;
  double default_value = 0;
  double least = 0, most = 0;  // legal, both included
  std::string unit;
  std::string source;
  std::string counter_example;
  std::string verdict;  // handbook figures: sound, plausible, folklore, impossible
  bool whole = false;   // a count: no fractions
  bool handbook = false;
  bool reference = false;  // a handbook figure that decides nothing
  bool enabled = true;
};

class Thresholds {
 public:
  // The shipped values.
  static const Thresholds& Default();
  // The shipped values, changed by a JSON object {"name": number | {"value", "enabled"}}; a number
  // for a limit of the handbook enables it. Errors: an unknown name (the nearest is listed), a
  // value outside its range, a warning limit beyond its severe one, a fast window beyond its slow
  // one, `enabled` for anything but a limit of the handbook.
  static Result<Thresholds> FromJson(std::string_view json);

  // A name that is not in the file is a bug.
  double operator[](std::string_view name) const { return Get(name).value; }
  const Threshold& Get(std::string_view name) const;
  bool enabled(std::string_view name) const { return Get(name).enabled; }
  UsedThreshold Used(std::string_view name) const;
  const std::map<std::string, Threshold, std::less<>>& all() const { return all_; }

 private:
  static Result<Thresholds> Parse(std::string_view json);
  // Whether each warning starts no later than its severe form, each fast window no longer than its
  // slow one.
  Status CheckOrder() const;
  std::map<std::string, Threshold, std::less<>> all_;
};

}  // namespace fathom::diagnose
