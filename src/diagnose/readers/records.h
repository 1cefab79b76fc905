#pragma once
// Flat records: JSON lines, a JSON array with one object a line, or CSV with a header. What the
// scheduler logs, access-event files and expert-load dumps share.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/input.h"
#include "diagnose/readers/text_scan.h"
#include "diagnose/source.h"

namespace fathom::diagnose {

// One record; values are views into the line, strings without their quotes and escapes unresolved.
class Record {
 public:
  // The first of `keys` that the record has.
  std::optional<std::string_view> Text(std::initializer_list<std::string_view> keys) const;
  std::optional<double> Number(std::initializer_list<std::string_view> keys) const;
  // Decimal, or hexadecimal behind 0x.
  std::optional<int64_t> Integer(std::initializer_list<std::string_view> keys) const;
  bool Has(std::string_view key) const { return Text({key}).has_value(); }

  std::vector<std::pair<std::string_view, std::string_view>> fields;
};

class RecordStream {
 public:
  RecordStream(Input& input, ReadStats& stats) : lines_(input), stats_(stats) {}

  // The next record, valid until the next call; broken ones are counted and skipped. False at the
  // end.
  Result<bool> Next(Record* record);
  uint64_t offset() const { return lines_.offset(); }

 private:
  LineReader lines_;
  ReadStats& stats_;
  CsvSplitter splitter_;
  std::vector<std::string> header_;  // CSV; empty before the first line and for JSON
};

// What the views of a FirstRecord point into.
struct RecordStorage {
  std::string text;
  CsvSplitter splitter;
};

// The first record of an input's prefix, for detection.
std::optional<Record> FirstRecord(std::string_view prefix, RecordStorage* storage);

}  // namespace fathom::diagnose
