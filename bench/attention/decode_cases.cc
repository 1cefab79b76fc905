#include "decode_cases.h"

#include "sparse_case.h"

namespace fathom::bench {
namespace {

using kernels::cuda::CacheCode;

DecodeCase Gqa(int heads, int kv_heads, int dim, std::vector<int32_t> lengths) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .dim_qk = dim,
          .dim_v = dim,
          .kv_lengths = std::move(lengths)};
}

DecodeCase Mla(int heads, std::vector<int32_t> lengths) {
  return {.num_heads = heads,
          .num_kv_heads = 1,
          .dim_qk = 576,
          .dim_v = 512,
          .kv_lengths = std::move(lengths)};
}

const char* CodeName(const DecodeCase& c) {
  switch (c.code) {
    case CacheCode::kInt8:
      return " int8";
    case CacheCode::kE4m3:
      return " e4m3";
    default:
      return "";
  }
}

std::string Label(const DecodeCase& c) {
  const std::string type = fmt::format("{}{}", CodeName(c), c.float16 ? " f16" : "");
  return c.dim_qk > c.dim_v
             ? fmt::format("mla {}h{}", c.num_heads, type)
             : fmt::format("gqa {}/{}h d{}{}", c.num_heads, c.num_kv_heads, c.dim_v, type);
}

void AddSparseChecks(std::vector<DecodeCase>* cases) {
  const auto add = [cases](DecodeCase c, ops::sparse::Policy policy, const std::string& what) {
    c.policy = std::move(policy);
    c.name = Label(c) + " " + what;
    cases->push_back(std::move(c));
  };
  const std::vector<int32_t> queries = {1, 3, 1, 2, 8};
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
    // A sanitizer gets through the first.
    const std::vector<int32_t> lengths = {1, 700, 65, code == CacheCode::kBf16 ? 2500 : 4097, 640};
    std::vector<ops::sparse::Sequence> sequences;
    for (size_t i = 0; i < lengths.size(); ++i) sequences.push_back({queries[i], lengths[i]});
    DecodeCase c = Gqa(8, 2, 128, lengths);
    c.code = code;
    c.query_tokens = queries;
    for (const auto& [window, anchors] : {std::pair{100, 10}, {512, 32}, {63, 70}}) {
      c.page_tokens = anchors == 70 ? 128 : 64;
      add(c, Local(window, anchors), fmt::format("window {} + {} first", window, anchors));
    }
    for (const bool per_head : {false, true}) {
      const char* whose = per_head ? " of each head" : "";
      add(c, RandomAnchors(8, sequences, per_head), fmt::format("anchor lists{}", whose));
      add(c, RandomBlocks(8, sequences, per_head, 1), fmt::format("blocks{}", whose));
    }
    ops::sparse::Policy roles = Roles(16, 4);
    DecodeCase table = Gqa(16, 4, 64, lengths);
    table.code = code;
    table.query_tokens = queries;
    add(table, roles, "policy table");
    roles.heads[1] = {ops::sparse::HeadRole::kOff};
    roles.heads[5] = {ops::sparse::HeadRole::kLocal, 100, 1};
    add(table, roles, "policy table, unequal in groups");
    for (const int rows : {1, 100, 256}) {
      roles.learned_rows = rows;
      add(table, roles, fmt::format("policy table, {} learned rows", rows));
    }
    table.float16 = true;
    add(table, roles, "policy table, 256 learned rows, float16");
  }
  DecodeCase many = Gqa(8, 8, 128, std::vector<int32_t>(40, 300));
  add(many, Roles(8, 8), "policy table, 40 sequences");
  add(Gqa(32, 8, 128, {65536}), Ranges(32, 8), "key ranges 1k to 64k");
}

// Parts have to have several tiles: of 32 kv heads, by spans, or of a long sequence. None is small:
// a sanitizer sees the same accesses elsewhere.
void AddUnevenWeights(std::vector<DecodeCase>* cases) {
  const std::vector<int32_t> lengths = {5000, 1, 700, 64};
  const auto add = [cases](DecodeCase c, const char* what) {
    c.name = fmt::format("{} {}{}", Label(c), what, c.kv_lengths.size() == 1 ? ", long" : "");
    cases->push_back(std::move(c));
  };
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const bool float16 : {false, true}) {
      for (DecodeCase c : {Gqa(32, 32, 128, lengths), Gqa(64, 32, 64, lengths), Mla(16, lengths),
                           Mla(128, lengths), Mla(16, {40000}), Mla(128, {40000})}) {
        if (code != CacheCode::kBf16 && c.num_heads == 128) continue;  // eight tiles of 16 rows
        c.code = code;
        c.float16 = float16;
        c.weights = Weights::kWaiting;
        add(c, "weights that a base waits for");
        if (c.kv_lengths.size() == 1) continue;
        c.weights = Weights::kSink;
        add(c, "weights beside a sink");
        c.weights = Weights::kSteepRise;
        add(c, "weights that rise steeply");
      }
    }
  }
}

}  // namespace

