"""What requests and answers look like. Unknown fields are refused: a misspelt limit must not be no limit."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from accountant.audit.series import LEAST_SAMPLES, MAX_SAMPLES
from service.settings import MAX_HOLD_SECONDS

#: Control characters; and those of them that no text of several lines has either.
CONTROLS: Final = r"\x00-\x1f\x7f-\x9f"
_ODD_CONTROLS: Final = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"


def control_in(text: str, among: str = _ODD_CONTROLS) -> str | None:
    r"""What is to be said of a control character in words that a ledger would keep for ever, if there is one.

    >>> control_in("an audit\nis under way"), control_in("a\0b")
    (None, 'there is a control character in it (U+0000, at place 2): leave it out')
    """
    found = re.search(f"[{among}]", text)
    if found is None:
        return None
    return f"there is a control character in it (U+{ord(found[0]):04X}, at place {found.end():,}): leave it out"


def _without(among: str) -> AfterValidator:
    """Refuses them, in words; of the document of the API they are a pattern."""

    def checked(text: str) -> str:
        if (problem := control_in(text, among)) is not None:
            raise PydanticCustomError("string_pattern_mismatch", "{problem}", {"problem": problem})
        return text

    return AfterValidator(checked)


def _pattern(among: str) -> dict[str, Any]:
    return {"pattern": f"^[^{among}]*$"}


#: What something is to be called. What there is already may have been called so before control characters were refused.
Name = Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=_pattern(CONTROLS)), _without(CONTROLS)]
Called = Annotated[str, Field(min_length=1, max_length=200)]
Address = Annotated[str, Field(max_length=2000, json_schema_extra=_pattern(CONTROLS)), _without(CONTROLS)]
#: Why something is done, which a ledger keeps.
Reason = Annotated[
    str, Field(min_length=1, max_length=200, json_schema_extra=_pattern(_ODD_CONTROLS)), _without(_ODD_CONTROLS)
]
LongReason = Annotated[
    str, Field(min_length=1, max_length=2000, json_schema_extra=_pattern(_ODD_CONTROLS)), _without(_ODD_CONTROLS)
]
PopulationName = Annotated[
    str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", examples=["clinic-a"])
]
Epsilon = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**32, strict=True)]
ProofStatus = Literal["proved", "claimed", "refuted"]
OnExhausted = Literal["deny", "trim"]
#: Of whom a job may ask, and so for whom a worker may wait: other names would never meet.
QUEUE, DEVICE = r"^[a-z0-9][a-z0-9_-]{0,23}$", r"^(cpu|cuda(:[0-9]{1,2})?)$"
Queue = Annotated[str, Field(pattern=QUEUE)]
AuditId = Annotated[str, Field(pattern=r"^aud_[0-9A-Z]{26}$", examples=["aud_01J00000000000000000000000"])]
Verdicts = Annotated[
    dict[Annotated[str, Field(max_length=100)], Literal["deny", "allow"]],
    Field(
        max_length=200,
        description="which findings deny a release: by severity (error, warning, note) or by code (docs/audits.md)",
        examples=[{"pretraining.undeclared": "deny"}],
    ),
]
MAX_REPORTED = 200  # findings of a client, in one audit
Evidence = (
    Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)]
    | Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
    | Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
)
Role = Literal["pipeline", "officer", "auditor", "worker", "admin"]
Scope = Annotated[
    dict[str, Any],
    Field(
        description=(
            'Whom it touches: {"task": …, "part": …}, {"ranges": [[start, stop], …]} (half-open ordinals), '
            '{"keys": […]}, {"bitmap": "base64 roaring"} or {"union": […]}.'
        ),
        examples=[{"task": "2026-w46"}],
    ),
]


def shown(*examples: dict[str, Any]) -> ConfigDict:
    """No fields but those that are named, and examples for readers."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [*examples]})


class Closed(BaseModel):
    """No fields but those that are named."""

    model_config = ConfigDict(extra="forbid")


class Budget(Closed):
    """A promise for life; `preset` fixes the orders of its filter, `delta_parts` the share for approximate parts."""

    model_config = shown({"epsilon": 3.0, "delta": 1e-6})

    epsilon: Epsilon
    delta: Delta
    preset: Literal["mixed", "gaussian", "pure"] = "mixed"
    delta_parts: Delta | None = None


