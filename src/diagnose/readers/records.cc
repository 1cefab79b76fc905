#include "diagnose/readers/records.h"

#include "base/strings.h"
#include "diagnose/readers/json_scan.h"

namespace fathom::diagnose {
namespace {

using json::Cursor;
using json::Scan;
using json::Token;

// A flat object; nested values are kept as written. `text` has Window::kPadding bytes behind it.
bool ParseObject(std::string_view text, Record* record) {
  record->fields.clear();
  Cursor c{text.data() + 1, text.data() + text.size()};
  for (;;) {
    SkipSpace(c);
    if (c.p < c.end && *c.p == '}') return true;
    if (c.p >= c.end || *c.p != '"') return false;
    ++c.p;
    Token key;
    if (ScanString(c, key) != Scan::kOk) return false;
    SkipSpace(c);
    if (c.p >= c.end || *c.p != ':') return false;
    ++c.p;
    SkipSpace(c);
    const bool quoted = c.p < c.end && *c.p == '"';
    const char* const begin = c.p;
    if (SkipValue(c) != Scan::kOk) return false;
    std::string_view value(begin, static_cast<size_t>(c.p - begin));
    if (quoted) value = value.substr(1, value.size() - 2);
    record->fields.emplace_back(key.view(), value);
    SkipSpace(c);
    if (c.p >= c.end) return false;
    if (*c.p == ',') ++c.p;
  }
}

// A line of a JSON array with one object a line: without the array's own syntax.
std::string_view StripArray(std::string_view line) {
  line = Trim(line);
  if (line.starts_with('[')) line = Trim(line.substr(1));
  if (line.ends_with(']')) line = Trim(line.substr(0, line.size() - 1));
  if (line.ends_with(',')) line = Trim(line.substr(0, line.size() - 1));
  return line;
}

}  // namespace

std::optional<std::string_view> Record::Text(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    for (const auto& [name, value] : fields) {
      if (name == key) return value;
    }
  }
  return std::nullopt;
}

std::optional<double> Record::Number(std::initializer_list<std::string_view> keys) const {
  const std::optional<std::string_view> text = Text(keys);
  return text ? WholeNumber(*text) : std::nullopt;
}

std::optional<int64_t> Record::Integer(std::initializer_list<std::string_view> keys) const {
  const std::optional<std::string_view> text = Text(keys);
  if (!text) return std::nullopt;
  if (text->starts_with("0x") || text->starts_with("0X")) return WholeInteger(text->substr(2), 16);
  return WholeInteger(*text);
}

Result<bool> RecordStream::Next(Record* record) {
  std::string_view line;
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, lines_.Next(&line));
    if (!more) return false;
    const std::string_view trimmed = Trim(line);
    if (trimmed.empty() || trimmed == "[" || trimmed == "]") continue;
    const std::string_view object = StripArray(trimmed);
    if (object.starts_with('{')) {
      ++stats_.records;
      if (ParseObject(object, record)) return true;
      stats_.Count(Defect::kMalformed, lines_.offset());
      continue;
    }
    const std::vector<std::string_view>& fields = splitter_.Split(trimmed);
    if (header_.empty()) {
      for (const std::string_view field : fields) header_.emplace_back(Trim(field));
      continue;
    }
    ++stats_.records;
    if (fields.size() != header_.size()) {
      stats_.Count(Defect::kMalformed, lines_.offset());
      continue;
    }
    record->fields.clear();
    for (size_t i = 0; i < fields.size(); ++i) {
      record->fields.emplace_back(header_[i], Trim(fields[i]));
    }
    return true;
  }
}

std::optional<Record> FirstRecord(std::string_view prefix, RecordStorage* storage) {
  std::string_view line;
  while (line.empty() || line == "[") {
    if (prefix.empty()) return std::nullopt;
    line = Trim(TakeUntil(prefix, "\n"));
  }
  storage->text = StripArray(line);
  const size_t size = storage->text.size();
  storage->text.append(Window::kPadding, '\0');
  const std::string_view text(storage->text.data(), size);
  Record record;
  if (text.starts_with('{')) {
    if (!ParseObject(text, &record)) return std::nullopt;
    return record;
  }
  for (const std::string_view field : storage->splitter.Split(text)) {
    record.fields.emplace_back(Trim(field), std::string_view());
  }
  return record;
}

}  // namespace fathom::diagnose