std::vector<DecodeCase> DecodeCheckCases() {
  std::vector<DecodeCase> cases;
  const auto add = [&cases](DecodeCase c, const std::string& what) {
    c.name = Label(c) + " " + what;
    cases.push_back(std::move(c));
  };
  const std::vector<int32_t> odd = {1, 63, 64, 65, 127, 255, 256, 257, 0, 4097};
  add(Gqa(32, 8, 128, odd), "odd lengths");
  add(Gqa(28, 4, 128, odd), "odd lengths");
  add(Gqa(12, 12, 64, odd), "odd lengths");
  add(Gqa(16, 1, 64, odd), "odd lengths");
  add(Mla(16, odd), "odd lengths");
  add(Mla(4, odd), "odd lengths");
  add(Mla(128, odd), "odd lengths");
  for (const int page : {16, 32, 128}) {
    for (DecodeCase c : {Gqa(8, 2, 128, odd), Mla(16, odd)}) {
      c.page_tokens = page;
      add(std::move(c), fmt::format("pages of {}", page));
    }
  }
  for (DecodeCase c : {Gqa(32, 8, 128, {8, 300, 129}), Gqa(64, 8, 128, {70, 64, 1000}),
                       Gqa(40, 8, 64, {8, 300, 129}), Mla(16, {70, 300, 129})}) {
    c.query_tokens =
        c.dim_qk > c.dim_v ? std::vector<int32_t>{4, 1, 2} : std::vector<int32_t>{8, 3, 1};
    add(std::move(c), "several query tokens");
  }
  for (DecodeCase c : {Gqa(32, 8, 128, {5000, 77}), Mla(16, {5000, 77})}) {
    c.logit_scale = 40;  // scores beyond +-80
    add(std::move(c), "large logits");
  }
  DecodeCase head_major = Gqa(32, 8, 128, odd);
  head_major.token_major = false;
  add(head_major, "head-major pages");
  DecodeCase contiguous = Gqa(32, 8, 128, odd);
  contiguous.scattered = false;
  contiguous.contiguous = true;
  add(contiguous, "contiguous keys");
  add(Gqa(32, 8, 128, {40000}), "one long sequence");
  add(Mla(16, {40000}), "one long sequence");
  add(Gqa(8, 1, 128, std::vector<int32_t>(300, 65)), "many short sequences");
  add(Mla(16, std::vector<int32_t>(300, 65)), "many short sequences");
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (DecodeCase c : {Gqa(32, 8, 128, odd), Gqa(16, 1, 64, odd), Gqa(20, 1, 128, odd)}) {
      c.code = code;
      add(std::move(c), "odd lengths");
    }
    for (const int page : {16, 32, 128}) {
      DecodeCase c = Gqa(8, 2, 128, odd);
      c.code = code;
      c.page_tokens = page;
      add(std::move(c), fmt::format("pages of {}", page));
    }
    for (DecodeCase latent : {Mla(16, odd), Mla(4, odd), Mla(40, odd)}) {
      latent.code = code;
      latent.page_tokens = latent.num_heads == 4 ? 16 : 64;
      add(std::move(latent), "odd lengths");
    }
    DecodeCase c = Mla(16, {5000, 77});
    c.code = code;
    c.logit_scale = 40;
    add(c, "large logits");
    c = Gqa(32, 8, 128, {8, 300, 129});
    c.code = code;
    c.query_tokens = {8, 3, 1};
    add(c, "several query tokens");
    c = Gqa(32, 8, 128, {5000, 77});
    c.code = code;
    c.logit_scale = 40;
    add(c, "large logits");
  }
  add(Mla(128, {40000}), "one long sequence");
  add(Mla(64, odd), "odd lengths");  // one row tile: no cluster
  DecodeCase wide = Mla(128, {8, 300, 129});
  wide.query_tokens = {4, 1, 2};
  add(wide, "several query tokens");
  AddSparseChecks(&cases);
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
    for (DecodeCase c :
         {Gqa(32, 8, 128, odd), Gqa(28, 4, 128, {5000, 77}), Gqa(12, 12, 64, odd),
          Gqa(16, 1, 64, {8, 300, 129}), Mla(16, odd), Mla(40, odd), Mla(128, odd),
          Mla(16, {5000, 77}), Mla(128, {5000, 77}), Mla(128, {8, 300, 129}), Mla(16, {40000})}) {
      c.code = code;
      c.float16 = true;
      if (c.kv_lengths.size() == 2) c.logit_scale = 40;
      if (c.kv_lengths.size() == 3) c.query_tokens = {8, 3, 1};
      add(std::move(c), "float16");
    }
  }
  AddUnevenWeights(&cases);
  std::vector<int32_t> unequal(64, 1024);
  unequal[5] = 65536;
  add(Gqa(8, 2, 128, unequal), "1 x 64k + 63 x 1k");
  return cases;
}

