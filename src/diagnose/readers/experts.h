#pragma once
// Expert loads: tokens routed to each expert, as records {layer, expert, tokens[, rank]} (SGLang's
// first recorder wrote CSV "layer_id,expert_id,count"), or as a JSON object whose "logical_count"
// or "physical_count" is an array [layers][experts] or [dumps][layers][experts], as SGLang's
// recorder and vLLM's EPLB hold them.
#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kExpertsReader;

}  // namespace fathom::diagnose
