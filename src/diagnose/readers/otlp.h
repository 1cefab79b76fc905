#pragma once
// OpenTelemetry traces and metrics as OTLP/JSON: one document, or a line each (the collector's file
// exporter). Spans of generation requests (vLLM's llm_request, or the GenAI semantic conventions)
// become requests too.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kOtlpReader;

}  // namespace fathom::diagnose
