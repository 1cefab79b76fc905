#include "cli/attention_results.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"

namespace fathom::cli {
namespace {

using nlohmann::json;

Status AddRows(const json& document, const char* key, bool decode, AttentionResults* results) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_array()) return {};
  for (const json& row : *found) {
    AttentionRow added{.shape = row.value("shape", ""), .decode = decode};
    const std::string variant = row.value("variant", "balanced");
    added.who = row.value("peer", variant == "balanced" ? "fathom" : "fathom " + variant);
    added.us = row.value("us", 0.0);
    added.gb_per_s = row.value("gb_per_s", 0.0);
    added.tflops = row.value("tflops", 0.0);
    added.error = row.value("error", 0.0);
    if (!(added.us > 0)) {
      return Err(Code::kInvalidArgument, "\"{}\" of {}: us is {}, expected a time above 0",
                 added.shape, added.who, added.us);
    }
    results->rows.push_back(std::move(added));
  }
  return {};
}

}  // namespace

const AttentionRow* AttentionResults::Find(const std::string& shape, const std::string& who) const {
  for (const AttentionRow& row : rows) {
    if (row.shape == shape && row.who == who) return &row;
  }
  return nullptr;
}

Status LoadAttentionResults(const std::string& path, AttentionResults* results) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const json document = json::parse(file.text(), nullptr, false);
  const std::string schema =
      document.is_object() && document.contains("schema") && document["schema"].is_string()
          ? document["schema"].get<std::string>()
          : "none";
  if (schema != "fathom.bench.attention/1" && schema != "fathom.bench.attention-results/1" &&
      schema != "fathom.bench.peers/1") {
    return Err(Code::kInvalidArgument,
               "{}: schema {}: expected fathom.bench.attention/1, fathom.bench.attention-results/1 "
               "or fathom.bench.peers/1",
               path, schema);
  }
  const auto add = [&](const json& from, const char* key, bool decode) -> Status {
    const Status added = AddRows(from, key, decode, results);
    if (!added) return tl::unexpected(WithContext(added.error(), path));
    return {};
  };
  try {
    results->gpu = document.value("gpu", document.value("device", results->gpu));
    FATHOM_TRY(add(document, "decode", true));
    FATHOM_TRY(add(document, "peers_decode", true));
    FATHOM_TRY(add(document, "prefill", false));
    FATHOM_TRY(add(document, "mla_prefill", false));
    FATHOM_TRY(add(document, "peers_prefill", false));
    for (const json& row : document.value("gathers", json::array())) {
      results->gather_gb_per_s[row.at("pattern").get<std::string>()] = row.at("gb_per_s");
    }
    for (const json& row : document.value("strides", json::array())) {
      results->stride_clocks[row.at("access").get<std::string>()] = row.at("clocks");
    }
    if (schema == "fathom.bench.peers/1") {
      for (const json& row : document.at("rows")) {
        const std::string shape = row.at("shape").get<std::string>();
        const bool decode = shape.starts_with("gqa") || shape.starts_with("mla");
        FATHOM_TRY(add(json{{"rows", json::array({row})}}, "rows", decode));
      }
    }
    const json& versions = schema == "fathom.bench.peers/1" ? document
                           : document.contains("peers")     ? document["peers"]
                                                            : json::object();
    for (const char* name : {"torch", "cudnn", "fa3", "flash_mla"}) {
      const auto found = versions.find(name);
      if (found == versions.end()) continue;
      results->versions[name] = found->is_string() ? found->get<std::string>() : found->dump();
    }
  } catch (const json::exception& error) {
    return Err(Code::kInvalidArgument, "{}: {}", path, error.what());
  }
  return {};
}

std::string CompareTable(const AttentionResults& results, double bytes_per_s, double flops_per_s) {
  std::vector<std::string> peers;
  std::vector<std::string> shapes;
  for (const AttentionRow& row : results.rows) {
    if (!row.who.starts_with("fathom") &&
        std::find(peers.begin(), peers.end(), row.who) == peers.end()) {
      peers.push_back(row.who);
    }
    if (row.who == "fathom") shapes.push_back(row.shape);
  }
  std::string text = fmt::format("{:<44} {:>9}", "shape", "fathom us");
  for (const std::string& peer : peers) text += fmt::format(" {:>10}", peer);
  text += fmt::format(" {:>7} {:>7} {:>7} {:>7} {:>9}\n", "ratio", "GB/s", "TFLOP/s", "% roof",
                      "error");
  for (const std::string& shape : shapes) {
    const AttentionRow& ours = *results.Find(shape, "fathom");
    text += fmt::format("{:<44} {:>9.1f}", shape, ours.us);
    double best = 0;
    for (const std::string& peer : peers) {
      const AttentionRow* row = results.Find(shape, peer);
      text += row == nullptr ? fmt::format(" {:>10}", "-") : fmt::format(" {:>10.1f}", row->us);
      if (row != nullptr && (best == 0 || row->us < best)) best = row->us;
    }
    const double roof =
        std::max(ours.gb_per_s * 1e9 / bytes_per_s, ours.tflops * 1e12 / flops_per_s);
    text += fmt::format(" {:>7} {:>7} {:>7.1f} {:>7.1f} {:>9.1e}\n",
                        best > 0 ? fmt::format("{:.2f}", best / ours.us) : "-",
                        ours.gb_per_s > 0 ? fmt::format("{:.0f}", ours.gb_per_s) : "-", ours.tflops,
                        100 * roof, ours.error);
  }
  return text;
}

}  // namespace fathom::cli
