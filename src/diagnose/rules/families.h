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

}  // namespace fathom::diagnose
