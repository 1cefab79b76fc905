#pragma once
// The producer warp of a prefill block: takes work from the counter and loads it by TMA.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/prefill/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
class PrefillProducer {
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
        boxes_(Config::kKeys / box_tokens_) {}

  // The whole warp.
  __device__ __forceinline__ void Run() {
    const int total = *params_.num_tiles * params_.num_heads;
    int index = static_cast<int>(blockIdx.x);
    while (index < total) {
      int next = 0;
      if (lane_ == 0) next = atomicAdd(params_.next, 1);
      const PrefillWork work = Decode(index, total / params_.num_heads);
      Publish(work);
      Load(work);
      // Every item is followed by one fetch: the last of all leaves the counter as it was.
      if (lane_ == 0 && next == total - 1) *params_.next = 0;
      index = __shfl_sync(~0u, next, 0) + static_cast<int>(gridDim.x);
    }
    PrefillWork end = {};
    end.sequence = -1;
    Publish(end);
  }

 private:
  __device__ __forceinline__ PrefillWork Decode(int index, int num_tiles) const {
    const int section = index / (num_tiles * params_.section_heads);
    const int first_head = section * params_.section_heads;
    const int heads = min(params_.section_heads, params_.num_heads - first_head);
    const int rest = index - num_tiles * first_head;
    const PrefillTile tile = params_.tiles[rest / heads];
    PrefillWork work;
    work.sequence = tile.sequence;
    work.row = tile.row;
    work.head = first_head + rest % heads;
    work.query_begin = params_.query_starts[tile.sequence];
    work.queries = params_.query_starts[tile.sequence + 1] - work.query_begin;
    work.kv_tokens = params_.kv_lengths[tile.sequence];
    work.tiles = PrefillTilesOf(params_, work.kv_tokens, work.queries, work.row, Config::kRows);
    return work;
  }

  __device__ __forceinline__ void Publish(const PrefillWork& work) {
    if (lane_ == 0) {
      ptx::MbarrierWait(shared_.WorkEmpty(published_.Stage()), published_.Phase() ^ 1);
      shared_.work[published_.Stage()] = work;
      ptx::MbarrierArrive(shared_.WorkFull(published_.Stage()));
    }
    __syncwarp();
    published_.Next();
  }

  // Page of this lane's box of a key tile, or -1 past the sequence's end.
  __device__ __forceinline__ int32_t PageOf(const PrefillWork& work, int key_tile) const {
    const int token = key_tile * Config::kKeys + lane_ * box_tokens_;
    if (!paged_ || lane_ >= boxes_ || key_tile < 0 || token >= work.kv_tokens) {
      return static_cast<int32_t>(params_.num_pages);
    }
    return params_.page_table[work.sequence * params_.page_table_stride +
                              token / static_cast<int>(params_.page_tokens)];
  }

  template <int kBlocks>
  __device__ __forceinline__ void LoadTile(const CUtensorMap* map, uint32_t target, uint32_t full,
                                           uint32_t empty, uint32_t phase, const PrefillWork& work,
                                           int key_tile, int32_t page) {
    const int kv_head = work.head / (params_.num_heads / params_.num_kv_heads);
    if (lane_ == 0) {
      ptx::MbarrierWait(empty, phase ^ 1);
      ptx::MbarrierExpectBytes(full, kBlocks * Config::kKeys * 128);
    }
    __syncwarp();
    if (lane_ < boxes_) {
      const int row = lane_ * box_tokens_;
      const int token =
          paged_ ? (key_tile * Config::kKeys + row) % static_cast<int>(params_.page_tokens)
                 : params_.kv_starts[work.sequence] + key_tile * Config::kKeys;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::TmaLoad4(target + block * (Config::kKeys * 128) + row * 128, map, full, block * 64,
                      token, kv_head, paged_ ? page : 0, ptx::kL2EvictLast);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void LoadQueries(const PrefillWork& work) {
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

  __device__ __forceinline__ void LoadK(const PrefillWork& work, int tile, int32_t page) {
    LoadTile<Config::kQkBlocks>(&maps_.k, shared_.k + k_.Stage() * Config::kKBytes,
                                shared_.KFull(k_.Stage()), shared_.KEmpty(k_.Stage()), k_.Phase(),
                                work, tile, page);
    k_.Next();
  }
  __device__ __forceinline__ void LoadV(const PrefillWork& work, int tile, int32_t page) {
    LoadTile<Config::kVBlocks>(&maps_.v, shared_.v + v_.Stage() * Config::kVBytes,
                               shared_.VFull(v_.Stage()), shared_.VEmpty(v_.Stage()), v_.Phase(),
                               work, tile, page);
    v_.Next();
  }

  // K of a tile goes before V of the tile before it, as the consumers take them.
  __device__ __forceinline__ void Load(const PrefillWork& work) {
    if (work.tiles.count == 0) return;
    int visit = work.tiles.count - 1;
    int tile = work.TileAt(visit);
    int32_t page = PageOf(work, tile);
    LoadK(work, tile, page);
    LoadQueries(work);
    for (; visit > 0; --visit) {
      const int next_tile = work.TileAt(visit - 1);
      const int32_t next_page = PageOf(work, next_tile);
      LoadK(work, next_tile, next_page);
      LoadV(work, tile, page);
      tile = next_tile;
      page = next_page;
    }
    LoadV(work, tile, page);
  }

  const PrefillParams& params_;
  const PrefillMaps& maps_;
  const PrefillShared<Config>& shared_;
  int lane_;
  bool paged_;
  int box_tokens_;
  int boxes_;
  PipelinePosition<Config::kStages> k_;
  PipelinePosition<Config::kStages> v_;
  PipelinePosition<Config::kQStages> q_;
  PipelinePosition<2> published_;
};

}  // namespace fathom::kernels::cuda::sm90
