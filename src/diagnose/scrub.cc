#include "diagnose/scrub.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/strings.h"
#include "diagnose/readers/reader.h"
#include "diagnose/readers/sqlite_table.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

// A piece ends behind a line, or, in a line longer than this, behind a JSON object or a comma.
constexpr size_t kPieceBytes = 1 << 20;

// Calls `use` with the input piece by piece, each ending where no name or string does.
Status ForEachPiece(const std::string& path, const std::function<Status(std::string_view)>& use) {
  FATHOM_ASSIGN_OR_RETURN(Input input, Input::Open(path));
  Window window(input, 4 * kPieceBytes);
  bool more = true;
  while (more || window.size() > 0) {
    if (more && window.size() < kPieceBytes) {
      FATHOM_ASSIGN_OR_RETURN(more, window.More());
      continue;
    }
    const std::string_view text = window.text();
    size_t end = text.size();
    if (more) {
      const size_t line = text.rfind('\n');
      const size_t object = text.rfind("},");
      const size_t comma = text.rfind("\",");
      end = line != std::string_view::npos     ? line + 1
            : object != std::string_view::npos ? object + 2
            : comma != std::string_view::npos  ? comma + 2
                                               : text.size();
    }
    FATHOM_TRY(use(text.substr(0, end)));
    window.Consume(end);
  }
  return {};
}

// A new file that disappears again unless Keep is called.
class OutputFile {
 public:
  static Result<OutputFile> Create(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
      return Err(Code::kInvalidArgument, "{}: expected a file to create, {}", path,
                 std::strerror(errno));
    }
    return OutputFile(path, fd);
  }
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), kept_(other.kept_) {}
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile() {
    if (fd_ < 0) return;
    close(fd_);
    if (!kept_) unlink(path_.c_str());
  }

  Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = write(fd_, bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        return Err(Code::kResourceExhausted, "{}: cannot write: {}", path_, std::strerror(errno));
      }
      bytes.remove_prefix(static_cast<size_t>(wrote));
    }
    return {};
  }
  void Keep() { kept_ = true; }

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  bool kept_ = false;
};

// Nsight Compute names host and process in columns; what the profiled program printed around the
// table is left out.
class NcuLines {
 public:
  void Learn(std::string_view text, TextScrubber& scrubber) {
    while (!text.empty()) {
      const std::string_view line = TakeUntil(text, "\n");
      if (!line.starts_with('"')) continue;
      const std::vector<std::string_view>& fields = splitter_.Split(line);
      if (line.starts_with("\"ID\",")) {
        columns_.assign(fields.begin(), fields.end());
        continue;
      }
      for (size_t i = 0; i < std::min(fields.size(), columns_.size()); ++i) {
        if (columns_[i] == "Host Name") scrubber.LearnName(Secret::kHost, fields[i]);
      }
    }
  }
  std::string Table(std::string_view text) {
    std::string table;
    while (!text.empty()) {
      const bool ends = text.find('\n') != std::string_view::npos;
      const std::string_view line = TakeUntil(text, "\n");
      if (line.starts_with('"') || line.starts_with("==PROF==")) {
        table.append(line);
        if (ends) table += '\n';
      } else if (!Trim(line).empty()) {
        ++removed_;
      }
    }
    return table;
  }
  uint64_t removed() const { return removed_; }

 private:
  CsvSplitter splitter_;
  std::vector<std::string> columns_;
  uint64_t removed_ = 0;
};

Result<ScrubSummary> ScrubText(const std::string& input, const std::string& output,
                               const Reader& reader) {
  TextScrubber scrubber;
  NcuLines ncu;
  const bool is_ncu = reader.format == "ncu-csv";
  FATHOM_TRY(ForEachPiece(input, [&](std::string_view piece) -> Status {
    scrubber.Learn(piece);
    if (is_ncu) ncu.Learn(piece, scrubber);
    return {};
  }));
  FATHOM_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(output));
  ScrubSummary summary;
  FATHOM_TRY(ForEachPiece(input, [&](std::string_view piece) -> Status {
    const std::string clean = scrubber.Apply(is_ncu ? ncu.Table(piece) : std::string(piece));
    const std::string_view left = scrubber.FindLearned(clean);
    if (!left.empty()) {
      return Err(Code::kInternal, "{}: a name that was to be removed is still there", input);
    }
    summary.bytes_written += clean.size();
    return file.Write(clean);
  }));
  file.Keep();
  summary.format = reader.format;
  summary.replaced = scrubber.replaced();
  summary.names_learned = scrubber.num_learned();
  summary.lines_removed = ncu.removed();
  return summary;
}