class DataRule(Closed):
    """Whose the rows of a file are, or of all files below a folder, whose address ends in a slash."""

    uri: Annotated[str, Field(min_length=1, max_length=4096)]
    address: Literal["row", "ordinal", "key"]
    first: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = Field(default=0, description="of rows by place")
    unit: Annotated[str, Field(max_length=4096)] = Field(default="", description="the column of ordinals or keys")
    rows_per_unit: Annotated[int, Field(ge=1, le=10_000, strict=True)] = Field(default=1, description="at most")


DataRules = Annotated[
    list[DataRule],
    Field(max_length=100, description="whose the rows of files are; if there are any, jobs read no other files"),
]


class NewPopulation(Closed):
    """The datapoints under one promise."""

    model_config = shown({"name": "clinic-a", "unit": "user", "budget": {"epsilon": 3.0, "delta": 1e-6}})

    name: PopulationName
    unit: Literal["record", "user"]
    adjacency: Literal["add_remove", "replace_one"] = "add_remove"
    budget: Budget
    on_exhausted: OnExhausted = "deny"
    accepts: list[ProofStatus] = Field(default=["proved"], min_length=1, max_length=3)
    named_scopes: bool = Field(default=False, description="whether pipelines may name single datapoints")
    findings: Verdicts = Field(default_factory=dict)
    data: DataRules = Field(default_factory=list)


class PolicyChange(Closed):
    """A new version of a policy: it may lower ε or δ and change rules, never raise them."""

    model_config = shown({"reason": "the ethics board asked for less", "epsilon": 2.0})

    reason: Reason
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    on_exhausted: OnExhausted | None = None
    accepts: list[ProofStatus] | None = Field(default=None, min_length=1, max_length=3)
    named_scopes: bool | None = None
    findings: Verdicts | None = None
    data: DataRules | None = None
    lift: list[AuditId] = Field(
        default_factory=list,
        max_length=100,
        description="audits whose violation shall block their mechanism no more; the reason says why",
    )


class StatusChange(Closed):
    """Freeze, open again, or close for good."""

    model_config = shown({"status": "frozen", "reason": "an audit is under way"})

    status: Literal["open", "frozen", "closed"]
    reason: Reason


class NewDatapoints(Closed):
    """So many datapoints without keys, or a few with keys; many with keys are streamed as NDJSON or CSV."""

    model_config = shown({"count": 100000})

    count: Count | None = None
    keys: list[Annotated[str, Field(min_length=1, max_length=1000)]] | None = Field(default=None, max_length=100_000)


class Key(Closed):
    """A datapoint's key. It travels in bodies only, never in an address that somebody logs."""

    model_config = shown({"key": "patient-0017"})

    key: Annotated[str, Field(min_length=1, max_length=1000)]


class NewTask(Closed):
    """A named subset of a population, with named parts, and a budget of its own if it has one."""

    model_config = shown(
        {"name": "2026-w46", "members": {"ranges": [[0, 5000]]}, "parts": {"memory": {"ranges": [[0, 500]]}}}
    )

    name: Name
    members: dict[str, Any] = Field(description='A scope, or {"next": n}: the n arrivals after those of all tasks.')
    parts: dict[Name, Scope] = Field(default_factory=dict)
    budget: Budget | None = None


class MechanismChoice(Closed):
    """A mechanism of the catalog with its parameters."""

    name: Called
    parameters: dict[str, Any] = Field(default_factory=dict)


class ProposedCharge(Closed):
    """An event on a scope."""

    scope: Scope
    event: dict[str, Any] = Field(examples=[{"kind": "gaussian", "noise_multiplier": 4.0}])


