#include "decode_cases.h"

namespace fathom::bench {
namespace {

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

std::string Label(const DecodeCase& c) {
  return c.dim_qk > c.dim_v ? fmt::format("mla {}h", c.num_heads)
                            : fmt::format("gqa {}/{}h d{}", c.num_heads, c.num_kv_heads, c.dim_v);
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
  add(Gqa(32, 8, 128, {40000}), "one long sequence");
  add(Mla(16, {40000}), "one long sequence");
  add(Gqa(8, 1, 128, std::vector<int32_t>(300, 65)), "many short sequences");
  add(Mla(16, std::vector<int32_t>(300, 65)), "many short sequences");
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
  for (const Row row : {Row{1, 128}, Row{8, 8}, Row{32, 8}, Row{64, 4}, Row{128, 2}, Row{16, 32}}) {
    DecodeCase in_order = Gqa(32, 8, 128, std::vector<int32_t>(row.batch, row.context_k * 1024));
    in_order.scattered = false;
    in_order.token_major = false;
    add(std::move(in_order),
        fmt::format("{} x {}k, head-major, pages in order", row.batch, row.context_k));
  }
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
