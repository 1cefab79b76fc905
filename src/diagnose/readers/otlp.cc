#include "diagnose/readers/otlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kTimeLimit = int64_t{1} << 62;
// Of an exponential histogram: what exporters write is far within.
constexpr double kMaxScale = 20;
constexpr double kMaxOffset = 1e9;
constexpr size_t kMaxBuckets = 4096;

const Json& Member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto entry = object.find(key);
  return entry == object.end() ? kNull : *entry;
}

// The elements of an array member, none when it is absent or something else.
const Json& List(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json& list = Member(object, key);
  return list.is_array() ? list : kEmpty;
}

// 64-bit integers are strings in OTLP/JSON; numbers are taken too.
int64_t TimeOf(const Json& value) {
  int64_t ns = kNoTime;
  if (value.is_string()) {
    ns = WholeInteger(value.get_ref<const std::string&>()).value_or(kNoTime);
  } else if (value.is_number_integer()) {
    ns = value.get<int64_t>();
  }
  return ns > 0 && ns < kTimeLimit ? ns : kNoTime;
}

std::string_view Text(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>())
                           : std::string_view();
}

bool NestsDeeperThan(int levels, const Json& value) {
  if (!value.is_structured()) return false;
  return levels == 0 || std::any_of(value.begin(), value.end(), [levels](const Json& child) {
           return NestsDeeperThan(levels - 1, child);
         });
}