class NewRelease(Closed):
    """A proposal: explicit charges, or a mechanism on a task or scope."""

    model_config = shown(
        {
            "population": "clinic-a",
            "kind": "weights",
            "task": "2026-w46",
            "mechanism": {
                "name": "dp-sgd",
                "parameters": {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0},
            },
        }
    )

    population: PopulationName
    kind: Literal["weights", "labels", "prototypes", "window_model", "other"] | None = Field(
        default=None, description="what is released; unless said, what the mechanism makes, or weights"
    )
    charges: list[ProposedCharge] = Field(default_factory=list, max_length=100)
    mechanism: MechanismChoice | None = None
    task: Called | None = None
    part: Called | None = None
    scope: Scope | None = None
    delta: Delta | None = Field(default=None, description="declared δ of a collapse; 0 charges by the curve alone")
    on_exhausted: OnExhausted | None = None
    hold_seconds: Annotated[int, Field(ge=1, le=MAX_HOLD_SECONDS)] | None = None
    unit: Literal["record", "user"] | None = Field(default=None, description="what the release counts on")
    adjacency: Literal["add_remove", "replace_one"] | None = Field(
        default=None, description="what the release counts on"
    )
    label_space: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    tuning: dict[str, Any] | None = None
    pretraining: dict[str, Any] | None = None
    preprocessing: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    empty_task: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    composition: dict[str, Any] | None = None
    noise: dict[str, Any] | None = None


class NewReleases(Closed):
    """Proposals that are decided one after the other."""

    proposals: list[NewRelease] = Field(min_length=1, max_length=100)


class Artifact(Closed):
    """What left the house: its digest, and where it is."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    uri: Address | None = None
    bytes: Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)] | None = None
    metrics: dict[str, Any] | None = None


class Commit(Closed):
    """The release left the house."""

    model_config = shown({"artifact": {"sha256": "0" * 64, "uri": "s3://models/2026-w46.safetensors"}})

    artifact: Artifact | None = None
    evaluation: dict[str, Any] | None = Field(
        default=None, description='on which data its metrics were computed: {"data": "public"}', examples=[None]
    )
    reason: LongReason | None = Field(
        default=None, description="why it is settled by hand, if it is; the ledger keeps it", examples=[None]
    )


class FileFinding(Closed):
    """A rule that a file breaks, with the evidence that docs/audits.md names for it."""

    code: Annotated[str, Field(max_length=100)]
    evidence: dict[Annotated[str, Field(max_length=50)], Evidence] = Field(default_factory=dict, max_length=8)


class Opened(Closed):
    """What whoever asks found in a file that the service does not have: their word, and recorded as such."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the very bytes that were looked at")]
    bytes: Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)] | None = None
    checked: list[Annotated[str, Field(max_length=100)]] = Field(
        min_length=1, max_length=200, description="the codes of all rules that had something to look at in the file"
    )
    findings: list[FileFinding] = Field(default_factory=list, max_length=MAX_REPORTED)


class ReleaseAudit(Closed):
    """An audit of a release, with what a client found in its artifact, if it has opened it."""

    model_config = shown(
        {
            "found": {
                "sha256": "0" * 64,
                "checked": ["artifact.batch_norm", "artifact.not_finite"],
                "findings": [{"code": "artifact.not_finite", "evidence": {"tensors": 1}}],
            }
        }
    )

    found: Opened | None = Field(default=None, examples=[None])


class Void(Closed):
    """Nothing of the release left the house."""

    model_config = shown({"reason": "training was stopped before anything was written"})

    reason: LongReason
    evidence: dict[str, Any] | None = None


class NewJob(Closed):
    """A mechanism to be run by a worker on a task or scope: priced, held and queued together."""

    model_config = shown(
        {
            "population": "clinic-a",
            "task": "2026-w46",
            "mechanism": {
                "name": "dp-sgd",
                "parameters": {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0},
            },
            "recipe": {
                "model": "linear", "shape": [784], "learning_rate": 0.5,
                "label_source": "prior", "label_names": ["healthy", "ill"],
            },
            "data": {"uri": "/var/lib/stint/inputs/2026-w46.npz", "x": "x", "y": "y"},
        }
    )  # fmt: skip

    population: PopulationName
    mechanism: MechanismChoice
    task: Called | None = None
    part: Called | None = None
    scope: Scope | None = None
    recipe: dict[str, Any] = Field(default_factory=dict, description="what the run needs beside what it is priced by")
    data: dict[str, Any] = Field(description="where a worker finds the rows, and whose they are (docs/jobs.md)")
    queue: Queue = "default"
    device: Annotated[str, Field(pattern=DEVICE)] = "cpu"
    delta: Delta | None = Field(default=None, description="declared δ of a collapse; 0 charges by the curve alone")
    on_exhausted: OnExhausted | None = None
    state: dict[str, Any] | None = None
    tuning: dict[str, Any] | None = None
    pretraining: dict[str, Any] | None = None
    composition: dict[str, Any] | None = None


