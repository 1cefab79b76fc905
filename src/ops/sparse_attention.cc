#include "ops/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/paged_span.h"
#include "ops/panels.h"

namespace fathom::ops::attention {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

bool IsLatent(const CacheFormat& format) { return format.Find(PlaneKind::kC) != nullptr; }

int32_t MaxRunHeads(const sparse::Plan& tiles) {
  int32_t most = 1;
  for (const sparse::HeadRun& run : tiles.runs) most = std::max(most, run.num_heads);
  return most;
}

struct Workspace {
  Workspace(const GqaShape& shape, const CacheFormat& format, const sparse::Plan& tiles,
            int num_threads, std::byte* memory)
      : span{.operands =
                 Operands(shape.precision,
                          format.Find(IsLatent(format) ? PlaneKind::kC : PlaneKind::kK)->dtype),
             .scale = shape.softmax_scale,
             .max_rows = int64_t{tiles.shape.tile_queries} * MaxRunHeads(tiles),
             .key_dim = shape.head_dim,
             .value_dim = shape.head_dim_v} {
    if (IsLatent(format)) {
      span.key_planes = {*format.Find(PlaneKind::kC), *format.Find(PlaneKind::kKPe)};
      span.num_key_planes = 2;
      span.values = span.key_planes[0];
      span.values_are_keys = true;
    } else {
      span.key_planes = {*format.Find(PlaneKind::kK), {}};
      span.values = *format.Find(PlaneKind::kV);
    }
    Carver carver(memory);
    of_items =
        ItemMemory(carver, static_cast<int64_t>(tiles.rows.size()), num_threads, span.max_rows,
                   shape.head_dim_v, [this](Carver& one) { span.Carve(one); });
    bytes = carver.used();
  }

  PagedSpan span;
  ItemMemory of_items;
  size_t bytes = 0;
};

// What one call works on; copied into the work that a device may run late.
class SparseCall {
 public:
  SparseCall(std::shared_ptr<const sparse::Plan> tiles, const GqaShape& shape,
             const SparseArgs& args, const StepInputs& inputs)
      : tiles_(std::move(tiles)), shape_(shape), args_(args), inputs_(inputs) {}

  void Run(const host::Runtime& runtime, std::byte* memory) const {
    CheckSequences();
    const int threads = runtime.pool->num_threads();
    const Workspace ws(shape_, args_.cache.format, *tiles_, threads, memory);
    for (size_t i = 0; i < tiles_->rows.size(); ++i) ws.of_items.items[i] = ItemOf(tiles_->rows[i]);
    const auto compute = [&](const Item& item, int32_t span, int worker, const State& out) {
      const sparse::TileRow& row = tiles_->rows[static_cast<size_t>(&item - ws.of_items.items)];
      Carver carver = ws.of_items.ScratchOf(worker);
      Compute(*runtime.cpu, ws.span, ws.span.Carve(carver), row, span, out);
    };
    const auto finish = [&](const Item& item, const State& state) {
      Finish(*runtime.cpu, tiles_->rows[static_cast<size_t>(&item - ws.of_items.items)], state);
    };
    ItemRunner(threads, ws.span.max_rows, shape_.head_dim_v, ws.of_items.states)
        .Run(runtime, ws.of_items.items, static_cast<int64_t>(tiles_->rows.size()),
             MaxRunHeads(*tiles_), compute, finish);
  }

 private:
  const sparse::HeadRun& RunOf(const sparse::TileRow& row) const {
    return tiles_->runs[static_cast<size_t>(row.run)];
  }
  int32_t LearnedKeys() const { return tiles_->policy.learned_rows > 0 ? kSpanTokens : 0; }