// A value as JSON. Writing recurses, so what nests deeper than any exporter's value is left out.
std::string Written(const Json& value) {
  constexpr int kMaxLevels = 32;
  if (NestsDeeperThan(kMaxLevels, value)) return "[nested too deeply]";
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Names of what a request span says, with the conventions' and vLLM's own.
struct RequestKey {
  std::string_view key;
  double Request::*field;
};
constexpr RequestKey kRequestKeys[] = {
    {"gen_ai.latency.time_to_first_token", &Request::ttft_s},
    {"gen_ai.latency.e2e", &Request::e2e_s},
    {"gen_ai.latency.time_in_queue", &Request::queue_s},
    {"gen_ai.latency.time_in_model_prefill", &Request::prefill_s},
    {"gen_ai.latency.time_in_model_decode", &Request::decode_s},
    {"gen_ai.server.time_to_first_token", &Request::ttft_s},
    {"gen_ai.usage.prompt_tokens", &Request::prompt_tokens},
    {"gen_ai.usage.input_tokens", &Request::prompt_tokens},
    {"gen_ai.usage.cached_tokens", &Request::cached_tokens},
    {"gen_ai.usage.completion_tokens", &Request::completion_tokens},
    {"gen_ai.usage.output_tokens", &Request::completion_tokens},
};

class OtlpReader {
 public:
  OtlpReader(Timeline& timeline, SourceId source) : timeline_(timeline), source_(source) {}

  Status Read(Input& input) {
    FATHOM_ASSIGN_OR_RETURN(const std::string text, input.ReadAll(kMaxBytes));
    ReadStats& stats = timeline_.sources[source_].stats;
    const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!whole.is_discarded()) {
      Document(whole);
    } else {
      std::string_view rest = text;
      while (!rest.empty()) {
        const uint64_t offset = text.size() - rest.size();
        const std::string_view line = Trim(TakeUntil(rest, "\n"));
        if (line.empty()) continue;
        const Json document = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (document.is_discarded()) {
          ++stats.records;
          stats.Count(rest.empty() ? Defect::kTruncated : Defect::kMalformed, offset);
        } else {
          Document(document);
        }
      }
    }
    Source& source = timeline_.sources[source_];
    source.stats.bytes = input.bytes_read();
    if (input.damaged()) source.stats.Count(Defect::kTruncated, input.bytes_read());
    if (first_ns_ <= last_ns_) {
      source.clock = ClockDomain::kUnix;
      source.utc_anchor_ns = 0;
      source.first_ns = first_ns_;
      source.last_ns = last_ns_;
    }
    if (source.stats.records == source.stats.dropped() + source.stats[Defect::kTruncated].count &&
        source.stats.kept == 0) {
      return Err(Code::kDataLoss, "expected OTLP/JSON, found no readable span or metric");
    }
    return {};
  }

 private:
  void Document(const Json& document) {
    for (const Json& resource : List(document, "resourceSpans")) {
      const StringId service = ServiceOf(resource);
      for (const Json& scope : List(resource, "scopeSpans")) {
        for (const Json& span : List(scope, "spans")) AddSpan(span, service);
      }
    }
    for (const Json& resource : List(document, "resourceMetrics")) {
      for (const Json& scope : List(resource, "scopeMetrics")) {
        for (const Json& metric : List(scope, "metrics")) AddMetric(metric);
      }
    }
  }

  StringId ServiceOf(const Json& resource) {
    for (const Json& attribute : List(Member(resource, "resource"), "attributes")) {
      if (Text(Member(attribute, "key")) == "service.name") {
        return timeline_.strings.Intern(Text(Member(Member(attribute, "value"), "stringValue")));
      }
    }
    return 0;
  }

  Attribute AttributeOf(const Json& json) {
    Attribute attribute;
    attribute.key = timeline_.strings.Intern(Text(Member(json, "key")));
    attribute.number = kNaN;
    const Json& value = Member(json, "value");
    for (const char* kind : {"stringValue", "intValue", "doubleValue", "boolValue"}) {
      const Json& entry = Member(value, kind);
      if (entry.is_null()) continue;
      if (entry.is_number()) attribute.number = entry.get<double>();
      if (entry.is_boolean()) attribute.number = entry.get<bool>() ? 1 : 0;
      if (entry.is_string()) {
        attribute.text = timeline_.strings.Intern(Text(entry));
        if (std::string_view(kind) != "stringValue") {
          attribute.number = WholeNumber(Text(entry)).value_or(kNaN);
        }
      } else {
        attribute.text = timeline_.strings.Intern(Written(entry));
      }
    }
    if (const Json& list = Member(value, "arrayValue"); !list.is_null()) {
      attribute.text = timeline_.strings.Intern(Written(list));
    }
    return attribute;
  }

  void AddSpan(const Json& json, StringId service) {
    ReadStats& stats = timeline_.sources[source_].stats;
    ++stats.records;
    Span span;
    span.start_ns = TimeOf(Member(json, "startTimeUnixNano"));
    span.end_ns = TimeOf(Member(json, "endTimeUnixNano"));
    if (span.start_ns == kNoTime || span.end_ns == kNoTime || span.end_ns < span.start_ns) {
      stats.Count(Defect::kBadTime, stats.records);
      return;
    }
    span.trace_id = timeline_.strings.Intern(Text(Member(json, "traceId")));
    span.span_id = timeline_.strings.Intern(Text(Member(json, "spanId")));
    span.parent_id = timeline_.strings.Intern(Text(Member(json, "parentSpanId")));
    span.name = timeline_.strings.Intern(Text(Member(json, "name")));
    span.service = service;
    span.source = source_;
    span.first_attribute = static_cast<uint32_t>(timeline_.attributes.size());
    for (const Json& attribute : List(json, "attributes")) {
      timeline_.attributes.push_back(AttributeOf(attribute));
    }
    span.num_attributes = static_cast<uint32_t>(timeline_.attributes.size()) - span.first_attribute;
    timeline_.spans.push_back(span);
    AddRequest(span);
    first_ns_ = std::min(first_ns_, span.start_ns);
    last_ns_ = std::max(last_ns_, span.end_ns);
    ++stats.kept;
  }

  // A span with the usage or latency of a generation is a request.
  void AddRequest(const Span& span) {
    Request request{.arrival_ns = span.start_ns,
                    .ttft_s = kNaN,
                    .e2e_s = kNaN,
                    .queue_s = kNaN,
                    .prefill_s = kNaN,
                    .decode_s = kNaN,
                    .prompt_tokens = kNaN,
                    .cached_tokens = kNaN,
                    .completion_tokens = kNaN};
    bool stated = false;
    for (uint32_t i = 0; i < span.num_attributes; ++i) {
      const Attribute& attribute = timeline_.attributes[span.first_attribute + i];
      const std::string_view key = timeline_.Name(attribute.key);
      for (const RequestKey& known : kRequestKeys) {
        if (known.key != key || std::isnan(attribute.number)) continue;
        request.*known.field = attribute.number;
        stated = true;
      }
      if (key == "gen_ai.request.id" || key == "gen_ai.response.id") request.id = attribute.text;
      if (key == "gen_ai.request.model" || key == "gen_ai.response.model") {
        request.model = attribute.text;
      }
    }
    if (!stated) return;
    if (std::isnan(request.e2e_s)) {
      request.e2e_s = static_cast<double>(span.end_ns - span.start_ns) * 1e-9;
    }
    request.span = static_cast<uint32_t>(timeline_.spans.size() - 1);
    request.source = source_;
    timeline_.requests.push_back(request);
  }

  void AddMetric(const Json& metric) {
    const std::string_view name = Text(Member(metric, "name"));
    const std::string_view unit = Text(Member(metric, "unit"));
    for (const Json& point : List(Member(metric, "gauge"), "dataPoints")) {
      AddPoint(name, unit, SeriesKind::kGauge, point, NumberOf(point));
    }
    for (const Json& point : List(Member(metric, "sum"), "dataPoints")) {
      AddPoint(name, unit, SeriesKind::kCounter, point, NumberOf(point));
    }
    for (const Json& point : List(Member(metric, "histogram"), "dataPoints")) {
      const std::string base(name);
      AddPoint(base + "_sum", unit, SeriesKind::kCounter, point, AsNumber(Member(point, "sum")));
      AddPoint(base + "_count", "", SeriesKind::kCounter, point, AsNumber(Member(point, "count")));
      // Cumulative, as Prometheus writes them.
      double total = 0;
      const Json& bounds = List(point, "explicitBounds");
      size_t i = 0;
      for (const Json& count : List(point, "bucketCounts")) {
        total += AsNumber(count);
        const std::string le = i < bounds.size() ? Written(bounds[i]) : "+Inf";
        AddPoint(base + "_bucket", "", SeriesKind::kHistogramBucket, point, total,
                 "le=\"" + le + "\"");
        ++i;
      }
    }
    for (const Json& point : List(Member(metric, "exponentialHistogram"), "dataPoints")) {
      AddExponential(std::string(name), unit, point);
    }
  }

  // Buckets whose bounds are powers of 2^(2^-scale), stored as cumulative ones. Latencies are not
  // negative: a point with negative values is left out.
  // https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
  void AddExponential(const std::string& name, std::string_view unit, const Json& point) {
    const double scale = AsNumber(Member(point, "scale"));
    const Json& positive = Member(point, "positive");
    const double offset = positive.is_null() ? 0 : NumberOr(Member(positive, "offset"), 0);
    const Json& counts = List(positive, "bucketCounts");
    double negative = 0;
    for (const Json& count : List(Member(point, "negative"), "bucketCounts")) {
      negative += AsNumber(count);
    }
    if (!(std::fabs(scale) <= kMaxScale) || !(std::fabs(offset) <= kMaxOffset) ||
        counts.size() > kMaxBuckets || negative != 0) {
      ReadStats& stats = timeline_.sources[source_].stats;
      ++stats.records;
      stats.Count(Defect::kUnknownRecord, stats.records);
      return;
    }
    AddPoint(name + "_sum", unit, SeriesKind::kCounter, point, AsNumber(Member(point, "sum")));
    AddPoint(name + "_count", "", SeriesKind::kCounter, point, AsNumber(Member(point, "count")));
    const auto add_bucket = [&](double bound, double total) {
      AddPoint(name + "_bucket", "", SeriesKind::kHistogramBucket, point, total,
               std::isinf(bound) ? "le=\"+Inf\"" : fmt::format("le=\"{}\"", bound));
    };
    double total = NumberOr(Member(point, "zeroCount"), 0);
    const auto bound = [&](double index) { return std::exp2(index * std::exp2(-scale)); };
    // What lies below the first bucket, zeros among it.
    add_bucket(bound(offset), total);
    double index = offset;
    for (const Json& count : counts) {
      total += AsNumber(count);
      index += 1;
      if (std::isfinite(bound(index))) add_bucket(bound(index), total);
    }
    add_bucket(std::numeric_limits<double>::infinity(), total);
  }

  static double NumberOr(const Json& value, double absent) {
    return value.is_null() ? absent : AsNumber(value);
  }

  static double AsNumber(const Json& value) {
    if (value.is_number()) return value.get<double>();
    return WholeNumber(Text(value)).value_or(kNaN);
  }
  static double NumberOf(const Json& point) {
    const Json& real = Member(point, "asDouble");
    return AsNumber(real.is_null() ? Member(point, "asInt") : real);
  }

  void AddPoint(std::string_view name, std::string_view unit, SeriesKind kind, const Json& point,
                double value, const std::string& extra_label = "") {
    ReadStats& stats = timeline_.sources[source_].stats;
    ++stats.records;
    const int64_t t_ns = TimeOf(Member(point, "timeUnixNano"));
    if (t_ns == kNoTime || !std::isfinite(value)) {
      stats.Count(t_ns == kNoTime ? Defect::kBadTime : Defect::kNonFinite, stats.records);
      return;
    }
    std::map<std::string, std::string> labels;
    for (const Json& attribute : List(point, "attributes")) {
      const Attribute parsed = AttributeOf(attribute);
      labels[std::string(timeline_.Name(parsed.key))] = timeline_.Name(parsed.text);
    }
    std::string canonical;
    for (const auto& [key, text] : labels) {
      canonical += (canonical.empty() ? "" : ",") + key + "=\"" + text + "\"";
    }
    if (!extra_label.empty()) canonical += (canonical.empty() ? "" : ",") + extra_label;
    const auto [entry, added] = series_.try_emplace(std::string(name) + '{' + canonical, 0);
    if (added) {
      Series row;
      row.source = source_;
      row.kind = kind;
      row.name = timeline_.strings.Intern(name);
      row.labels = timeline_.strings.Intern(canonical);
      row.unit = timeline_.strings.Intern(unit);
      entry->second = timeline_.AddSeries(row);
    }
    timeline_.AddSample(entry->second, t_ns, value);
    first_ns_ = std::min(first_ns_, t_ns);
    last_ns_ = std::max(last_ns_, t_ns);
    ++stats.kept;
  }

  Timeline& timeline_;
  const SourceId source_;
  std::map<std::string, uint32_t> series_;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
};

int DetectOtlp(std::string_view prefix) {
  if (!Trim(prefix.substr(0, 256)).starts_with('{')) return 0;
  return prefix.find("\"resourceSpans\"") != std::string_view::npos ||
                 prefix.find("\"resourceMetrics\"") != std::string_view::npos
             ? 95
             : 0;
}

Status ReadOtlp(Input& input, Timeline& timeline, SourceId source) {
  return OtlpReader(timeline, source).Read(input);
}

}  // namespace

const Reader kOtlpReader = {"otlp", "OpenTelemetry OTLP/JSON", DetectOtlp, ReadOtlp};

}  // namespace fathom::diagnose