// Of META_DATA_CAPTURE only the options that say what was traced.
constexpr std::string_view kKeptCaptureOptions[] = {
    "CUDA_GRAPH_TRACE_OPTIONS:MODE", "CAPTURE_EVENT_TYPE", "RATE_HZ", "CUDA_FLUSH_PERIOD"};
// Tables that hold the profiled machine's environment, output, process list and command lines.
constexpr std::string_view kEmptiedTables[] = {"TARGET_INFO_SYSTEM_ENV", "ProcessStreams",
                                               "ANALYSIS_FILE", "ANALYSIS_DETAILS",
                                               "TARGET_INFO_NIC_INFO"};
// Columns that refer to StringIds.
constexpr std::string_view kStringColumns[] = {"nameId",    "textId",      "demangledName",
                                               "shortName", "mangledName", "symbol",
                                               "module",    "jsonTextId"};

class NsysScrubber {
 public:
  NsysScrubber(sqlite3* db, TextScrubber& text) : db_(db), text_(text) {}

  Status Run() {
    FATHOM_TRY(Execute("PRAGMA secure_delete = ON; PRAGMA journal_mode = OFF; BEGIN"));
    const std::vector<std::string> tables =
        Strings("SELECT name FROM sqlite_master WHERE type = 'table'");
    for (const std::string_view name : kEmptiedTables) {
      if (Has(tables, name)) FATHOM_TRY(Execute("DELETE FROM " + QuoteIdentifier(name)));
    }
    if (Has(tables, "META_DATA_CAPTURE")) {
      std::string kept;
      for (const std::string_view option : kKeptCaptureOptions) {
        kept.append(kept.empty() ? "'" : ", '").append(option).append("'");
      }
      FATHOM_TRY(Execute("DELETE FROM META_DATA_CAPTURE WHERE name NOT IN (" + kept + ")"));
    }
    if (Has(tables, "StringIds")) FATHOM_TRY(BlankUnusedStrings(tables));
    // Twice: names learned from the last row are to be replaced in the first.
    for (const bool learn : {true, false}) {
      for (const std::string& table : tables) {
        if (table.starts_with("sqlite_") || table.starts_with("ENUM_")) continue;
        FATHOM_TRY(ScrubTable(table, learn));
      }
    }
    FATHOM_TRY(Execute("COMMIT"));
    return Execute("VACUUM");
  }

 private:
  static bool Has(const std::vector<std::string>& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  }