  // The plan was made for these lengths.
  void CheckSequences() const {
    const auto count = static_cast<int32_t>(tiles_->sequences.size());
    FATHOM_CHECK(inputs_.live_counts[kLiveSequences] == count, "{} sequences, planned for {}",
                 inputs_.live_counts[kLiveSequences], count);
    for (int32_t i = 0; i < count; ++i) {
      const sparse::Sequence& s = tiles_->sequences[static_cast<size_t>(i)];
      const int32_t queries = inputs_.query_starts[i + 1] - inputs_.query_starts[i];
      FATHOM_CHECK(s.queries == queries && s.keys == inputs_.kv_lengths[i],
                   "sequence {}: {} queries and {} keys, planned for {} and {}", i, queries,
                   inputs_.kv_lengths[i], s.queries, s.keys);
    }
  }

  // Its keys end with the last listed tile; learned rows stand in front as one span.
  Item ItemOf(const sparse::TileRow& row) const {
    int32_t keys = 0;
    if (row.end > row.begin) {
      keys = std::min(tiles_->TilesOf(row).back().key + tiles_->shape.tile_keys,
                      tiles_->sequences[static_cast<size_t>(row.sequence)].keys);
    }
    if (!Off(row)) keys += LearnedKeys();
    return {.sequence = row.sequence,
            .first_token = inputs_.query_starts[row.sequence] + row.first_query,
            .num_tokens = row.num_queries,
            .head = RunOf(row).kv_head,
            .first_keys = keys - row.num_queries + 1};
  }

  bool Off(const sparse::TileRow& row) const {
    const auto& heads = tiles_->policy.heads;
    const size_t at = heads.size() == 1 ? 0 : static_cast<size_t>(RunOf(row).first_head);
    return heads[at].role == sparse::HeadRole::kOff;
  }

  void StageQueries(const kernels::cpu::KernelTable& cpu, const PagedSpan& span,
                    const PagedSpan::Scratch& scratch, const sparse::TileRow& row) const {
    const sparse::HeadRun& run = RunOf(row);
    const int32_t first = inputs_.query_starts[row.sequence] + row.first_query;
    for (int32_t t = 0; t < row.num_queries; ++t) {
      for (int32_t h = 0; h < run.num_heads; ++h) {
        const float* q = host::Row(args_.q, first + t) + (run.first_head + h) * args_.q.stride[1];
        span.StageQuery(cpu, q, shape_.head_dim, 0, t * run.num_heads + h, scratch);
      }
    }
  }

  void Compute(const kernels::cpu::KernelTable& cpu, const PagedSpan& span,
               const PagedSpan::Scratch& scratch, const sparse::TileRow& row, int32_t index,
               const State& out) const {
    const int32_t num_rows = row.num_queries * RunOf(row).num_heads;
    // States have room for the widest run of heads.
    std::fill_n(out.l + num_rows, row.num_queries * MaxRunHeads(*tiles_) - num_rows, 0.0F);
    SpanRows rows;
    std::array<sparse::Tile, kSpanTokens / 64> live;
    size_t num_live = 0;
    if (LearnedKeys() > 0 && index == 0) {
      AddLearned(span, RunOf(row).kv_head, rows);
    } else {
      num_live = Gather(span, row, (index * kSpanTokens) - LearnedKeys(), rows, live);
    }
    if (rows.count == 0) {
      std::fill_n(out.m, num_rows, kNothing);
      std::fill_n(out.l, num_rows, 0.0F);
      return;
    }
    StageQueries(cpu, span, scratch, row);
    span.Attend(
        cpu, rows, num_rows, scratch,
        [&] {
          Softmax(cpu, row, rows.count, {live.data(), num_live}, scratch, out);
        },
        out);
  }

  void AddLearned(const PagedSpan& span, int64_t kv_head, SpanRows& rows) const {
    const int64_t size = SizeOf(span.key_planes[0].dtype);
    rows.count = tiles_->policy.learned_rows;
    for (int32_t i = 0; i < rows.count; ++i) {
      const int64_t at = int64_t{i} * shape_.num_kv_heads + kv_head;
      const auto k = static_cast<size_t>(i);
      rows.keys[0][k] =
          static_cast<const std::byte*>(args_.learned_k) + at * shape_.head_dim * size;
      rows.values[k] =
          static_cast<const std::byte*>(args_.learned_v) + at * shape_.head_dim_v * size;
    }
  }

