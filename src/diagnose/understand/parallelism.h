#pragma once
// How the attention of a served model is divided over GPUs, as far as logs and traces state it.
#include <string_view>

#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

// Heads of keys and values of a model of the DeepSeek family, by its name in any case
// ("DeepSeek-R1-Distill-Qwen-7B"): 0 for MLA, whose one latent vector serves all heads; -1 for
// names that do not say.
int KvHeadsByName(std::string_view model);

struct AttentionParallelism {
  int ranks = 0;      // that share the heads of a sequence; 0: not stated
  int replicas = 0;   // groups of such ranks, each with sequences of its own; 0: not stated
  int kv_heads = -1;  // of the model; 0: MLA; -1: not stated

  // How many of the ranks keep the same keys and values; 0: not known.
  int copies() const;
};

AttentionParallelism FindAttentionParallelism(const TraceIndex& index, const Steps& steps);

}  // namespace fathom::diagnose