std::vector<DecodeCase> DecodeTimeCases() {
  std::vector<DecodeCase> cases;
  const auto add = [&cases](DecodeCase c, const std::string& what) {
    c.name = Label(c) + " " + what;
    cases.push_back(std::move(c));
  };
  struct Row {
    int batch;
    int context_k;
  };
  for (const Row row : {Row{1, 8}, Row{1, 32}, Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{64, 4},
                        Row{128, 2}, Row{16, 32}}) {
    add(Gqa(32, 8, 128, std::vector<int32_t>(row.batch, row.context_k * 1024)),
        fmt::format("{} x {}k", row.batch, row.context_k));
  }
  std::vector<int32_t> unequal(64, 1024);
  unequal[0] = 65536;
  add(Gqa(32, 8, 128, unequal), "1 x 64k + 63 x 1k");
  add(Gqa(32, 8, 64, std::vector<int32_t>(32, 8192)), "32 x 8k");
  for (const Row row : {Row{1, 8}, Row{32, 8}, Row{1, 128}}) {
    const std::vector<int32_t> lengths(row.batch, row.context_k * 1024);
    for (DecodeCase c : {Gqa(32, 8, 128, lengths), Mla(16, lengths), Mla(128, lengths)}) {
      c.float16 = true;
      for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
        if (code != CacheCode::kBf16 && c.num_heads == 128) continue;  // eight tiles of 16 rows
        c.code = code;
        add(c, fmt::format("{} x {}k", row.batch, row.context_k));
      }
    }
  }
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const Row row : {Row{1, 8}, Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{16, 32}}) {
      DecodeCase c = Gqa(32, 8, 128, std::vector<int32_t>(row.batch, row.context_k * 1024));
      c.code = code;
      add(std::move(c), fmt::format("{} x {}k", row.batch, row.context_k));
    }
    for (const Row row : {Row{1, 8}, Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{128, 8}}) {
      DecodeCase c = Mla(16, std::vector<int32_t>(row.batch, row.context_k * 1024));
      c.code = code;
      add(std::move(c), fmt::format("{} x {}k", row.batch, row.context_k));
    }
    DecodeCase narrow = Gqa(32, 8, 64, std::vector<int32_t>(32, 8192));
    narrow.code = code;
    add(std::move(narrow), "32 x 8k");
  }
  for (const Row row : {Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{64, 4}, Row{128, 2}, Row{16, 32}}) {
    DecodeCase in_order = Gqa(32, 8, 128, std::vector<int32_t>(row.batch, row.context_k * 1024));
    in_order.scattered = false;
    in_order.contiguous = true;
    add(std::move(in_order), fmt::format("{} x {}k, contiguous keys", row.batch, row.context_k));
  }
  const auto add_sparse = [&add](DecodeCase c, ops::sparse::Policy policy,
                                 const std::string& what) {
    c.policy = std::move(policy);
    add(std::move(c), what);
  };
  add_sparse(Gqa(32, 8, 128, std::vector<int32_t>(32, 65536)), Local(4096, 32),
             "32 x 64k, window 4096 + 32 first");
  add_sparse(Gqa(32, 32, 128, {32768}), Roles(32, 32), "1 x 32k, policy table");
  add_sparse(Gqa(32, 8, 128, {32768}), Roles(32, 8), "1 x 32k, policy table by kv head");
  for (const int batch : {1, 8}) {
    add_sparse(Gqa(32, 8, 128, std::vector<int32_t>(batch, 65536)), Ranges(32, 8),
               fmt::format("{} x 64k, key ranges 1k to 64k", batch));
  }
  ops::sparse::Policy learned = Local(4096, 32);
  learned.learned_rows = 256;
  add_sparse(Gqa(32, 8, 128, std::vector<int32_t>(32, 65536)), learned,
             "32 x 64k, window 4096 + 32 first, 256 learned rows");
  for (const int heads : {16, 128}) {
    for (const Row row : {Row{1, 8}, Row{1, 32}, Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{128, 4},
                          Row{128, 8}, Row{16, 32}}) {
      add(Mla(heads, std::vector<int32_t>(row.batch, row.context_k * 1024)),
          fmt::format("{} x {}k", row.batch, row.context_k));
    }
  }
  add(Mla(16, unequal), "1 x 64k + 63 x 1k");
  for (const Row row : {Row{32, 8}, Row{128, 8}, Row{16, 32}}) {
    DecodeCase in_order = Mla(16, std::vector<int32_t>(row.batch, row.context_k * 1024));
    in_order.scattered = false;
    add(std::move(in_order), fmt::format("{} x {}k, pages in order", row.batch, row.context_k));
  }
  return cases;
}

}  // namespace fathom::bench
