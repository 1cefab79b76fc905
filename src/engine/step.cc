#include "engine/step.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::engine {
namespace {

constexpr size_t kAlignment = 16;

template <class T>
size_t Place(size_t& end, size_t count) {
  const size_t begin = end;
  end += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

size_t MaskWords(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 63) / 64; }

}  // namespace

SamplingNeeds& SamplingNeeds::operator+=(const SamplingNeeds& other) {
  occurrences += other.occurrences;
  biases += other.biases;
  mask_rows += other.mask_rows;
  return *this;
}

SamplingNeeds& SamplingNeeds::operator-=(const SamplingNeeds& other) {
  occurrences -= other.occurrences;
  biases -= other.biases;
  mask_rows -= other.mask_rows;
  return *this;
}

StepBuffers::Layout StepBuffers::LayoutFor(int32_t tokens, int32_t sequences, int32_t logits,
                                           size_t table_entries, const SamplingNeeds& needs,
                                           int32_t vocab_size) {
  const auto t = static_cast<size_t>(tokens);
  const auto s = static_cast<size_t>(sequences);
  const auto l = static_cast<size_t>(logits);
  size_t end = 0;
  Layout layout;
  layout.live_counts = Place<int32_t>(end, 3);
  layout.token_ids = Place<int32_t>(end, t);
  layout.positions = Place<int32_t>(end, t);
  layout.query_starts = Place<int32_t>(end, s + 1);
  layout.kv_lengths = Place<int32_t>(end, s);
  layout.roles = Place<ops::Role>(end, s);
  layout.rope_rows = Place<int32_t>(end, s);
  layout.logits_tokens = Place<int32_t>(end, l);
  layout.rows = Place<ops::sample::Row>(end, l);
  layout.page_table = Place<int32_t>(end, table_entries);
  layout.occurrences = Place<ops::sample::Occurrence>(end, needs.occurrences);
  layout.biases = Place<ops::sample::Bias>(end, needs.biases);
  layout.masks = Place<uint64_t>(end, needs.mask_rows * MaskWords(vocab_size));
  layout.end = end;
  return layout;
}

StepBuffers::Layout StepBuffers::LargestLayout(const StepLimits& limits,
                                               const SamplingNeeds& needs) {
  const size_t table = static_cast<size_t>(limits.max_sequences) *
                       static_cast<size_t>(limits.max_pages_per_sequence);
  return LayoutFor(limits.max_tokens, limits.max_sequences, limits.max_sequences, table, needs,
                   limits.vocab_size);
}

size_t StepBuffers::DeviceBytes(const StepLimits& limits) {
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  return 2 * (LargestLayout(limits, {}).end + sequences * sizeof(ops::sample::Choice)) +
         sequences * sizeof(int32_t);
}

Result<StepBuffers> StepBuffers::Make(ops::Device& device, const StepLimits& limits) {
  FATHOM_CHECK(limits.num_groups >= 1 && limits.num_groups <= ops::kMaxLayerGroups);
  StepBuffers buffers;
  buffers.device_ = &device;
  buffers.limits_ = limits;
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  FATHOM_ASSIGN_OR_RETURN(buffers.sampled_,
                          ops::DeviceBuffer::Make(device, sequences * sizeof(int32_t)));
  for (ops::DeviceBuffer& choices : buffers.choices_) {
    FATHOM_ASSIGN_OR_RETURN(
        choices, ops::DeviceBuffer::Make(device, sequences * sizeof(ops::sample::Choice)));
  }
  FATHOM_TRY(buffers.Reserve({}));
  return buffers;
}

bool StepBuffers::WouldGrow(const SamplingNeeds& needs) const {
  return needs.occurrences > reserved_.occurrences || needs.biases > reserved_.biases ||
         needs.mask_rows > reserved_.mask_rows;
}