  // The listed tiles that start in the span from position `first` on.
  size_t Gather(const PagedSpan& span, const sparse::TileRow& row, int32_t first, SpanRows& rows,
                std::array<sparse::Tile, kSpanTokens / 64>& live) const {
    const auto group = static_cast<size_t>(args_.page_table);
    const PageReader reader(
        args_.cache, args_.layer,
        inputs_.page_tables[group] + row.sequence * inputs_.page_table_stride[group]);
    const std::span<const sparse::Tile> tiles = tiles_->TilesOf(row);
    const int32_t keys = tiles_->sequences[static_cast<size_t>(row.sequence)].keys;
    size_t count = 0;
    for (auto tile =
             std::lower_bound(tiles.begin(), tiles.end(), first,
                              [](const sparse::Tile&t, int32_t key) { return t.key < key; });
         tile != tiles.end() && tile->key < first + kSpanTokens; ++tile) {
      span.Gather(reader, RunOf(row).kv_head, tile->key,
                  std::min(tiles_->shape.tile_keys, keys - tile->key), rows);
      live[count++] = *tile;
    }
    return count;
  }

  // Masks the scores of partial tiles, then makes probabilities row by row.
  void Softmax(const kernels::cpu::KernelTable& cpu, const sparse::TileRow& row, int32_t count,
               std::span<const sparse::Tile> live, const PagedSpan::Scratch& scratch,
               const State& out) const {
    const sparse::HeadRun& run = RunOf(row);
    const int32_t keys = tiles_->sequences[static_cast<size_t>(row.sequence)].keys;
    const auto padded = static_cast<int32_t>(host::EvenUp(count));
    for (int32_t r = 0; r < row.num_queries * run.num_heads; ++r) {
      float* const scores = scratch.scores + int64_t{r} * kSpanTokens;
      uint16_t* const p = scratch.p != nullptr ? scratch.p + int64_t{r} * kSpanTokens : nullptr;
      const int32_t query = row.first_query + r / run.num_heads;
      int32_t at = 0;
      int32_t seen = live.empty() ? count : 0;  // of learned rows all
      for (const sparse::Tile& tile : live) {
        const int32_t size = std::min(tiles_->shape.tile_keys, keys - tile.key);
        for (int32_t k = 0; tile.partial && k < size; ++k) {
          if (tiles_->Sees(row.sequence, run.first_head, query, tile.key + k)) {
            ++seen;
          } else {
            scores[at + k] = kNothing;
          }
        }
        if (!tile.partial) seen += size;
        at += size;
      }
      if (seen > 0) {
        cpu.softmax_span({scores, count, padded, shape_.softmax_scale,
                          p != nullptr ? nullptr : scores, p, out.m + r, out.l + r});
        continue;
      }
      out.m[r] = kNothing;
      out.l[r] = 0;
      if (p != nullptr) {
        std::fill_n(p, padded, uint16_t{0});
      } else {
        std::fill_n(scores, padded, 0.0F);
      }
    }
  }

  void Finish(const kernels::cpu::KernelTable& cpu, const sparse::TileRow& row,
              const State& state) const {
    const sparse::HeadRun& run = RunOf(row);
    const int32_t first = inputs_.query_starts[row.sequence] + row.first_query;
    for (int32_t r = 0; r < row.num_queries * run.num_heads; ++r) {
      const int64_t token = first + r / run.num_heads;
      const int32_t head = run.first_head + r % run.num_heads;
      float* const out = host::Row(args_.out, token) + head * args_.out.stride[1];
      const float l = state.l[r];
      if (l == 0) {
        std::fill_n(out, shape_.head_dim_v, 0.0F);
      } else {
        cpu.divide_row(state.o + int64_t{r} * shape_.head_dim_v, l, out, shape_.head_dim_v);
      }
      if (args_.lse != nullptr) {
        args_.lse[token * shape_.num_heads + head] = l == 0 ? kNothing : state.m[r] + std::log(l);
      }
    }
  }

