#include "diagnose/readers/sqlite_table.h"

#include <algorithm>

namespace fathom::diagnose {
namespace {

// An export is read whole only when it comes compressed or through a pipe.
constexpr uint64_t kMaxInMemory = uint64_t{4} << 30;

// A path as an SQLite URI: '%', '?' and '#' have a meaning there.
std::string FileUri(std::string_view path) {
  std::string uri = "file:";
  for (const char byte : path) {
    if (byte == '%' || byte == '?' || byte == '#') {
      constexpr char kHex[] = "0123456789ABCDEF";
      uri += {'%', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      uri += byte;
    }
  }
  // immutable: no locks, no journal, no -wal file beside it.
  return uri + "?mode=ro&immutable=1";
}

void Harden(sqlite3* db) {
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 64 << 20);
  sqlite3_limit(db, SQLITE_LIMIT_EXPR_DEPTH, 20);
  sqlite3_limit(db, SQLITE_LIMIT_COLUMN, 500);
  sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_exec(db, "PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; PRAGMA temp_store=MEMORY",
               nullptr, nullptr, nullptr);
}

}  // namespace

std::string QuoteIdentifier(std::string_view name) {
  std::string quoted = "\"";
  for (const char byte : name) {
    if (byte == '"') quoted += '"';
    quoted += byte;
  }
  return quoted + '"';
}

Result<SqliteDatabase> SqliteDatabase::Open(Input& input) {
  SqliteDatabase database;
  sqlite3* db = nullptr;
  const bool in_place = !input.plain_path().empty();
  const std::string uri = in_place ? FileUri(input.plain_path()) : ":memory:";
  const int opened = sqlite3_open_v2(uri.c_str(), &db,
                                     SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX |
                                         (in_place ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE),
                                     nullptr);
  database.db_.reset(db);
  if (opened != SQLITE_OK) {
    return Err(Code::kInvalidArgument, "cannot open the SQLite database: {}", sqlite3_errmsg(db));
  }
  if (!in_place) {
    FATHOM_ASSIGN_OR_RETURN(const std::string bytes, input.ReadAll(kMaxInMemory));
    auto* image = static_cast<unsigned char*>(sqlite3_malloc64(bytes.size()));
    if (image == nullptr) {
      return Err(Code::kResourceExhausted, "no memory for a database of {} bytes", bytes.size());
    }
    std::copy(bytes.begin(), bytes.end(), image);
    // SQLite frees the image, also when it refuses it.
    if (sqlite3_deserialize(db, "main", image, static_cast<sqlite3_int64>(bytes.size()),
                            static_cast<sqlite3_int64>(bytes.size()),
                            SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_READONLY) !=
        SQLITE_OK) {
      return Err(Code::kDataLoss, "not a readable SQLite database: {}", sqlite3_errmsg(db));
    }
  }
  Harden(db);
  char* error = nullptr;
  if (sqlite3_exec(db, "SELECT count(*) FROM sqlite_master", nullptr, nullptr, &error) !=
      SQLITE_OK) {
    const std::string reason = error == nullptr ? "unknown" : error;
    sqlite3_free(error);
    return Err(Code::kDataLoss, "not a readable SQLite database: {}", reason);
  }
  return database;
}

std::vector<std::string> SqliteDatabase::Columns(std::string_view table) const {
  std::vector<std::string> names;
  const std::string sql = "PRAGMA table_info(" + QuoteIdentifier(table) + ")";
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_.get(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK)
    return names;
  while (sqlite3_step(statement) == SQLITE_ROW) {
    if (const unsigned char* name = sqlite3_column_text(statement, 1)) {
      names.emplace_back(reinterpret_cast<const char*>(name));
    }
  }
  sqlite3_finalize(statement);
  return names;
}

uint64_t SqliteDatabase::bytes() const {
  uint64_t product = 1;
  for (const char* pragma : {"PRAGMA page_count", "PRAGMA page_size"}) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db_.get(), pragma, -1, &statement, nullptr) != SQLITE_OK) return 0;
    product *= sqlite3_step(statement) == SQLITE_ROW
                   ? static_cast<uint64_t>(sqlite3_column_int64(statement, 0))
                   : 0;
    sqlite3_finalize(statement);
  }
  return product;
}

bool SqliteDatabase::HasTable(std::string_view name) const { return !Columns(name).empty(); }

SqliteTable::SqliteTable(const SqliteDatabase& database, std::string_view table,
                         std::initializer_list<std::string_view> columns,
                         std::string_view order_by) {
  const std::vector<std::string> present = database.Columns(table);
  if (present.empty()) return;
  const auto has = [&](std::string_view name) {
    return std::find(present.begin(), present.end(), name) != present.end();
  };
  std::string sql = "SELECT ";
  for (const std::string_view column : columns) {
    if (column != *columns.begin()) sql += ", ";
    sql += has(column) ? QuoteIdentifier(column) : "NULL";
  }
  sql += " FROM " + QuoteIdentifier(table);
  if (!order_by.empty() && has(order_by)) sql += " ORDER BY " + QuoteIdentifier(order_by);
  sqlite3_stmt* statement = nullptr;
  damaged_ =
      sqlite3_prepare_v2(database.handle(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK;
  statement_.reset(statement);
}

bool SqliteTable::Next() {
  if (statement_ == nullptr || damaged_) return false;
  const int step = sqlite3_step(statement_.get());
  if (step == SQLITE_ROW) return true;
  damaged_ = step != SQLITE_DONE;
  statement_.reset();
  return false;
}

std::string_view SqliteTable::Text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_.get(), column);
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(text),
          static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

}  // namespace fathom::diagnose