Status StepBuffers::Reserve(const SamplingNeeds& needs) {
  if (!host_.empty() && !WouldGrow(needs)) return {};
  // Twice what is needed now, so that a busy server stops growing soon.
  const auto grown = [](size_t have, size_t need) { return need > have ? 2 * need : have; };
  const SamplingNeeds larger{.occurrences = grown(reserved_.occurrences, needs.occurrences),
                             .biases = grown(reserved_.biases, needs.biases),
                             .mask_rows = std::min(grown(reserved_.mask_rows, needs.mask_rows),
                                                   static_cast<size_t>(limits_.max_sequences))};
  const size_t bytes = LargestLayout(limits_, larger).end;
  std::array<ops::DeviceBuffer, 2> buffers;
  for (ops::DeviceBuffer& buffer : buffers) {
    FATHOM_ASSIGN_OR_RETURN(buffer, ops::DeviceBuffer::Make(*device_, bytes));
  }
  buffers_ = std::move(buffers);
  host_.resize(bytes);
  reserved_ = larger;
  return {};
}

StepBuffers::Step StepBuffers::Build(const Batch& batch, ops::StreamId stream) {
  const auto sequences = static_cast<int32_t>(batch.entries.size());
  ops::StepBucket bucket{.num_tokens = batch.num_tokens, .num_sequences = sequences};
  SamplingNeeds needs;
  size_t stride = 1;
  for (const BatchEntry& entry : batch.entries) {
    FATHOM_CHECK(entry.num_draft == 0, "draft tokens have no inputs");
    bucket.max_query_tokens = std::max(bucket.max_query_tokens, entry.count);
    bucket.max_kv_tokens = std::max(bucket.max_kv_tokens, entry.first_position + entry.count);
    stride = std::max(stride, entry.sequence->pages.size());
    if (!entry.needs_logits) continue;
    ++bucket.num_logits;
    const Sampler& sampler = entry.sequence->sampler;
    needs += {.occurrences = sampler.occurrences().size(),
              .biases = sampler.biases().size(),
              .mask_rows = sampler.constraint() != nullptr ? 1U : 0U};
  }
  FATHOM_CHECK(!WouldGrow(needs), "a sequence was admitted without room for its sampling");
  const size_t table_entries = stride * static_cast<size_t>(sequences);
  const Layout at = LayoutFor(bucket.num_tokens, sequences, bucket.num_logits, table_entries, needs,
                              limits_.vocab_size);
  FATHOM_CHECK(at.end <= host_.size(), "a step of {} bytes exceeds its buffer of {}", at.end,
               host_.size());

  auto* token_ids = Host<int32_t>(at.token_ids);
  auto* positions = Host<int32_t>(at.positions);
  auto* query_starts = Host<int32_t>(at.query_starts);
  auto* logits_tokens = Host<int32_t>(at.logits_tokens);
  auto* rows = Host<ops::sample::Row>(at.rows);
  auto* occurrences = Host<ops::sample::Occurrence>(at.occurrences);
  auto* biases = Host<ops::sample::Bias>(at.biases);
  const size_t mask_words = MaskWords(limits_.vocab_size);
  int32_t token = 0;
  int32_t logits_row = 0;
  SamplingNeeds filled;
  for (int32_t i = 0; i < sequences; ++i) {
    const BatchEntry& entry = batch.entries[i];
    const Sequence& sequence = *entry.sequence;
    const auto known = static_cast<int32_t>(sequence.tokens.size());
    query_starts[i] = token;
    for (int32_t p = entry.first_position; p < entry.first_position + entry.count; ++p, ++token) {
      token_ids[token] = p < known ? sequence.tokens[p] : -(sequence.slot + 1);
      positions[token] = p;
    }
    Host<int32_t>(at.kv_lengths)[i] = entry.first_position + entry.count;
    Host<ops::Role>(at.roles)[i] = entry.role;
    Host<int32_t>(at.rope_rows)[i] = sequence.rope_row;
    std::ranges::copy(sequence.pages,
                      Host<int32_t>(at.page_table) + stride * static_cast<size_t>(i));
    if (!entry.needs_logits) continue;

    logits_tokens[logits_row] = token - 1;
    const Sampler& sampler = sequence.sampler;
    const int32_t index = entry.first_position + entry.count - sequence.num_prompt;
    ops::sample::Row& row = rows[logits_row++];
    row = sampler.RowFor(static_cast<uint64_t>(index));
    row.slot = sequence.slot;
    row.occurrences_begin = static_cast<int32_t>(filled.occurrences);
    row.biases_begin = static_cast<int32_t>(filled.biases);
    std::ranges::copy(sampler.occurrences(), occurrences + filled.occurrences);
    std::ranges::copy(sampler.biases(), biases + filled.biases);
    filled.occurrences += sampler.occurrences().size();
    filled.biases += sampler.biases().size();
    row.occurrences_end = static_cast<int32_t>(filled.occurrences);
    row.biases_end = static_cast<int32_t>(filled.biases);
    if (sampler.constraint() != nullptr) {
      row.mask_row = static_cast<int32_t>(filled.mask_rows);
      const std::span<uint64_t> mask(Host<uint64_t>(at.masks) + mask_words * filled.mask_rows,
                                     mask_words);
      std::ranges::fill(mask, 0);
      sampler.constraint()->Mask(mask);
      ++filled.mask_rows;
    }
  }
  query_starts[sequences] = token;
  auto* live = Host<int32_t>(at.live_counts);
  live[0] = token;
  live[1] = sequences;
  live[2] = logits_row;

  next_ ^= 1;
  auto* base = static_cast<std::byte*>(buffers_[next_].data());
  device_->CopyIn(stream, base, host_.data(), at.end);
  const auto on_device = [base](size_t offset) { return static_cast<const void*>(base + offset); };
  Step step;
  step.inputs.bucket = bucket;
  step.inputs.live_counts = static_cast<const int32_t*>(on_device(at.live_counts));
  step.inputs.token_ids = static_cast<const int32_t*>(on_device(at.token_ids));
  step.inputs.positions = static_cast<const int32_t*>(on_device(at.positions));
  step.inputs.query_starts = static_cast<const int32_t*>(on_device(at.query_starts));
  step.inputs.kv_lengths = static_cast<const int32_t*>(on_device(at.kv_lengths));
  step.inputs.roles = static_cast<const ops::Role*>(on_device(at.roles));
  step.inputs.rope_rows = static_cast<const int32_t*>(on_device(at.rope_rows));
  step.inputs.logits_tokens = static_cast<const int32_t*>(on_device(at.logits_tokens));
  step.inputs.sampled = static_cast<const int32_t*>(sampled_.data());
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    step.inputs.page_tables[group] = static_cast<const int32_t*>(on_device(at.page_table));
    step.inputs.page_table_stride[group] = static_cast<int32_t>(stride);
  }
  step.sampling.rows = static_cast<const ops::sample::Row*>(on_device(at.rows));
  step.sampling.occurrences =
      static_cast<const ops::sample::Occurrence*>(on_device(at.occurrences));
  step.sampling.biases = static_cast<const ops::sample::Bias*>(on_device(at.biases));
  step.sampling.masks = static_cast<const uint64_t*>(on_device(at.masks));
  step.sampling.num_rows = step.inputs.live_counts + 2;
  step.sampling.sampled = static_cast<int32_t*>(sampled_.data());
  step.sampling.choices = static_cast<ops::sample::Choice*>(choices_[next_].data());
  return step;
}

void StepBuffers::CopyChoices(const Step& step, std::span<ops::sample::Choice> host,
                              ops::StreamId stream) {
  const auto count = static_cast<size_t>(step.inputs.bucket.num_logits);
  FATHOM_CHECK(host.size() >= count);
  if (count == 0) return;
  device_->CopyOut(stream, host.data(), step.sampling.choices, count * sizeof(host[0]));
}

}  // namespace fathom::engine