  Status Execute(const std::string& sql) {
    char* message = nullptr;
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &message) == SQLITE_OK) return {};
    const std::string reason = message == nullptr ? "unknown" : message;
    sqlite3_free(message);
    return Err(Code::kDataLoss, "cannot rewrite the database: {}", reason);
  }

  std::vector<std::string> Strings(const std::string& sql, int column = 0) {
    std::vector<std::string> list;
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return list;
    while (sqlite3_step(statement) == SQLITE_ROW) {
      if (const unsigned char* text = sqlite3_column_text(statement, column)) {
        list.emplace_back(reinterpret_cast<const char*>(text));
      }
    }
    sqlite3_finalize(statement);
    return list;
  }

  std::vector<std::string> Columns(const std::string& table) {
    return Strings("PRAGMA table_info(" + QuoteIdentifier(table) + ")", 1);
  }

  Status BlankUnusedStrings(const std::vector<std::string>& tables) {
    std::string used;
    for (const std::string& table : tables) {
      if (table == "StringIds") continue;
      for (const std::string& column : Columns(table)) {
        const bool refers = std::find(std::begin(kStringColumns), std::end(kStringColumns),
                                      column) != std::end(kStringColumns);
        if (!refers) continue;
        used += used.empty() ? "" : " UNION ";
        used += "SELECT " + QuoteIdentifier(column) + " FROM " + QuoteIdentifier(table) +
                " WHERE " + QuoteIdentifier(column) + " IS NOT NULL";
      }
    }
    if (used.empty()) used = "SELECT NULL WHERE 0";
    return Execute("UPDATE StringIds SET value = '' WHERE id NOT IN (" + used + ")");
  }

  Status ScrubTable(const std::string& table, bool learn) {
    for (const std::string& column : Columns(table)) {
      const std::string name = QuoteIdentifier(column);
      sqlite3_stmt* select = nullptr;
      const std::string sql = "SELECT rowid, " + name + " FROM " + QuoteIdentifier(table) +
                              " WHERE typeof(" + name + ") IN ('text', 'blob')";
      if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &select, nullptr) != SQLITE_OK) {
        return Err(Code::kDataLoss, "cannot read table {}: {}", table, sqlite3_errmsg(db_));
      }
      const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> guard(select, sqlite3_finalize);
      std::vector<std::pair<int64_t, std::string>> changed;
      while (sqlite3_step(select) == SQLITE_ROW) {
        const auto* bytes = static_cast<const char*>(sqlite3_column_blob(select, 1));
        const std::string text(bytes == nullptr ? "" : bytes,
                               static_cast<size_t>(sqlite3_column_bytes(select, 1)));
        if (learn) {
          LearnColumn(table, column, text);
          continue;
        }
        std::string clean = text_.Apply(text);
        if (column == "uuid" && !text.empty()) clean = "00000000-0000-0000-0000-000000000000";
        if (clean != text) changed.emplace_back(sqlite3_column_int64(select, 0), std::move(clean));
      }
      if (changed.empty()) continue;
      sqlite3_stmt* update = nullptr;
      const std::string write =
          "UPDATE " + QuoteIdentifier(table) + " SET " + name + " = ? WHERE rowid = ?";
      if (sqlite3_prepare_v2(db_, write.c_str(), -1, &update, nullptr) != SQLITE_OK) {
        return Err(Code::kDataLoss, "cannot write table {}: {}", table, sqlite3_errmsg(db_));
      }
      const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> update_guard(update,
                                                                               sqlite3_finalize);
      for (const auto& [row, value] : changed) {
        sqlite3_reset(update);
        sqlite3_bind_text(update, 1, value.c_str(), static_cast<int>(value.size()), SQLITE_STATIC);
        sqlite3_bind_int64(update, 2, row);
        if (sqlite3_step(update) != SQLITE_DONE) {
          return Err(Code::kDataLoss, "cannot write table {}: {}", table, sqlite3_errmsg(db_));
        }
      }
    }
    return {};
  }

  void LearnColumn(std::string_view table, std::string_view column, std::string_view text) {
    text_.Learn(text);
    if (table.starts_with("TARGET_INFO") &&
        (column == "hostname" || column == "hostName" || column == "displayName")) {
      text_.LearnName(Secret::kHost, text);
    }
  }

  sqlite3* db_;
  TextScrubber& text_;
};

Result<ScrubSummary> ScrubNsys(const std::string& path, const std::string& output) {
  FATHOM_ASSIGN_OR_RETURN(Input input, Input::Open(path));
  FATHOM_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(output));
  std::string bytes;
  bytes.resize(kPieceBytes);
  for (;;) {
    FATHOM_ASSIGN_OR_RETURN(const size_t got, input.Read(bytes));
    if (got == 0) break;
    FATHOM_TRY(file.Write(std::string_view(bytes).substr(0, got)));
  }
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(output.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr);
  const std::unique_ptr<sqlite3, int (*)(sqlite3*)> guard(db, sqlite3_close_v2);
  if (opened != SQLITE_OK) {
    return Err(Code::kDataLoss, "{}: cannot open the copy: {}", output, sqlite3_errmsg(db));
  }
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  TextScrubber scrubber;
  if (Status run = NsysScrubber(db, scrubber).Run(); !run) {
    return tl::unexpected(WithContext(std::move(run.error()), path));
  }
  ScrubSummary summary;
  summary.format = "nsys-sqlite";
  summary.replaced = scrubber.replaced();
  summary.names_learned = scrubber.num_learned();
  FATHOM_TRY(ForEachPiece(output, [&](std::string_view piece) -> Status {
    summary.bytes_written += piece.size();
    if (scrubber.FindLearned(piece).empty()) return {};
    return Err(Code::kInternal, "{}: a name that was to be removed is still there", path);
  }));
  file.Keep();
  return summary;
}

}  // namespace

Result<ScrubSummary> ScrubFile(const std::string& input, const std::string& output) {
  if (input == "-") {
    return Err(Code::kInvalidArgument,
               "scrub reads its input twice: expected a file, found standard input");
  }
  FATHOM_ASSIGN_OR_RETURN(const Input probe, Input::Open(input));
  FATHOM_ASSIGN_OR_RETURN(const Reader* const reader, FindReader(probe));
  return reader->format == "nsys-sqlite" ? ScrubNsys(input, output)
                                         : ScrubText(input, output, *reader);
}

}  // namespace fathom::diagnose
