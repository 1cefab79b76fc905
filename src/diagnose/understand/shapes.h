#pragma once
// The shapes and types of an operator's arguments, from the JSON text that a trace records:
// "[[1, 8, 4098, 128], [[2], [3]], []]" and ["c10::BFloat16", "TensorList", "Scalar"].
#include <cstdint>
#include <string_view>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

using Shape = std::vector<int64_t>;

struct Argument {
  std::vector<Shape> shapes;   // one for a tensor, several for a list of tensors, none for the rest
  int element_bytes = 0;       // 0: not stated
  const Shape& shape() const;  // of the first tensor; empty when there is none
};

int64_t NumElements(const Shape& shape);
std::vector<Argument> ParseArguments(std::string_view dims, std::string_view types);
// Arguments of an operator slice; empty when the trace has none.
std::vector<Argument> ArgumentsOf(const Timeline& timeline, uint32_t op);

// Of a collective's dtype as record_param_comms names it ("BFloat16", "Float"); 0: not known.
int CollectiveElementBytes(std::string_view dtype);

}  // namespace fathom::diagnose
