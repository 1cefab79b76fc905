#include "ops/cuda/claims.h"

#include <cmath>
#include <random>

#include "cost/shared_banks.h"
#include "ops/cuda/explain.h"
#include "ops/sparse_plan.h"

namespace fathom::ops {
namespace {

const cost::Hardware& H200() { return *cost::FindHardware("H200"); }

AttentionCase Case(bool decode, int heads, int kv_heads, int dim, int64_t batch, int64_t keys) {
  AttentionCase made{.decode = decode, .page_tokens = decode ? 64 : 0};
  made.call.heads = heads;
  made.call.kv_heads = kv_heads;
  made.call.dim_qk = made.call.dim_v = dim;
  made.call.sequences.assign(static_cast<size_t>(batch), {decode ? 1 : keys, keys});
  return made;
}

Status BlockSizes(ClaimRow& row) {
  FATHOM_ASSIGN_OR_RETURN(
      const PolicyRow policy,
      EvaluatePolicy("handbook-blocks", Case(false, 32, 8, 128, 1, 8192), H200()));
  row.figure = fmt::format("{} keys a tile on an H200, prefill, head dim 128: {}", policy.keys,
                           policy.obstacle);
  row.state = policy.obstacle.empty() ? ClaimState::kHolds : ClaimState::kFails;
  return {};
}

Status StaticHeads(ClaimRow& row) {
  // 16 heads whose key ranges are 1k, 2k ... 64k, over and over.
  constexpr int kHeads = 16;
  constexpr int kRanges = 7;
  std::vector<double> costs;
  std::vector<int64_t> tiles;
  for (int h = 0; h < kHeads; ++h) {
    tiles.push_back(int64_t{16} << h % kRanges);  // of 64 keys
    costs.push_back(static_cast<double>(tiles.back()));
  }
  const Loads fixed = DealStatically(costs, H200().num_sms);
  const Loads alone = DealStatically(costs, kHeads);  // only the blocks that have a head
  const Loads cut = LoadsOf(CutEvenly(tiles, H200().num_sms));
  row.figure = fmt::format(
      "16 heads, key ranges 1k to 64k, 132 SMs: a head to a block keeps them busy {:.0f} % of the "
      "time (the 16 blocks {:.0f} %; balance {:.2f}), an even cut {:.0f} % (balance {:.3f})",
      100 * fixed.busy(), 100 * alone.busy(), fixed.balance(), 100 * cut.busy(), cut.balance());
  row.state = cut.busy() > fixed.busy() ? ClaimState::kHolds : ClaimState::kFails;
  return {};
}

AttentionCase Windowed(int64_t keys) {
  AttentionCase made = Case(false, 32, 8, 128, 1, keys);
  made.call.window = 512;
  made.call.anchors = 32;
  return made;
}

Status WindowGrowth(ClaimRow& row) {
  const double grows =
      cost::KeptPairs(Windowed(65536).call) / cost::KeptPairs(Windowed(16384).call);
  row.figure = fmt::format(
      "window 512 + 32 anchors: pairs grow {:.2f}x from 16k to 64k keys: O(n), where O(n sqrt n) "
      "would be 8x",
      grows);
  row.state = ClaimState::kHoldsInPart;
  return {};
}

Status WindowCache(ClaimRow& row) {
  AttentionCase decode = Case(true, 32, 8, 128, 1, 131072);
  const double dense = cost::AttentionFloor(decode.call).bytes;
  decode.call.window = 512;
  decode.call.anchors = 32;
  row.figure = fmt::format(
      "a decode step at 128k keys reads {:.1f} MB instead of {:.0f} MB a "
      "layer; memory and tokens a second of a served model are not measured",
      cost::AttentionFloor(decode.call).bytes / 1e6, dense / 1e6);
  return {};
}

Status HeadRoles(ClaimRow& row) {
  constexpr int kHeads = 32;
  sparse::Policy policy;
  for (int h = 0; h < kHeads; ++h) {
    policy.heads.push_back(h % 4 == 0   ? sparse::HeadPolicy{sparse::HeadRole::kGlobal}
                           : h % 4 == 3 ? sparse::HeadPolicy{sparse::HeadRole::kOff}
                                        : sparse::HeadPolicy{sparse::HeadRole::kLocal, 512, 32});
  }
  FATHOM_ASSIGN_OR_RETURN(
      const sparse::Plan plan,
      sparse::MakePlan({.num_heads = kHeads, .num_kv_heads = kHeads, .tile_queries = 1}, policy,
                       {{1, 32768}}));
  row.figure = fmt::format(
      "a quarter of 32 heads global, half local, a quarter off, decode at 32k: {} of {} tiles "
      "visited; quality is not measured",
      plan.tiles.size(), plan.DenseTiles());
  return {};
}

Status IoBlocks(ClaimRow& row) {
  constexpr double kMeasured = 4360;  // GB/s, the ceiling that bench/attention reads at
  const QueryKeyBlock here = HandbookIoBlock(H200().memory_bytes_per_s / 1e9, kMeasured);
  const QueryKeyBlock fast = HandbookIoBlock(H200().memory_bytes_per_s / 1e9, 1);
  row.figure = fmt::format(
      "H200, 4800 GB/s on paper and {:.0f} measured: {} x {}; were the ratio above 1.2: {} x {}, "
      "which matrix instructions cannot take",
      kMeasured, here.rows, here.keys, fast.rows, fast.keys);
  row.state = ClaimState::kFails;
  return {};
}

Status GroupedReuse(ClaimRow& row) {
  FATHOM_ASSIGN_OR_RETURN(const Explanation gqa,
                          Explain(Case(true, 32, 8, 128, 1, 8192), H200(), {}));
  FATHOM_ASSIGN_OR_RETURN(const Explanation mha,
                          Explain(Case(true, 32, 32, 128, 1, 8192), H200(), {}));
  const double ratio = mha.kernel->fused.l2 / gqa.kernel->fused.l2;
  row.figure = fmt::format(
      "decode 1 x 8k, 32 heads of 128: 32 kv heads move {:.2f}x the bytes of 8 from L2; hit rates "
      "need counters",
      ratio);
  row.state = ClaimState::kHoldsInPart;
  return {};
}

// softmax(x)_i (g_i - sum_j g_j softmax(x)_j) against central differences of sum_i g_i
// softmax(x)_i.
Status SoftmaxGradient(ClaimRow& row) {
  constexpr int kSize = 64;
  constexpr double kStep = 1e-5;
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> x(kSize), g(kSize);
  for (double& v : x) v = 3 * normal(random);
  for (double& v : g) v = normal(random);
  const auto softmax = [](const std::vector<double>& of) {
    std::vector<double> p;
    double sum = 0;
    for (const double v : of) p.push_back(std::exp(v));
    for (const double v : p) sum += v;
    for (double& v : p) v /= sum;
    return p;
  };
  const auto loss = [&](const std::vector<double>& of) {
    const std::vector<double> p = softmax(of);
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += g[i] * p[i];
    return sum;
  };
  const std::vector<double> p = softmax(x);
  const double mean = loss(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> up = x, down = x;
    up[i] += kStep;
    down[i] -= kStep;
    const double slope = (loss(up) - loss(down)) / (2 * kStep);
    worst = std::max(worst, std::abs(p[i] * (g[i] - mean) - slope));
  }
  row.figure = fmt::format("largest difference from central differences, 64 logits: {:.1e}", worst);
  row.state = worst < 1e-8 ? ClaimState::kHolds : ClaimState::kFails;
  return {};
}

Status HashShards(ClaimRow& row) {
  const AttentionCase decode = Case(true, 32, 8, 128, 1, 8192);
  std::string text;
  double best_hash = 0;
  double ours = 0;
  for (const char* name : {"fathom", "handbook-hash-64", "handbook-hash-128"}) {
    FATHOM_ASSIGN_OR_RETURN(const PolicyRow policy, EvaluatePolicy(name, decode, H200()));
    const double balance = policy.schedule.balance;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", name, balance);
    if (policy.name == "fathom") {
      ours = balance;
    } else if (best_hash == 0 || balance < best_hash) {
      best_hash = balance;
    }
  }
  row.figure = "balance (largest / even share), decode 1 x 8k on an H200: " + text;
  row.state = best_hash < ours ? ClaimState::kHolds : ClaimState::kFails;
  return {};
}

Status FusedBytes(ClaimRow& row) {
  constexpr int64_t kTokens = 8192;
  FATHOM_ASSIGN_OR_RETURN(const Explanation e,
                          Explain(Case(false, 32, 32, 128, 1, kTokens), H200(), {}));
  row.figure = fmt::format(
      "prefill of 8192, 32 heads of 128: {:.0f}x fewer bytes of memory fused ({:.1f} GB against "
      "{:.2f} GB); the formula says {:.0f}x",
      e.unfused.hbm / e.kernel->fused.hbm, e.unfused.hbm / 1e9, e.kernel->fused.hbm / 1e9,
      cost::HandbookUnfusedBytes(kTokens) / cost::HandbookFusedBytes(kTokens));
  row.state = ClaimState::kHoldsInPart;
  return {};
}

// Within five points of the claimed percentages of a contiguous read, or not.
void Gathers(const ClaimEvidence& evidence, ClaimRow& row) {
  constexpr double kClose = 5;
  const auto percent = [&evidence](const char* pattern) {
    const auto all = evidence.gather_gb_per_s.find("contiguous");
    const auto found = evidence.gather_gb_per_s.find(pattern);
    const bool known = all != evidence.gather_gb_per_s.end() &&
                       found != evidence.gather_gb_per_s.end() && all->second > 0;
    return known ? 100 * found->second / all->second : -1;
  };
  const double blocks = percent("pages of 16 tokens anywhere");
  const double tokens = percent("tokens anywhere (8 heads)");
  if (blocks < 0 || tokens < 0) {
    row.figure = "not measured";
    return;
  }
  row.figure = fmt::format(
      "of a contiguous read's {:.0f} GB/s: pages of 16 tokens {:.0f} %, tokens of 2048 bytes "
      "{:.0f} "
      "%, one head's 256 bytes {:.0f} %, 64 bytes {:.0f} %, 32 bytes {:.0f} %",
      evidence.gather_gb_per_s.at("contiguous"), blocks, tokens,
      percent("tokens of one head anywhere"), percent("64 bytes anywhere"),
      percent("32 bytes anywhere"));
  row.source = evidence.attention_source;
  const bool close = std::abs(blocks - 82) <= kClose && std::abs(tokens - 96) <= kClose;
  row.state = close ? ClaimState::kHolds : ClaimState::kFails;
}

Status Strides(const ClaimEvidence& evidence, ClaimRow& row) {
  int64_t excess = 0;
  for (const auto kernels : {DecodeKernels(), PrefillKernels()}) {
    for (const AttentionKernel& kernel : kernels) {
      const bool decode = kernels.data() == DecodeKernels().data();
      excess +=
          MainLoopWavefronts(decode ? DecodeSharedAccesses(kernel) : PrefillSharedAccesses(kernel))
              .excess();
    }
  }
  row.figure = fmt::format(
      "wavefronts of a warp, by stride: 4 bytes {}, 4 words {}, 5 words {}, 128 bytes {}, 132 "
      "bytes "
      "{}; excess in the main loops of all kernels (swizzled, unpadded): {}",
      cost::StridedWavefronts(4, 4).count, cost::StridedWavefronts(16, 4).count,
      cost::StridedWavefronts(20, 4).count, cost::StridedWavefronts(128, 4).count,
      cost::StridedWavefronts(132, 4).count, excess);
  std::string clocks;
  for (const int bytes : {4, 16, 20, 128, 132}) {
    const auto found =
        evidence.stride_clocks.find(fmt::format("4 bytes a lane, {} bytes apart", bytes));
    if (found == evidence.stride_clocks.end()) continue;
    clocks += fmt::format("{}{} bytes {:.1f}", clocks.empty() ? "" : ", ", bytes, found->second);
  }
  if (!clocks.empty()) {
    row.figure += "; measured clocks of a load: " + clocks;
    row.source = evidence.attention_source;
  }
  row.state = ClaimState::kHoldsInPart;
  return {};
}

void RopeTable(const ClaimEvidence& evidence, ClaimRow& row) {
  const auto of = [&evidence](const char* name) {
    const auto found = evidence.rope_ns.find(name);
    return found == evidence.rope_ns.end() ? 0.0 : found->second;
  };
  const double table = of("Table");
  const double fly = of("OnTheFly");
  const double linear = of("PiecewiseLinear");
  if (table <= 0 || fly <= 0) {
    row.figure = "no measurement found";
    return;
  }
  row.figure = fmt::format("a token on the CPU: table {:.0f} ns, on the fly {:.0f} ns ({:.1f}x)",
                           table, fly, fly / table);
  if (linear > 0) row.figure += fmt::format(", piecewise linear {:.0f} ns", linear);
  row.source = evidence.rope_source;
  row.state = fly > table ? ClaimState::kHolds : ClaimState::kFails;
}

void Roofline(ClaimRow& row) {
  const auto intensity = [](int kv_heads) {
    const cost::Cost floor = cost::AttentionFloor(Case(true, 32, kv_heads, 128, 1, 32768).call);
    return floor.flops / floor.bytes;
  };
  row.figure = fmt::format(
      "decode at 32k, bf16, FLOP a byte: {:.2f} with 32 kv heads, {:.2f} with 8; both bound by "
      "memory (ridge of an H200: {:.0f})",
      intensity(32), intensity(8), H200().bf16_flops_per_s / H200().memory_bytes_per_s);
  row.state = ClaimState::kHoldsInPart;
}

void ShortPrefill(const ClaimEvidence& evidence, ClaimRow& row) {
  const std::string shape = Case(false, 12, 12, 64, 8, 2048).Name();
  const auto ours = evidence.fathom_us.find(shape);
  const auto peer = evidence.best_peer_us.find(shape);
  if (ours == evidence.fathom_us.end() || peer == evidence.best_peer_us.end()) {
    row.figure = fmt::format("no measurement of \"{}\" found", shape);
    return;
  }
  row.figure = fmt::format(
      "{}: {:.1f} us, {:.0f} M tokens a second through this one layer; best PyTorch backend {:.1f} "
      "us ({:.2f}x)",
      shape, ours->second, 8 * 2048 / ours->second, peer->second, peer->second / ours->second);
  row.source = evidence.attention_source;
  row.state = peer->second > ours->second ? ClaimState::kHoldsInPart : ClaimState::kFails;
}

}  // namespace

const char* NameOf(ClaimState state) {
  switch (state) {
    case ClaimState::kHolds:
      return "holds";
    case ClaimState::kHoldsInPart:
      return "holds in part";
    case ClaimState::kFails:
      return "fails";
    case ClaimState::kOpen:
      return "open";
  }
  return "open";
}

Result<std::vector<ClaimRow>> CheckClaims(const ClaimEvidence& evidence) {
  std::vector<ClaimRow> rows;
  const auto add = [&rows](const char* id, const char* verdict, const char* claim,
                           const char* check) -> ClaimRow& {
    rows.push_back(
        {.id = id, .claim = claim, .verdict = verdict, .check = check, .source = "computed"});
    return rows.back();
  };
  FATHOM_TRY(
      BlockSizes(add("A4", "folklore", "best attention block size: A100 64, H100 256, L40S 128",
                     "shared memory, registers and built tiles (policy handbook-blocks)")));
  ClaimRow& layouts =
      add("A7", "sound",
          "FlashAttention takes [B, H, T, D], a GQA cache is [B, G, T, D]: reshaping "
          "it corrupts",
          "planes carry token and head strides, kv heads are never repeated or "
          "reshaped (tests of the planners and of every GQA ratio)");
  layouts.figure = "no layout is assumed: base, page, token and head stride of each plane";
  layouts.state = ClaimState::kHolds;
  FATHOM_TRY(StaticHeads(add("A8", "plausible",
                             "16 heads on fixed blocks: 3 at 92 % occupancy, 13 at 41 %; mapped "
                             "dynamically 47 -> 89 %",
                             "work of each block under both mappings (ops/balance.h)")));
  Gathers(evidence, add("A22", "folklore",
                        "sparse gather: block 16 at 82 % of bandwidth, random top-k 2048 at 96 %",
                        "micro-benchmark of contiguous, block and random gather on a GPU"));
  FATHOM_TRY(
      WindowGrowth(add("B1", "folklore about R1, sound mechanism",
                       "R1 attends in a window of 512 plus 32 anchors, O(n sqrt n)",
                       "count of unmasked pairs; the mask is an option of the sparse plan")));
  FATHOM_TRY(
      WindowCache(add("B2", "folklore", "sparse attention at 128K context: 11.3 GB, 214 tok/s",
                      "bytes that a decode step has to read")));
  FATHOM_TRY(HeadRoles(add("B3", "plausible", "heads are local, global or routed off, by a gate",
                           "tiles visited under a per-head policy table")));
  FATHOM_TRY(
      IoBlocks(add("B4", "folklore formula",
                   "block_q = min(128, ceil(sqrt(bw / 25.6))), block_k half of it, when HBM is "
                   "over 1.2 times global memory",
                   "the formula's tile against what the instructions take (policy "
                   "handbook-io)")));
  FATHOM_TRY(GroupedReuse(add("B5", "plausible", "GQA-4 against MHA-32: SRAM reuse 78 against 92 %",
                              "modelled bytes between L2 and the SMs")));
  FATHOM_TRY(
      SoftmaxGradient(add("B6", "sound", "gradient: softmax(x)_i (g_i - sum_j g_j softmax(x)_j)",
                          "central differences in float64")));
  FATHOM_TRY(
      HashShards(add("B7", "folklore", "shards of 64 or 128 keys to warps by the golden-ratio hash",
                     "balance against the even cut (policies handbook-hash-*)")));
  FATHOM_TRY(FusedBytes(add("B8", "idea sound, formula wrong",
                            "fused attention moves N^2 elements where 5 N^2 moved",
                            "exact bytes of both (cost/attention.h)")));
  FATHOM_TRY(
      Strides(evidence, add("B9", "plausible", "a stride of 5 instead of 4 removes bank conflicts",
                            "bank model (cost/shared_banks.h) of strides and of every main loop")));
  RopeTable(evidence,
            add("B10", "plausible",
                "rotary factors made in each call cost 15 to 29 % of prefill; a table or a "
                "piecewise-linear approximation does not",
                "rope benchmark on the CPU"));
  Roofline(add("B13", "plausible", "roofline at 32k to 64k: 0.87 to 0.62 FLOP a byte",
               "FLOPs and bytes that decoding needs at least"));
  ShortPrefill(evidence, add("B15", "folklore numbers, sound comparison",
                             "seq 2048, batch 8, 12 heads of 64: 1.16x of FA2, 1.19x of FA3",
                             "the same shape in the kept results"));
  return rows;
}

}  // namespace fathom::ops
