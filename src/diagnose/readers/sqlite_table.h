#pragma once
// Read-only SQLite databases of untrusted origin, table by table, with whatever columns they have.
#include <sqlite3.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "diagnose/input.h"

namespace fathom::diagnose {

// A database opened so that nothing in it runs: no views, triggers, extensions, or trusted schema;
// no write, no lock, no journal.
class SqliteDatabase {
 public:
  // A plain file is opened in place; compressed or piped input is read into memory first.
  static Result<SqliteDatabase> Open(Input& input);

  bool HasTable(std::string_view name) const;
  std::vector<std::string> Columns(std::string_view table) const;
  uint64_t bytes() const;  // size of the database
  sqlite3* handle() const { return db_.get(); }

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  std::unique_ptr<sqlite3, Close> db_;
};

// The rows of a table. Columns that the table does not have read as NULL; a table that is not there
// has no rows.
class SqliteTable {
 public:
  SqliteTable(const SqliteDatabase& database, std::string_view table,
              std::initializer_list<std::string_view> columns, std::string_view order_by = "");

  // Goes to the next row. A corrupt page ends the table: see damaged().
  bool Next();
  bool damaged() const { return damaged_; }

  bool Null(int column) const {
    return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
  }
  int64_t Int(int column, int64_t absent = 0) const {
    return Null(column) ? absent : sqlite3_column_int64(statement_.get(), column);
  }
  double Real(int column) const { return sqlite3_column_double(statement_.get(), column); }
  std::string_view Text(int column) const;  // valid until Next

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  bool damaged_ = false;
};

// `name` as an SQL identifier.
std::string QuoteIdentifier(std::string_view name);

}  // namespace fathom::diagnose
