#pragma once
// The producer warp of a prefill block: takes work from the counter and loads it by TMA.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/prefill/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
class PrefillProducer {
  using Work = PrefillWork<Config::kLists>;

 public:
  __device__ __forceinline__ PrefillProducer(const PrefillParams& params, const PrefillMaps& maps,
                                             const PrefillShared<Config>& shared)
      : params_(params),
        maps_(maps),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        paged_(params.page_table != nullptr),
        box_tokens_(paged_ && params.page_tokens < Config::kKeys
                        ? static_cast<int>(params.page_tokens)
                        : Config::kKeys),
        boxes_(Config::kKeys / box_tokens_) {
    while (paged_ && 1 << page_shift_ < params.page_tokens) ++page_shift_;
  }

  // The whole warp. K of a visit goes before V of the visit before it, also across query tiles, as
  // the consumers take them. The next work is taken, and its queries asked for, early in a tile:
  // blocks reach the ends of their tiles together, and memory would have nothing to do before.
  __device__ __forceinline__ void Run() {
    num_tiles_ = Config::kLists ? *params_.num_lists : *params_.num_tiles;
    PipelinePosition<PrefillShared<Config>::kWorkSlots> slot;
    Announce(static_cast<int>(blockIdx.x));
    while (shared_.work[slot.Stage()].sequence >= 0) {
      const Work& work = shared_.work[slot.Stage()];  // not a copy: registers are short
      int claimed = 0;
      const int first = work.tiles.count - 1;
      if (first < 0) {
        LoadPendingV();
        if (lane_ == 0) claimed = atomicAdd(params_.next, 1);
        AnnounceClaimed(claimed);
      }
      for (int visit = first; visit >= 0; --visit) {
        Box box;
        if constexpr (Config::kLists) {
          const ListedTile listed = ListedAt(work, first, visit);
          box = BoxOf(work, listed.tile);
          Tell(listed);
        } else {
          box = BoxOf(work, work.TileAt(visit));
        }
        LoadK(box);
        LoadPendingV();
        pending_ = true;
        pending_box_ = box;
        if (Config::kQStages == 1 && visit == first) LoadQueries(work);
        if (visit == first && lane_ == 0) claimed = atomicAdd(params_.next, 1);
        if (visit == max(first - 1, 0)) AnnounceClaimed(claimed);
      }
      slot.Next();
    }
    LoadPendingV();
  }

 private:
  // Every item is followed by one fetch: the last of all leaves the counter as it was.
  __device__ __forceinline__ void AnnounceClaimed(int claimed) {
    if (lane_ == 0 && claimed == NumWorks() - 1) *params_.next = 0;
    Announce(__shfl_sync(~0u, claimed, 0) + static_cast<int>(gridDim.x));
  }
  __device__ __forceinline__ void Announce(int index) {
    Work work = {};
    work.sequence = -1;
    if (index < NumWorks()) work = Decode(index, num_tiles_);
    Publish(work);
    if (Config::kQStages > 1 && work.tiles.count > 0) LoadQueries(work);
  }

  __device__ __forceinline__ int NumWorks() const {
    return Config::kLists ? num_tiles_ : num_tiles_ * params_.num_heads;
  }

  __device__ __forceinline__ Work Decode(int index, int num_tiles) const {
    if constexpr (Config::kLists) {
      const PrefillList list = params_.lists[index];
      Work work;
      SetRows(work, list.sequence, list.row, list.head);
      work.tiles = {list.num_tiles, list.first_tile, list.last_tile, list.window, list.anchors};
      return work;
    } else {
      return DecodeDense(index, num_tiles);
    }
  }
  __device__ __forceinline__ Work DecodeDense(int index, int num_tiles) const {
    const int section = index / (num_tiles * params_.section_heads);
    const int first_head = section * params_.section_heads;
    const int heads = min(params_.section_heads, params_.num_heads - first_head);
    const int rest = index - num_tiles * first_head;
    const PrefillTile tile = params_.tiles[rest / heads];
    Work work;
    SetRows(work, tile.sequence, tile.row, first_head + rest % heads);
    work.tiles = PrefillTilesOf(params_, work.kv_tokens, work.position, work.queries, work.row,
                                Config::kRows);
    return work;
  }
  __device__ __forceinline__ void SetRows(Work& work, int sequence, int row, int head) const {
    work.sequence = sequence;
    work.row = row;
    work.head = head;
    work.kv_head = work.head / (params_.num_heads / params_.num_kv_heads);
    work.query_begin = params_.query_starts[sequence];
    work.queries = params_.query_starts[sequence + 1] - work.query_begin;
    work.kv_begin = paged_ ? 0 : params_.kv_starts[sequence];
    work.kv_tokens = params_.kv_lengths[sequence];
    work.position = PrefillFirstPosition(params_, sequence, work.queries);
  }

