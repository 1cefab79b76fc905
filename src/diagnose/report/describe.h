#pragma once
// Parts of a report that its text, Markdown and HTML forms share, already in words.
#include <string>
#include <utility>
#include <vector>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/understand/address_map.h"

namespace fathom::diagnose {

std::string PhaseWord(Language language, Phase phase);
std::string SeverityWord(Language language, Severity severity);
std::string ClassWord(Language language, KernelClass kind);
std::string CauseWord(Language language, GapCause cause);

// The report in a line: findings by severity, the largest saving, how many rules could not decide.
std::string Headline(const Diagnosis& d, Language language);

// "128047 events, 3 dropped, Python stacks recorded: ...": one input in a line, without its path.
std::string SourceSummary(const Source& source, Language language);
// Its defects and its clock, one a line; the clock only where there is another to compare with.
std::vector<std::string> SourceNotes(const Diagnosis& d, const Source& source, Language language);

// Files of folders that were left out: those with an export command one a line, the others counted.
std::vector<std::string> SkippedLines(const Timeline& timeline, Language language);

// The GPUs that did something, and how many others an input lists.
std::vector<std::string> DeviceLines(const Diagnosis& d, Language language);

// "GPU busy 13.3 %, ...", or that no GPU rows are there.
std::string GpuShares(const PhaseSummary& summary, Language language);

// What the phase table leaves open, a line a phase: steps that were not counted, and layers that
// the kernels show.
std::vector<std::string> StepNotes(const Diagnosis& d, Language language);

// Phases by server logs, a line each, and that they are no single steps; nothing without any.
std::vector<std::string> ServerPhaseLines(const Diagnosis& d, Language language);

// Largest parts of a phase's median step: class or cause, and nanoseconds.
std::vector<std::pair<std::string, int64_t>> TypicalStep(const Diagnosis& d, Phase phase,
                                                         Language language);

// What was seen, and what it costs a launch where that is known.
std::string EvidenceLine(const Evidence& evidence, Language language);

// Rules that abstained for the same reason, together: reason, then their ids.
std::vector<std::pair<std::string, std::vector<std::string_view>>> AbstentionsByReason(
    const Findings& findings, Language language);

// A value of a memory-address map with its unit, and what the picture shows.
std::string AddressValueText(AddressValue kind, double value);
std::string AddressMapNote(const AddressHeatMap& map, Language language);

}  // namespace fathom::diagnose