  std::shared_ptr<const sparse::Plan> tiles_;
  GqaShape shape_;
  SparseArgs args_;
  StepInputs inputs_;
};

}  // namespace

Result<SparsePlan> MakePlan(const GqaShape& shape, const CacheFormat& format,
                            std::shared_ptr<const sparse::Plan> tiles, int num_threads) {
  if (tiles->shape.num_heads != shape.num_heads ||
      tiles->shape.num_kv_heads != shape.num_kv_heads) {
    return Err(Code::kInvalidArgument,
               "sparse attention of {} heads over {} kv heads: the tile lists are for {} over {}",
               shape.num_heads, shape.num_kv_heads, tiles->shape.num_heads,
               tiles->shape.num_kv_heads);
  }
  if (IsLatent(format)) {
    FATHOM_TRY(CheckFormat(format, PlaneKind::kC, 1, shape.head_dim_v));
    FATHOM_TRY(CheckFormat(format, PlaneKind::kKPe, 1, shape.head_dim - shape.head_dim_v));
    if (tiles->policy.learned_rows > 0) {
      return Err(Code::kUnsupported,
                 "sparse attention: {} learned rows over latents: expected none",
                 tiles->policy.learned_rows);
    }
  } else {
    FATHOM_TRY(CheckFormat(format, PlaneKind::kK, shape.num_kv_heads, shape.head_dim));
    FATHOM_TRY(CheckFormat(format, PlaneKind::kV, shape.num_kv_heads, shape.head_dim_v));
  }
  const Workspace workspace(shape, format, *tiles, num_threads, nullptr);
  return SparsePlan{std::move(tiles), workspace.bytes + Arena::kAlignment};
}

Status Run(const SparsePlan& plan, const GqaShape& shape, const SparseArgs& args,
           const StepInputs& inputs, Context& context) {
  host::CheckHeads(args.q, shape.num_heads, shape.head_dim, "sparse attention q");
  host::CheckHeads(args.out, shape.num_heads, shape.head_dim_v, "sparse attention out");
  if (plan.tiles->policy.learned_rows > 0 &&
      (args.learned_k == nullptr || args.learned_v == nullptr)) {
    return Err(Code::kInvalidArgument, "sparse attention: {} learned rows, but no keys or values",
               plan.tiles->policy.learned_rows);
  }
  const ArenaScope scope(context.arena);
  auto* memory = static_cast<std::byte*>(context.arena.Allocate(plan.workspace_bytes));
  context.device.Execute(context.stream, [runtime = host::Runtime(context), memory,
                                          call = SparseCall(plan.tiles, shape, args, inputs)] {
    call.Run(runtime, memory);
  });
  return {};
}

void MergePartials(const kernels::cpu::KernelTable& cpu, std::span<const Partial> parts,
                   int64_t rows, int32_t dim, float* out, float* lse) {
  for (int64_t row = 0; row < rows; ++row) {
    float m = kNothing;
    float l = 0;
    float* const o = out + row * dim;
    std::fill_n(o, dim, 0.0F);
    for (const Partial& part : parts) {
      if (part.lse[row] == kNothing) continue;
      // A normalised part is a state whose sum is 1 under the maximum lse.
      cpu.fold_span({&m, &l, o, part.lse[row], 1, part.out + row * dim, dim});
    }
    if (l != 0) cpu.divide_row(o, l, o, dim);
    lse[row] = l == 0 ? kNothing : m + std::log(l);
  }
}

}  // namespace fathom::ops::attention
