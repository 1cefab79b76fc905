#pragma once
// --rope-scaling: how to stretch a model's rotary frequencies, in place of what its config.json
// says. The scalings themselves are in ops/rope.h.
#include <string>
#include <string_view>

#include "base/result.h"
#include "ops/rope.h"

namespace fathom::model {

// "none", "linear,factor=2", "dynamic,factor=4[,original=N]",
// "yarn,factor=40,original=4096[,beta_fast=32][,beta_slow=1][,mscale=1][,mscale_all_dim=0]
//  [,attention_factor=F]", "llama3,factor=8,original=8192,low=1,high=4".
// dim and theta are left for the model to fill in, and so is an `original` that was not given (0).
Result<ops::RopeSpec> ParseRopeScaling(std::string_view text);

// "yarn, factor 40, original 4096, beta 32/1, mscale 1/1": for printing and for fingerprints.
std::string Describe(const ops::RopeSpec& rope);

}  // namespace fathom::model
