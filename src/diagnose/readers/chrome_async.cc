#include "diagnose/readers/chrome_async.h"

#include <cmath>
#include <limits>

#include "diagnose/readers/text_scan.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// A stage may come more than once (after a preemption): its times add up.
void Extend(double& total_s, int64_t ns) {
  total_s = (std::isnan(total_s) ? 0 : total_s) + Seconds(ns);
}

}  // namespace

uint32_t ChromeAsyncReader::AddSpan(const ChromeEvent& event) {
  Span span;
  span.start_ns = span.end_ns = event.ts_ns;
  span.trace_id = timeline_.strings.Intern(event.id.view());
  span.name = timeline_.strings.Intern(event.name.view());
  span.source = source_;
  span.first_attribute = static_cast<uint32_t>(timeline_.attributes.size());
  ForEachArg(event.args, [&](std::string_view key, std::string_view value, bool quoted) {
    Attribute attribute;
    attribute.key = timeline_.strings.Intern(key);
    attribute.text = timeline_.strings.Intern(value);
    attribute.number = quoted ? kNaN : WholeNumber(value).value_or(kNaN);
    timeline_.attributes.push_back(attribute);
  });
  span.num_attributes = static_cast<uint32_t>(timeline_.attributes.size()) - span.first_attribute;
  timeline_.spans.push_back(span);
  return static_cast<uint32_t>(timeline_.spans.size() - 1);
}

void ChromeAsyncReader::Add(const ChromeEvent& event, uint64_t offset) {
  switch (event.phase) {
    case 'b':
      Begin(event, offset);
      break;
    case 'e':
      End(event, offset);
      break;
    default: {
      const uint32_t span = AddSpan(event);
      ++timeline_.sources[source_].stats.kept;
      const auto request = requests_.find(std::string(event.id.view()));
      if (request != requests_.end()) {
        Tell(timeline_.requests[request->second], timeline_.spans[span]);
      }
    }
  }
}

void ChromeAsyncReader::Begin(const ChromeEvent& event, uint64_t offset) {
  const std::string id(event.id.view());
  const uint32_t span = AddSpan(event);
  open_[{id, std::string(event.name.view())}].push_back({span, offset});
  if (event.name.view() != "request") return;
  Request request{.arrival_ns = event.ts_ns,
                  .ttft_s = kNaN,
                  .e2e_s = kNaN,
                  .queue_s = kNaN,
                  .prefill_s = kNaN,
                  .decode_s = kNaN,
                  .prompt_tokens = kNaN,
                  .cached_tokens = kNaN,
                  .completion_tokens = kNaN};
  request.id = timeline_.strings.Intern(id);
  request.span = span;
  request.source = source_;
  requests_[id] = static_cast<uint32_t>(timeline_.requests.size());
  timeline_.requests.push_back(request);
}

void ChromeAsyncReader::End(const ChromeEvent& event, uint64_t offset) {
  ReadStats& stats = timeline_.sources[source_].stats;
  const std::string id(event.id.view());
  const auto open = open_.find({id, std::string(event.name.view())});
  if (open == open_.end() || open->second.empty()) {
    stats.Count(Defect::kUnmatchedEnd, offset);
    return;
  }
  Span& span = timeline_.spans[open->second.back().span];
  open->second.pop_back();
  if (open->second.empty()) open_.erase(open);
  if (event.ts_ns < span.start_ns) {
    stats.Count(Defect::kNegativeTime, offset);
  } else {
    span.end_ns = event.ts_ns;
  }
  ++stats.kept;
  const auto request = requests_.find(id);
  if (request == requests_.end()) return;
  Tell(timeline_.requests[request->second], span);
  if (event.name.view() == "request") requests_.erase(request);
}

void ChromeAsyncReader::Tell(Request& request, const Span& span) {
  const auto number = [&](std::string_view key) {
    for (uint32_t i = 0; i < span.num_attributes; ++i) {
      const Attribute& attribute = timeline_.attributes[span.first_attribute + i];
      if (timeline_.Name(attribute.key) == key) return attribute.number;
    }
    return kNaN;
  };
  const std::string_view name = timeline_.Name(span.name);
  const int64_t duration_ns = span.end_ns - span.start_ns;
  if (name == "request") {
    request.e2e_s = Seconds(duration_ns);
  } else if (name == "queue") {
    Extend(request.queue_s, duration_ns);
  } else if (name == "prefill" || name == "recompute") {
    Extend(request.prefill_s, duration_ns);
  } else if (name == "decode") {
    Extend(request.decode_s, duration_ns);
  } else if (name == "tokenize") {
    request.prompt_tokens = number("tokens");
  } else if (name == "prefix_lookup") {
    request.cached_tokens = number("found");
    if (std::isnan(request.prompt_tokens)) request.prompt_tokens = number("asked");
  } else if (name == "token" && std::isnan(request.ttft_s)) {
    request.ttft_s = Seconds(span.start_ns - request.arrival_ns);
  } else if (name == "finished") {
    request.completion_tokens = number("tokens");
  }
}

void ChromeAsyncReader::Finish() {
  for (const auto& [key, begins] : open_) {
    for (const Open& begin : begins) {
      timeline_.sources[source_].stats.Count(Defect::kUnmatchedBegin, begin.offset);
    }
  }
}

}  // namespace fathom::diagnose
