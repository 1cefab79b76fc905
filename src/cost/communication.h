#pragma once
// Bytes that a rank sends in the collectives of tensor and expert parallelism.

namespace fathom::cost {

// Ring all-reduce of `bytes` over `ranks`: reduce-scatter, then all-gather (Patarasuk and Yuan,
// 2009), each passing (ranks - 1) / ranks of the data.
constexpr double RingAllReduceBytes(double bytes, double ranks) {
  return ranks <= 1 ? 0 : 2 * bytes * (ranks - 1) / ranks;
}

// Dispatch of `tokens` of a rank to the ranks of their experts: a hidden state goes once to each
// distinct rank that holds one of the top_k experts, which are spread evenly.
double AllToAllDispatchBytes(double tokens, double top_k, double ranks, double hidden,
                             double bytes_per_element);

// Keys and values of `tokens` that change their rank when the KV heads are divided anew.
constexpr double KvReshardBytes(double tokens, double layers, double kv_heads, double head_dim,
                                double bytes_per_element) {
  return 2 * tokens * layers * kv_heads * head_dim * bytes_per_element;
}

}  // namespace fathom::cost
