#pragma once
// A request's ledger for programs (JSON, docs/schemas/ledger.schema.json) and for people (an
// aligned table in English or Chinese). Both always state the unexplained remainder.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "observe/ledger.h"

namespace fathom::observe {

enum class Language { kEnglish, kChinese };

// {"schema": "fathom.ledger/1", ...}; `id` is the name the client knows the request by.
nlohmann::ordered_json LedgerJson(const RequestLedger& ledger, std::string_view id);

// Ends with a line feed.
std::string LedgerTable(const RequestLedger& ledger, Language language);

}  // namespace fathom::observe
