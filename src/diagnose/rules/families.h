#pragma once
// The rules by family; docs/diagnose/<id>.md says what each looks for and why.
#include "diagnose/rules/rule.h"

namespace fathom::diagnose {

// copies.cc
void KvCopy(const RuleContext& context, Findings& findings);

// stalls.cc
void JitRecompile(const RuleContext& context, Findings& findings);
void LaunchGap(const RuleContext& context, Findings& findings);
void SyncCall(const RuleContext& context, Findings& findings);
void Allocator(const RuleContext& context, Findings& findings);

// attention.cc
void SoftmaxPass(const RuleContext& context, Findings& findings);
void AttentionRoofline(const RuleContext& context, Findings& findings);

// kernels_ncu.cc
void BankConflict(const RuleContext& context, Findings& findings);
void TensorCore(const RuleContext& context, Findings& findings);
void RegisterPressure(const RuleContext& context, Findings& findings);
void Uncoalesced(const RuleContext& context, Findings& findings);
// The part of head-imbalance that counters tell: attention kernels whose warps are gone early on
// some SMs. Returns whether pages of attention kernels had what it takes to judge.
bool UnevenProfiledKernels(const RuleContext& context, Findings& findings);

// launches.cc
void RopeRelaunch(const RuleContext& context, Findings& findings);
void RoutingLatency(const RuleContext& context, Findings& findings);
void GraphMiss(const RuleContext& context, Findings& findings);
void SwitchStall(const RuleContext& context, Findings& findings);
void HeadImbalance(const RuleContext& context, Findings& findings);

// machine.cc
void HostTransfer(const RuleContext& context, Findings& findings);
void ComputeBound(const RuleContext& context, Findings& findings);

// numa.cc
void Numa(const RuleContext& context, Findings& findings);

// overload.cc
void Overload(const RuleContext& context, Findings& findings);

// serving.cc
void PrefixCache(const RuleContext& context, Findings& findings);
void CacheVersion(const RuleContext& context, Findings& findings);
void MoeHotspot(const RuleContext& context, Findings& findings);
void TpCollective(const RuleContext& context, Findings& findings);
void RdmaJitter(const RuleContext& context, Findings& findings);

}  // namespace fathom::diagnose
