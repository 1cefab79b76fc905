#include "diagnose/readers/kineto_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "diagnose/readers/json_scan.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKeys[] = {
    "baseTimeNanoseconds", "schemaVersion",        "deviceProperties",    "distributedInfo",
    "with_stack",          "record_shapes",        "profile_memory",      "cupti_version",
    "roctracer_version",   "cuda_runtime_version", "hip_runtime_version", "otherData"};

template <class T>
T Number(const Json& object, const char* key, T absent) {
  const auto entry = object.find(key);
  if (entry == object.end() || !entry->is_number_integer()) return absent;
  const auto value = entry->get<int64_t>();
  return std::in_range<T>(value) ? static_cast<T>(value) : absent;
}

std::string String(const Json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_string() ? entry->get<std::string>() : "";
}

// A list of ranks: an array, or a string that holds one.
std::vector<int32_t> Ranks(const Json& ranks) {
  if (ranks.is_string()) {
    return Ranks(Json::parse(ranks.get<std::string>(), nullptr, /*allow_exceptions=*/false));
  }
  std::vector<int32_t> list;
  if (!ranks.is_array()) return list;
  for (const Json& rank : ranks) {
    if (rank.is_number_integer() && std::in_range<int32_t>(rank.get<int64_t>())) {
      list.push_back(rank.get<int32_t>());
    }
  }
  return list;
}

void SetBase(std::string_view text, KinetoHeader& header) {
  int64_t base_ns = 0;
  const bool readable = json::ToInteger(text, &base_ns) == json::Number::kOk;
  header.base_ns = readable && base_ns >= 0 && base_ns < int64_t{1} << 61 ? base_ns : 0;
}

DeviceInfo Device(const Json& json) {
  DeviceInfo device;
  device.id = Number(json, "id", -1);
  device.name = String(json, "name");
  device.compute_major = Number(json, "computeMajor", 0);
  device.compute_minor = Number(json, "computeMinor", 0);
  device.num_sms = Number(json, "numSms", 0);
  device.warp_size = Number(json, "warpSize", 0);
  device.max_threads_per_sm = Number(json, "maxThreadsPerMultiprocessor", 0);
  device.registers_per_sm = Number(json, "regsPerMultiprocessor", 0);
  device.shared_bytes_per_sm = Number<int64_t>(json, "sharedMemPerMultiprocessor", 0);
  device.shared_bytes_per_block_optin = Number<int64_t>(json, "sharedMemPerBlockOptin", 0);
  device.memory_bytes = Number<int64_t>(json, "totalGlobalMem", 0);
  return device;
}

void Distributed(const Json& json, Source& source) {
  if (!json.is_object()) return;
  source.rank = Number(json, "rank", source.rank);
  source.world_size = Number(json, "world_size", source.world_size);
  const auto groups = json.find("pg_config");
  if (groups == json.end() || !groups->is_array()) return;
  for (const Json& group : *groups) {
    if (!group.is_object()) continue;
    const auto ranks = group.find("ranks");
    source.process_groups.push_back(
        {String(group, "pg_name"), String(group, "pg_desc"),
         ranks == group.end() ? std::vector<int32_t>{} : Ranks(*ranks)});
  }
}

// otherData of Fathom's own traces: what UTC their time 0 was.
void Fathom(const Json& json, KinetoHeader& header, Source& source) {
  if (!json.is_object() || !String(json, "schema").starts_with("fathom.trace/")) return;
  header.is_fathom = true;
  source.schema = String(json, "schema");
  SetBase(String(json, "origin_unix_ns"), header);
  if (const auto dropped = Number<uint64_t>(json, "dropped_events", 0); dropped > 0) {
    source.stats.Count(Defect::kDropped, 0, dropped);
  }
  if (!String(json, "stopped").empty()) source.stats.Count(Defect::kTruncated, 0);
}

// 1, true, "1": the flags of Kineto's header.
std::optional<bool> Flag(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  return std::nullopt;
}

}  // namespace

bool IsKinetoHeaderKey(std::string_view key) {
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

void ReadKinetoHeaderValue(std::string_view key, std::string_view text, KinetoHeader& header,
                           Source& source) {
  if (key == "baseTimeNanoseconds") {
    SetBase(text, header);
    return;
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return;
  if (key == "schemaVersion" && value.is_number()) {
    source.schema = value.dump();
  } else if (key == "deviceProperties" && value.is_array()) {
    for (const Json& device : value) {
      if (device.is_object()) source.devices.push_back(Device(device));
    }
  } else if (key == "otherData") {
    Fathom(value, header, source);
  } else if (key == "distributedInfo") {
    Distributed(value, source);
  } else if (key == "with_stack") {
    source.with_stack = Flag(value);
  } else if (key == "record_shapes") {
    source.record_shapes = Flag(value);
  } else if (key == "profile_memory") {
    source.profile_memory = Flag(value);
  } else if (value.is_number()) {
    // cupti_version, roctracer_version, ..._runtime_version
    const std::string_view name = key.substr(0, key.size() - std::string_view("_version").size());
    source.producer +=
        fmt::format("{}{} {}", source.producer.empty() ? "" : ", ", name, value.dump());
  }
}

}  // namespace fathom::diagnose