class NewAudit(Closed):
    """An audit of a mechanism, on rows that are made up: planned in the ledger first, then run by a worker."""

    model_config = shown({"population": "clinic-a", "mechanism": "dp-sgd", "audit": "one run, white box"})

    population: PopulationName
    mechanism: Called
    audit: Called | None = Field(default=None, description="its name; may be left out where a mechanism has just one")
    samples: Annotated[int, Field(ge=LEAST_SAMPLES, le=MAX_SAMPLES, strict=True)] | None = Field(
        default=None,
        description="runs of each side, or canaries; at most, and unless said, as many as docs/soundness.md has, or as "
        "it takes at this audit's confidence to see its twin",
    )
    on_violation: Literal["block", "freeze"] = Field(
        default="block", description="whether a violation blocks the mechanism, or freezes the population as well"
    )
    queue: Queue = "default"
    reason: Reason | None = Field(default=None, description="why; kept in the entry of the plan")


class NewKey(Closed):
    """A key for a pipeline, an officer, an auditor, a worker or an admin."""

    model_config = shown(
        {"name": "nightly training", "roles": ["pipeline"], "expires_in_days": 90, "reason": "the new cluster"}
    )

    name: Name
    roles: list[Role] = Field(min_length=1, max_length=5)
    expires_in_days: Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)] | None = None
    reason: Reason | None = Field(default=None, description="why; kept in the log of keys")


class Price(Closed):
    """Parameters to be priced."""

    model_config = shown({"parameters": {"epsilon": 0.1, "delta": 1e-7}, "delta": 1e-6})

    parameters: dict[str, Any] = Field(default_factory=dict)
    adjacency: Literal["add_remove", "replace_one"] = "add_remove"
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-6


class CalibrationRequest(Closed):
    """DP-SGD steps for which the smallest noise is looked for."""

    model_config = shown({"epsilon": 1.0, "delta": 1e-6, "sampling_probability": 0.01, "steps": 1000})

    epsilon: Epsilon
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    sampling_probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    steps: Annotated[int, Field(ge=1, le=10**6, strict=True)]
    adjacency: Literal["add_remove", "replace_one"] = "add_remove"


class ClassSize(Closed):
    """How large classes may be, and how many of them, in any unit."""

    size: Annotated[int, Field(ge=1, le=10**9, strict=True)]
    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0


class Training(Closed):
    """DP-SGD steps on the labels that are told."""

    sampling_probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    steps: Annotated[int, Field(ge=1, le=10**6, strict=True)]


class LabelSplitRequest(Closed):
    """A budget, the classes that must survive a label release (none: a tenth is for it), and the training after it."""

    model_config = shown(
        {"epsilon": 1.0, "delta": 1e-6, "class_size": 200, "probability": 0.99},
        {
            "epsilon": 1.0, "delta": 1e-6, "probability": 0.9, "class_sizes": [
                {"size": 20, "weight": 5}, {"size": 200, "weight": 35}, {"size": 2000, "weight": 60},
            ], "training": {"sampling_probability": 0.01, "steps": 1000},
        },
        {"epsilon": 1.0, "delta": 1e-6, "training": {"sampling_probability": 0.01, "steps": 1000}},
    )  # fmt: skip

    epsilon: Epsilon
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    class_size: Annotated[int, Field(ge=1, le=10**9, strict=True)] | None = None
    class_sizes: Annotated[list[ClassSize], Field(min_length=1, max_length=1000)] | None = None
    probability: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.99
    training: Training | None = None
    adjacency: Literal["add_remove", "replace_one"] = "add_remove"


class WhatIf(Closed):
    """A proposal, so many times in a row."""

    proposal: NewRelease
    times: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 20


class ProblemDocument(BaseModel):
    """An answer that is no success, as RFC 9457 has it; docs/errors.md lists the types."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    advice: str
    instance: str
    field: str | None = None
