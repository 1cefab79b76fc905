#pragma once
// Settings that the evidence asks for: batch size, type of the KV cache, captured graph sizes,
// prefill chunk, tensor- or data-parallel attention. Each states what it was derived from; without
// that evidence it is absent.
#include <string_view>
#include <vector>

#include "diagnose/rules/rule.h"

namespace fathom::diagnose {

struct Recommendation {
  std::string_view id;  // "max-batch", "kv-dtype", "capture-sizes", "chunk-tokens",
                        // "attention-dp", "attention-tp"
  Text change;
  Text why;
};

std::vector<Recommendation> Recommend(const RuleContext& context);

}  // namespace fathom::diagnose