  // 32 at a time, one a lane.
  __device__ __forceinline__ ListedTile ListedAt(const Work& work, int first, int visit) {
    const int at = (first - visit) % 32;
    if (at == 0) listed_ = params_.listed[work.tiles.first_tile + max(visit - lane_, 0)];
    return {__shfl_sync(~0u, listed_.tile, at), __shfl_sync(~0u, listed_.mask, at)};
  }
  // Puts it beside the stage that its keys will be in.
  __device__ __forceinline__ void Tell(const ListedTile& listed) {
    if (lane_ == 0) {
      const int stage = k_.Stage();
      ptx::MbarrierWait(shared_.KEmpty(stage), k_.Phase() ^ 1);
      ptx::StoreShared(shared_.Listed(stage), make_uint2(static_cast<uint32_t>(listed.tile),
                                                         static_cast<uint32_t>(listed.mask)));
    }
  }

  __device__ __forceinline__ void Publish(const Work& work) {
    if (lane_ == 0) {
      ptx::MbarrierWait(shared_.WorkEmpty(published_.Stage()), published_.Phase() ^ 1);
      shared_.work[published_.Stage()] = work;
      ptx::MbarrierArrive(shared_.WorkFull(published_.Stage()));
    }
    __syncwarp();
    published_.Next();
  }

  // Where this lane's box of a key tile lies.
  struct Box {
    int32_t head;
    int32_t token;
    int32_t page;
  };
  __device__ __forceinline__ Box BoxOf(const Work& work, int key_tile) const {
    Box box;
    box.head = work.kv_head;
    const int token = key_tile * Config::kKeys + lane_ * box_tokens_;
    if (!paged_) {
      box.token = work.kv_begin + token;
      box.page = 0;
    } else {
      box.token = token & ((1 << page_shift_) - 1);
      // Past the sequence's end: a page that does not exist, which arrives as zeros.
      box.page =
          lane_ < boxes_ && token < work.kv_tokens
              ? params_
                    .page_table[work.sequence * params_.page_table_stride + (token >> page_shift_)]
              : static_cast<int32_t>(params_.num_pages);
    }
    return box;
  }

  // The last kPeBlocks blocks are those of k_pe.
  template <int kBlocks, int kPeBlocks>
  __device__ __forceinline__ void LoadTile(const CUtensorMap* map, uint32_t target, uint32_t full,
                                           uint32_t empty, uint32_t phase, const Box& box) {
    if (lane_ == 0) {
      ptx::MbarrierWait(empty, phase ^ 1);
      ptx::MbarrierExpectBytes(full, kBlocks * Config::kKeys * 128);
    }
    __syncwarp();
    if (lane_ < boxes_) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const bool pe = block >= kBlocks - kPeBlocks;
        ptx::TmaLoad4(target + block * (Config::kKeys * 128) + lane_ * box_tokens_ * 128,
                      pe ? &maps_.k_pe : map, full, (pe ? block - kBlocks + kPeBlocks : block) * 64,
                      box.token, pe && params_.k_pe.base != nullptr ? 0 : box.head, box.page,
                      ptx::kL2EvictLast);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void LoadQueries(const Work& work) {
    if (lane_ == 0) {
      const int stage = q_.Stage();
      ptx::MbarrierWait(shared_.QEmpty(stage), q_.Phase() ^ 1);
      ptx::MbarrierExpectBytes(shared_.QFull(stage), Config::kQBytes);
#pragma unroll
      for (int block = 0; block < Config::kQkBlocks; ++block) {
#pragma unroll
        for (int group = 0; group < Config::kGroups; ++group) {
          ptx::TmaLoad4(
              shared_.q + stage * Config::kQBytes + (block * Config::kRows + group * 64) * 128,
              &maps_.q, shared_.QFull(stage), block * 64, work.query_begin + work.row + group * 64,
              work.head, 0, ptx::kL2EvictFirst);
        }
      }
    }
    __syncwarp();
    q_.Next();
  }

  __device__ __forceinline__ void LoadK(const Box& box) {
    const int stage = k_.Stage();
    LoadTile<Config::kQkBlocks, Config::kPeBlocks>(&maps_.k, shared_.k + stage * Config::kKBytes,
                                                   shared_.KFull(stage), shared_.KEmpty(stage),
                                                   k_.Phase(), box);
    k_.Next();
  }
  // Of the visit whose K came last.
  __device__ __forceinline__ void LoadPendingV() {
    if (!pending_) return;
    const int stage = v_.Stage();
    LoadTile<Config::kVBlocks, 0>(&maps_.v, shared_.v + stage * Config::kVBytes,
                                  shared_.VFull(stage), shared_.VEmpty(stage), v_.Phase(),
                                  pending_box_);
    v_.Next();
    pending_ = false;
  }

  const PrefillParams& params_;
  const PrefillMaps& maps_;
  const PrefillShared<Config>& shared_;
  int lane_;
  bool paged_;
  int num_tiles_ = 0;
  int box_tokens_;
  int boxes_;
  int page_shift_ = 0;  // log2 of page_tokens, a power of two
  PipelinePosition<Config::kStages> k_;
  PipelinePosition<Config::kStages> v_;
  PipelinePosition<Config::kQStages> q_;
  PipelinePosition<PrefillShared<Config>::kWorkSlots> published_;
  ListedTile listed_;     // this lane's of 32
  bool pending_ = false;  // the V of a visit
  Box pending_box_;
};

}  // namespace fathom::kernels::cuda::sm90
