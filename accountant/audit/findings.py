"""Findings of the pre-release audit, and the catalogue of the rules behind them.

A rule has a code that never changes its meaning, since policies, certificates and stored ledgers name it. A finding is
a rule that a release breaks, or may break, with what shows it: `checked` if an artifact, a ledger or a job was looked
at, `attested` if it rests on what the pipeline says, or leaves unsaid.

Evidence holds counts of files' parts, words of closed lists, and names that the ledger has anyway. It repeats no value,
label, text or name of a tensor: those may have been computed from data, and a finding is stored, shown and certified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from accountant.canonical import canonical
from accountant.errors import InvalidDocument, InvalidInput

Severity: TypeAlias = Literal["error", "warning", "note"]
Basis: TypeAlias = Literal["checked", "attested"]
Verdict: TypeAlias = Literal["deny", "allow"]

#: From the worst on.
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
_BASES: Final[tuple[Basis, ...]] = get_args(Basis)
_VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is looked for. `message` is a sentence in which the names in braces are evidence."""

    code: str
    title: str
    severity: Severity
    bases: tuple[Basis, ...]
    source: str
    message: str
    remedy: str

    def found(self, basis: Basis, **evidence: Any) -> Finding:
        """A finding of this rule."""
        assert basis in self.bases, f"{self.code} is never {basis}"
        message = self.message.format_map(evidence)
        return Finding(code=self.code, basis=basis, severity=self.severity, message=message, evidence=evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that a release breaks, or may break."""

    code: str
    basis: Basis
    severity: Severity
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    by: str | None = None  # the key of a client that opened the file, where it is the client's word

    def __post_init__(self) -> None:
        for name, value, known in (("basis", self.basis, _BASES), ("severity", self.severity, SEVERITIES)):
            if value not in known:
                raise InvalidInput(name, value, " or ".join(map(repr, known)))
        canonical(dict(self.evidence))  # whatever cannot be logged is refused here
        object.__setattr__(self, "evidence", MappingProxyType(dict(self.evidence)))

    def to_json(self) -> dict[str, Any]:
        """The finding with the words of its rule, for people and machines."""
        rule = RULES.get(self.code)
        return {
            "code": self.code,
            "basis": self.basis,
            "severity": self.severity,
            "title": self.code if rule is None else rule.title,
            "message": self.message,
            "remedy": "" if rule is None else rule.remedy,
            "source": "" if rule is None else rule.source,
            "evidence": dict(self.evidence),
        } | ({} if self.by is None else {"by": self.by})

    def to_record(self) -> dict[str, Any]:
        """The finding as a ledger keeps it: what was found, without words that can be had from its rule."""
        record: dict[str, Any] = {"code": self.code, "basis": self.basis, "severity": self.severity}
        return record | ({"evidence": dict(self.evidence)} if self.evidence else {})


def finding_from(document: Mapping[str, Any]) -> Finding:
    """The finding that `to_record` or `to_json` spells; of a rule that this version has not, the code is all words."""
    match document:
        case {"code": str(code), "basis": "checked" | "attested" as basis, "severity": str(severity)} if (
            severity in SEVERITIES
        ):
            evidence, by = document.get("evidence", {}), document.get("by")
        case _:
            raise InvalidDocument("finding", document, "an object with code, basis and severity")
    if not isinstance(evidence, Mapping):
        raise InvalidDocument("finding.evidence", evidence, "an object")
    if by is not None and not isinstance(by, str):
        raise InvalidDocument("finding.by", by, "a text")
    rule = RULES.get(code)
    try:
        message = f"Finding {code}." if rule is None else rule.message.format_map(evidence)
    except (KeyError, IndexError):  # evidence of another version
        assert rule is not None
        message = f"{rule.title}."
    return Finding(code=code, basis=basis, severity=severity, message=message, evidence=evidence, by=by)


#: What a policy says of findings unless it says otherwise: errors deny.
DEFAULT_VERDICTS: Final[Mapping[str, Verdict]] = MappingProxyType(
    {"error": "deny", "warning": "allow", "note": "allow"}
)


def verdicts_of(given: Mapping[str, str], *, path: str = "findings") -> dict[str, Verdict]:
    """Rules of a policy on findings: for severities and for single codes, each `deny` or `allow`."""
    found: dict[str, Verdict] = {}
    for name, verdict in given.items():
        if name not in SEVERITIES and name not in RULES:
            raise InvalidInput(f"{path}.{name}", verdict, "a severity or the code of a finding (docs/audits.md)")
        if verdict not in _VERDICTS:
            raise InvalidInput(f"{path}.{name}", verdict, " or ".join(map(repr, _VERDICTS)))
        found[name] = verdict
    return found


def is_denied(finding: Finding, verdicts: Mapping[str, str]) -> bool:
    """Whether a policy denies a release with this finding."""
    return verdict_on(finding.code, finding.severity, verdicts) == "deny"


def verdict_on(code: str, severity: str, verdicts: Mapping[str, str]) -> str:
    """What a policy says of a finding: by its code if the policy names it, else by its severity."""
    return verdicts.get(code, verdicts.get(severity, DEFAULT_VERDICTS[severity]))


def denying(findings: Iterable[Finding], verdicts: Mapping[str, str]) -> list[Finding]:
    """The findings for which a policy denies a release."""
    return [each for each in findings if is_denied(each, verdicts)]


_CHECKED: Final[tuple[Basis, ...]] = ("checked",)
_ATTESTED: Final[tuple[Basis, ...]] = ("attested",)
_EITHER: Final[tuple[Basis, ...]] = ("checked", "attested")

_LABEL_PAPER: Final = "Privacy Leakage via Output Label Space and Differentially Private Continual Learning"
_SGD_PAPER: Final = "Abadi et al. 2016, Deep Learning with Differential Privacy"
_PUBLIC_PAPER: Final = "Tramèr et al. 2022, Considerations for Differentially Private Learning with Public Pretraining"
_SAMPLING_PAPER: Final = "Chua et al. 2024, How Private are DP-SGD Implementations?"
_TUNING_PAPER: Final = "Papernot & Steinke 2022, Hyperparameter Tuning with Rényi Differential Privacy"
_BACKBONE_PAPER: Final = "Differentially Private Continual Learning using Pre-Trained Models"

#: Every rule, in the order in which findings are listed.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        rule.code: rule
        for rule in (
            # ------------------------------------------------ which labels exist
            Rule(
                code="label_space.from_data",
                title="The label space is taken from the data",
                severity="error",
                bases=_ATTESTED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The labels that the classifier knows are said to come from the data itself.",
                remedy=(
                    "Fix the labels before the data is read (source: prior), or release them first with the mechanism "
                    "label-release and name that release (source: released)."
                ),
            ),
            Rule(
                code="label_space.undeclared",
                title="Nobody says where the labels come from",
                severity="warning",
                bases=_ATTESTED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The release has outputs for labels, and does not say where its label space comes from.",
                remedy="Declare label_space with a source: prior (with its labels or their digest), released, or none.",
            ),
            Rule(
                code="label_space.unreleased",
                title="The label set that is named was not released",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The label space is said to be that of release {release}, which is {status}.",
                remedy="Commit the label release first, and name it.",
            ),
            Rule(
                code="label_space.unknown_release",
                title="The label set that is named is of no release of this population",
                severity="warning",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The label space is said to be released, by no release that the ledger of this population has.",
                remedy="Name the release of the labels, or declare a prior set that no data of this population formed.",
            ),
            Rule(
                code="label_space.mismatch",
                title="The labels are not those of the released or prior set",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Propositions 4.1 and 4.2",
                message="The label set in the {where} is not the one that the label space names.",
                remedy="Use exactly the labels that were fixed beforehand or released; drop or remap all others.",
            ),
            Rule(
                code="label_space.unchecked",
                title="There is no label set to compare the artifact with",
                severity="warning",
                bases=_ATTESTED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The label space is said to be {source}, and nothing at hand says which labels it has.",
                remedy=(
                    "Give the released or prior set (--labels), or declare its labels; of a digest alone only a list "
                    "of labels in the file can be compared."
                ),
            ),
            Rule(
                code="label_space.contradicted",
                title="The release is said to have no labels, and its artifact has",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The release says {said}, and the artifact has {parts}.",
                remedy="Say its kind (weights, prototypes or window_model), and where its label space comes from.",
            ),
            Rule(
                code="artifact.labels",
                title="The labels of the artifact are not those of the label space",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The labels that the artifact names are not the {labels} of its label space.",
                remedy="Write the labels of the label space into the artifact, all of them and no others.",
            ),
            Rule(
                code="artifact.head_width",
                title="The head has another width than the label space",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The head of the model does not have one output for each of the {labels} labels.",
                remedy=(
                    "Build the head with one output for each label of the label space, seen in the data or not; if "
                    "another layer answers, name it in artifact.head."
                ),
            ),
            Rule(
                code="artifact.head_missing",
                title="The head that is named is not in the artifact",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="The tensor that the {where} names as the head is not there, or has no rows to count.",
                remedy="Name the tensor with a row for each label, or none where its name is a usual one.",
            ),
            Rule(
                code="artifact.head_unknown",
                title="Which layer answers with labels cannot be told",
                severity="warning",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Proposition 4.1",
                message="Of the layers, {layers} may be the head: that it has {labels} outputs was not seen.",
                remedy="Name the tensor that answers in artifact.head.",
            ),
            Rule(
                code="empty_task.no_classifier",
                title="A task without data is answered differently",
                severity="error",
                bases=_EITHER,
                source=f"{_LABEL_PAPER}, Proposition B.6",
                message="Where a task has no data, {answer} is released: that tells that it has none.",
                remedy="Run the same noisy program on the empty set: same steps, same noise, same outputs.",
            ),
            Rule(
                code="empty_task.undeclared",
                title="Nobody says what a task without data is answered with",
                severity="note",
                bases=_ATTESTED,
                source=f"{_LABEL_PAPER}, Proposition B.6",
                message="It is not said what is released for a task without any record.",
                remedy="Declare empty_task with the answer same_program, if that is so.",
            ),
            # ------------------------------------------------ what is kept and what was looked at before
            Rule(
                code="state.raw",
                title="Raw data or other state that is not private is kept across tasks",
                severity="error",
                bases=_ATTESTED,
                source=f"{_BACKBONE_PAPER}; parallel composition reads one task alone",
                message="State is kept across tasks that is neither released nor charged.",
                remedy=(
                    "Keep what was released alone (retained: dp_only), or charge every use of a memory "
                    "(mechanism episodic-memory, retained: charged_memory)."
                ),
            ),
            Rule(
                code="state.uncharged",
                title="A memory is said to be charged, and this release charges for none",
                severity="warning",
                bases=_CHECKED,
                source=_BACKBONE_PAPER,
                message="Mechanism {mechanism} with these parameters has no charge on records of earlier tasks.",
                remedy="Use a mechanism that charges its memory (episodic-memory), or retain dp_only.",
            ),
            Rule(
                code="state.undeclared",
                title="Nobody says what is kept across tasks",
                severity="warning",
                bases=_ATTESTED,
                source=_BACKBONE_PAPER,
                message="It is not said which state is kept from one task to the next.",
                remedy="Declare state with retained: dp_only, none or charged_memory.",
            ),
            Rule(
                code="tuning.private",
                title="Hyper-parameters were tuned on private data, and nobody was charged",
                severity="error",
                bases=_ATTESTED,
                source=_TUNING_PAPER,
                message="Hyper-parameters are said to have been tuned on private data without a charge.",
                remedy="Tune on public data, or propose every trial as a release and name those (source: charged).",
            ),
            Rule(
                code="tuning.uncharged",
                title="A trial that is said to be charged is not in the ledger",
                severity="error",
                bases=_CHECKED,
                source=_TUNING_PAPER,
                message="Of the trials that are said to be charged, {missing} are no releases that are spent or held.",
                remedy="Name the releases under which the trials were charged.",
            ),
            Rule(
                code="tuning.undeclared",
                title="Nobody says how hyper-parameters were chosen",
                severity="warning",
                bases=_ATTESTED,
                source=_TUNING_PAPER,
                message="It is not said on which data hyper-parameters were tuned.",
                remedy="Declare tuning with source: public, none, or charged with the releases of all trials.",
            ),
            Rule(
                code="preprocessing.private",
                title="A constant of the mechanism was computed from private data",
                severity="error",
                bases=_ATTESTED,
                source=f"{_SGD_PAPER}, Algorithm 1: constants are inputs",
                message="Computed from private data without a charge: {constants}.",
                remedy="Fix these constants publicly, or release them with a charge of their own.",
            ),
            Rule(
                code="preprocessing.uncharged",
                title="A constant that is said to be charged is not in the ledger",
                severity="error",
                bases=_CHECKED,
                source=f"{_SGD_PAPER}, Algorithm 1: constants are inputs",
                message="Of the releases that constants are said to be charged in, {missing} are not spent or held.",
                remedy="Name the releases of these constants (preprocessing.releases), or charge for them in this one.",
            ),
            Rule(
                code="preprocessing.undeclared",
                title="Nobody says where constants of the mechanism come from",
                severity="note",
                bases=_ATTESTED,
                source=f"{_SGD_PAPER}, Algorithm 1",
                message="It is not said where these constants come from: {constants}.",
                remedy="Declare preprocessing, each of its constants as public, charged or unused.",
            ),
            Rule(
                code="pretraining.private",
                title="Pre-training used private data, and nobody was charged",
                severity="error",
                bases=_ATTESTED,
                source=_BACKBONE_PAPER,
                message="The model is said to start from one that was trained on private data without a charge.",
                remedy="Start from a model of public data, or from a release of this ledger (data: released).",
            ),
            Rule(
                code="pretraining.uncharged",
                title="The release that the model is said to start from was not released",
                severity="error",
                bases=_CHECKED,
                source=_BACKBONE_PAPER,
                message="Of the releases that the model is said to start from, {missing} are not spent or held.",
                remedy="Start from a release that was committed, and name it (pretraining.release).",
            ),
            Rule(
                code="pretraining.unknown_release",
                title="The model starts from no release of this population",
                severity="warning",
                bases=_CHECKED,
                source=_BACKBONE_PAPER,
                message="The model is said to start from a release that the ledger of this population has not.",
                remedy="Name a release of this ledger; of another population it is for its own ledger to show.",
            ),
            Rule(
                code="pretraining.undeclared",
                title="Pre-training data is not declared public",
                severity="warning",
                bases=_ATTESTED,
                source=_PUBLIC_PAPER,
                message="It is not said that the data of pre-training is public.",
                remedy="Declare pretraining with data: public and a name, none, or released with the release.",
            ),
            Rule(
                code="metrics.private",
                title="Metrics were computed on private data",
                severity="error",
                bases=_ATTESTED,
                source="Dwork & Roth 2014, Proposition 2.1: only functions of releases are free",
                message="Metrics are said to be computed on private data without a charge.",
                remedy="Evaluate on public data, or with the mechanism accuracy, which is charged.",
            ),
            Rule(
                code="metrics.uncharged",
                title="Metrics that are said to be charged are not in the ledger",
                severity="error",
                bases=_CHECKED,
                source="Dwork & Roth 2014, Proposition 2.1: only functions of releases are free",
                message="Of the releases that metrics are said to be charged in, {missing} are not spent or held.",
                remedy="Name the releases of mechanism accuracy (evaluation.releases), or charge for it in this one.",
            ),
            Rule(
                code="metrics.undeclared",
                title="Metrics go out, and nobody says on which data they were computed",
                severity="warning",
                bases=_CHECKED,
                source="Dwork & Roth 2014, Proposition 2.1",
                message="There are metrics in the {where}, and it is not said on which data they were computed.",
                remedy="Declare evaluation with data: public or charged, or leave the metrics out.",
            ),
            Rule(
                code="statement.unknown",
                title="A declaration says something that is not read",
                severity="warning",
                bases=_ATTESTED,
                source="docs/audits.md",
                message="The declaration {statement} is not understood, so it counts as not made.",
                remedy="Use the words of docs/audits.md.",
            ),
            Rule(
                code="statement.incomplete",
                title="A declaration does not say what stands behind it",
                severity="warning",
                bases=_ATTESTED,
                source="docs/audits.md",
                message="The declaration {statement} says {word}, and names neither a release nor a set.",
                remedy="Name the releases (releases, release), or the labels of a prior set or their digest.",
            ),
            # ------------------------------------------------ the mechanism and its price
            Rule(
                code="mechanism.proof_status",
                title="The policy does not accept mechanisms with this status of proof",
                severity="error",
                bases=_CHECKED,
                source="docs/mechanisms.md",
                message="Mechanism {mechanism} is {status}, and the policy accepts {accepts}.",
                remedy="Use the sound version of the mechanism, or have an officer accept this status in the policy.",
            ),
            Rule(
                code="mechanism.misspelt",
                title="The name of the mechanism is nearly one of the catalog",
                severity="error",
                bases=_CHECKED,
                source="docs/mechanisms.md",
                message="The mechanism that is named is not in the catalog, which has {nearest}: nothing was compared.",
                remedy="Write the name as the catalog has it; call a mechanism of your own by another name.",
            ),
            Rule(
                code="mechanism.unknown",
                title="The mechanism is not in the catalog",
                severity="warning",
                bases=_ATTESTED,
                source="docs/mechanisms.md",
                message="No mechanism of the catalog is named: that the charges cover what ran is the pipeline's word.",
                remedy="Name a mechanism of the catalog, if one of them is what ran.",
            ),
            Rule(
                code="charges.missing",
                title="Nothing is charged",
                severity="error",
                bases=_CHECKED,
                source="docs/accounting.md",
                message="There is neither a charge nor a mechanism of the catalog that has a price.",
                remedy="Name the mechanism of the catalog that ran, with its parameters, or list the charges.",
            ),
            Rule(
                code="charges.too_low",
                title="Less is charged than the mechanism costs",
                severity="error",
                bases=_CHECKED,
                source="docs/accounting.md; docs/mechanisms.md",
                message="The charges do not cover what the catalog asks for {mechanism} with these parameters.",
                remedy="Propose the mechanism by name and let the catalog price it.",
            ),
            Rule(
                code="sampling.not_poisson",
                title="Batches are not drawn as they are accounted",
                severity="error",
                bases=_ATTESTED,
                source=_SAMPLING_PAPER,
                message="Batches are said to be {scheme}, and charged as Poisson samples.",
                remedy="Draw every batch by independent coins (Poisson), or charge without amplification by sampling.",
            ),
            Rule(
                code="sampling.undeclared",
                title="Nobody says how batches are drawn",
                severity="warning",
                bases=_ATTESTED,
                source=_SAMPLING_PAPER,
                message="The charges count on Poisson sampling, and it is not said that batches are drawn so.",
                remedy="Declare sampling with scheme: poisson, if that is what runs.",
            ),
            Rule(
                code="noise.repeatable",
                title="The noise can be drawn again",
                severity="error",
                bases=_EITHER,
                source="docs/trainers.md",
                message="The noise came from a seed that is kept, so whoever has it can take the noise off.",
                remedy="Draw noise from the operating system's randomness, and keep no seed.",
            ),
            Rule(
                code="noise.repeated",
                title="A tensor is the same as in a release on which this one does not build",
                severity="error",
                bases=_CHECKED,
                source="Lifelong DP (L2DP-ML), Algorithm 1; docs/mechanisms.md: every draw of noise is for one release",
                message="Of the tensors, {tensors} are the same, to the last bit, as in {where}.",
                remedy=(
                    "Draw fresh noise for every release. If the earlier model was taken over on purpose, name it in "
                    "artifact.builds_on."
                ),
            ),
            Rule(
                code="noise.shared",
                title="Two noisy tensors are closer than independent noise lets them be",
                severity="error",
                bases=_CHECKED,
                source="docs/mechanisms.md, cosine classifier: one draw for every task and label",
                message="{pairs} pairs of noisy rows lie closer than independent noise of the declared scale allows "
                "(chance below {chance:g}).",
                remedy="Draw noise of its own for every label, task and release.",
            ),
            # ------------------------------------------------ the promise and the population
            Rule(
                code="population.adjacency",
                title="The adjacency is not the population's",
                severity="error",
                bases=_CHECKED,
                source="docs/accounting.md: what one record moves depends on the adjacency",
                message="The release counts on {declared}, and the {where} on {known}.",
                remedy="Calibrate for the adjacency of the population.",
            ),
            Rule(
                code="population.unit",
                title="The unit is not the population's",
                severity="error",
                bases=_CHECKED,
                source="docs/accounting.md",
                message="The release protects one {declared}, and the population promises it to one {known}.",
                remedy="Bound what one unit of the population contributes, and calibrate for that.",
            ),
            Rule(
                code="population.delta",
                title="δ is not below 1 / population",
                severity="warning",
                bases=_CHECKED,
                source="Dwork & Roth 2014, section 2.3",
                message="δ = {delta:g} is not below one over the number of datapoints: somebody could be published.",
                remedy="Promise a δ well below one over the number of datapoints.",
            ),
            Rule(
                code="tasks.overlap",
                title="Tasks overlap that are said to be disjoint",
                severity="error",
                bases=_CHECKED,
                source=f"{_LABEL_PAPER}, Theorem 3.5; McSherry 2009, Theorem 4",
                message="Parallel composition is claimed, and {tasks} tasks share datapoints with this one.",
                remedy="Charge every task that a datapoint is in: that is what the ledger does. Drop the claim.",
            ),
            Rule(
                code="tasks.unknown",
                title="The task that is named is not in the ledger",
                severity="error",
                bases=_CHECKED,
                source="docs/ledger.md",
                message="The ledger of this population has no task of that name: who is in it cannot be told.",
                remedy="Write the name as the ledger has it, or audit with a newer export.",
            ),
            Rule(
                code="tasks.unchecked",
                title="Tasks are said to be disjoint, and nobody looked",
                severity="warning",
                bases=_ATTESTED,
                source=f"{_LABEL_PAPER}, Theorem 3.5; McSherry 2009, Theorem 4",
                message="Parallel composition is claimed, and {why}.",
                remedy="Name the task, and audit against the service or with an export of the ledger.",
            ),
            # ------------------------------------------------ the file
            Rule(
                code="artifact.unopened",
                title="The artifact was not opened",
                severity="note",
                bases=_ATTESTED,
                source="docs/audits.md",
                message="No artifact was at hand: what is in it is the pipeline's word.",
                remedy="Run stint audit where the file is.",
            ),
            Rule(
                code="artifact.pickle",
                title="The artifact is a pickle",
                severity="error",
                bases=_CHECKED,
                source="docs/audits.md: to load a pickle is to run it",
                message="The artifact is {form}, which may run code and hold anything; it was not loaded.",
                remedy="Write it as safetensors.",
            ),
            Rule(
                code="artifact.format",
                title="The artifact is no safetensors file",
                severity="error",
                bases=_CHECKED,
                source="docs/audits.md",
                message="The artifact is {form}, and cannot be inspected.",
                remedy="Write it as safetensors.",
            ),
            Rule(
                code="artifact.unreadable",
                title="The artifact cannot be read",
                severity="error",
                bases=_CHECKED,
                source="docs/audits.md",
                message="The artifact looks like safetensors, and was not read: {problem}.",
                remedy="Write it again with a current safetensors library, in plain types, and compare digests.",
            ),
            Rule(
                code="artifact.digest",
                title="The artifact has another digest",
                severity="error",
                bases=_CHECKED,
                source="docs/ledger.md",
                message="The file has the digest {found}, and {where} says {expected}.",
                remedy="Audit and release the very file whose digest was declared.",
            ),
            Rule(
                code="artifact.batch_norm",
                title="The artifact has running statistics of normalisation layers",
                severity="error",
                bases=_CHECKED,
                source=f"{_SGD_PAPER}; Yousefpour et al. 2021, Opacus: batch normalisation is not private",
                message="{tensors} tensors are running statistics of normalisation layers: {words}.",
                remedy="Use LayerNorm or GroupNorm; or have frozen layers compared with the public file (--public).",
            ),
            Rule(
                code="artifact.optimizer_state",
                title="The artifact has optimizer state",
                severity="error",
                bases=_CHECKED,
                source="docs/audits.md: state that was not accounted for as released",
                message="{tensors} tensors are optimizer state: {words}.",
                remedy="Release the weights alone.",
            ),
            Rule(
                code="artifact.example_counts",
                title="The artifact counts examples",
                severity="error",
                bases=_CHECKED,
                source="docs/mechanisms.md, DP-SGD: sizes are private under add_remove",
                message="{parts} tensors or entries count examples: {words}.",
                remedy="Leave counts out, or release them with noise and a charge.",
            ),
            Rule(
                code="artifact.training_data",
                title="The artifact holds training data",
                severity="error",
                bases=_CHECKED,
                source="Lopez-Paz & Ranzato 2017, episodic memories; docs/mechanisms.md, episodic memory",
                message="{tensors} tensors hold training rows, as {words}.",
                remedy="Keep memories on the trusted side, and charge their use.",
            ),
            Rule(
                code="artifact.rows_like_data",
                title="A tensor has as many rows as there are datapoints",
                severity="warning",
                bases=_CHECKED,
                source="docs/audits.md",
                message="{tensors} tensors have one row for each datapoint of the {where}.",
                remedy="Release nothing that has a row for each datapoint; a policy may allow a coincidence.",
            ),
            Rule(
                code="artifact.not_finite",
                title="The artifact has numbers that are not finite",
                severity="error",
                bases=_CHECKED,
                source="docs/trainers.md: a gradient that is not finite is not clipped",
                message="{tensors} tensors have NaN or infinite numbers, which no clipping bounds.",
                remedy="Count datapoints with gradients that are not finite as null, and train again.",
            ),
            Rule(
                code="artifact.metadata",
                title="The artifact has metadata that nobody reads",
                severity="warning",
                bases=_CHECKED,
                source="docs/audits.md",
                message="{keys} entries of its metadata are not known, and may hold anything.",
                remedy="Write no metadata beside stint, releasable and format.",
            ),
            Rule(
                code="artifact.declared_public",
                title="Tensors are declared public, and were not compared with anything",
                severity="warning",
                bases=_ATTESTED,
                source="docs/audits.md",
                message="{tensors} tensors are public by the pipeline's word.",
                remedy="Have them compared with the public file (--public), or leave frozen layers out.",
            ),
        )
    }
)
