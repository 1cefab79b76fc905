#include "diagnose/report/colours.h"

namespace fathom::diagnose {

std::string_view ColourOf(KernelClass kind) {
  switch (kind) {
    case KernelClass::kGemm:
      return "#4e79a7";
    case KernelClass::kAttention:
      return "#d1495b";
    case KernelClass::kRope:
      return "#b07aa1";
    case KernelClass::kNorm:
      return "#5fa8a3";
    case KernelClass::kSoftmax:
      return "#e88a9a";
    case KernelClass::kCopy:
      return "#f28e2b";
    case KernelClass::kCat:
      return "#d9a514";
    case KernelClass::kCacheWrite:
      return "#8d99ae";
    case KernelClass::kGate:
      return "#9c755f";
    case KernelClass::kExpert:
      return "#59a14f";
    case KernelClass::kCollective:
      return "#c65b93";
    case KernelClass::kSampling:
      return "#6cb5ad";
    case KernelClass::kEmbedding:
      return "#7fbf6e";
    case KernelClass::kQuantise:
      return "#3d8a88";
    case KernelClass::kActivation:
      return "#84b6dd";
    case KernelClass::kElementwise:
      return "#a58c2f";
    case KernelClass::kReduction:
      return "#b98fb0";
    case KernelClass::kMemcpyDevice:
      return "#f2713c";
    case KernelClass::kMemcpyHost:
      return "#e0523a";
    case KernelClass::kMemset:
      return "#a9b0ba";
    case KernelClass::kGraph:
      return "#6b7bd6";
    case KernelClass::kUnclassified:
      return "#8a8f98";
  }
  return "#8a8f98";
}

std::string_view ColourOf(GapCause cause) {
  switch (cause) {
    case GapCause::kLaunchBound:
      return "#e2a29b";
    case GapCause::kSyncCall:
      return "#e6bf87";
    case GapCause::kAllocator:
      return "#cdb4db";
    case GapCause::kPlanBuilding:
      return "#f4a9c0";
    case GapCause::kModuleLoad:
      return "#d8c3a5";
    case GapCause::kPreempted:
      return "#bfc9a8";
    case GapCause::kProfiler:
      return "#c9ced6";
    case GapCause::kGraphMiss:
      return "#c9a0dc";
    case GapCause::kQueued:
      return "#b7d3de";
    case GapCause::kUnknown:
      return "#d5d5d5";
  }
  return "#d5d5d5";
}

std::string_view ColourOf(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return "#7b6fc4";
    case Phase::kDecode:
      return "#3a8f6b";
    case Phase::kMixed:
      return "#c08a2e";
    case Phase::kUnknown:
      return "#8a8f98";
  }
  return "#8a8f98";
}

}  // namespace fathom::diagnose
