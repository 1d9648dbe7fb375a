"""Every rule of the audit finds what it should and leaves alone what it should; wrong manifests and files are told."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from accountant.audit import checklist, names
from accountant.audit.checklist import CHECKS, Facts, Mechanism, audit, covers
from accountant.audit.contents import Contents, Tensor, label_digest
from accountant.audit.findings import (
    DEFAULT_VERDICTS,
    RULES,
    SEVERITIES,
    Finding,
    denying,
    finding_from,
    verdicts_of,
)
from accountant.audit.manifests import STATEMENTS, manifest_from, statement
from accountant.canonical import canonical
from accountant.errors import InvalidDocument, InvalidInput
from accountant.events import ApproxDP, Gaussian, PoissonSampled, PureDP, Repeated
from service import pre_release
from service.audit_cli import _book
from tests.service.audit_cases import (
    CASES,
    CLEAN,
    LABELS,
    Release,
    against_ledger,
    clean,
    file_of,
    header,
    holding,
    noise,
    tensors,
    zipped,
)
from trainers import inspection, row_copies
from trainers.catalog import CATALOG
from trainers.inspection import opened
from trainers.row_copies import Rows
from trainers.safetensors_headers import MAX_HEADER


def audited(release: Release, folder: Path) -> checklist.Audited:
    files = release.write(folder)
    book = _book(files["ledger"]) if "ledger" in files else None
    manifest = manifest_from(release.manifest)
    facts = pre_release.from_manifest(
        replace(manifest, declared={**manifest.declared, **release.said}),
        artifact=files.get("artifact"),
        book=book,
        labels=release.labels,
        accepts=release.accepts,
        earlier=[files["earlier"]] if "earlier" in files else [],
    )
    return audit(facts)


def codes(found: checklist.Audited) -> set[str]:
    return {each.code for each in found.findings}


# ---------------------------------------------------------------- the catalogue


def test_every_rule_has_a_check_and_a_case_and_stands_where_it_belongs() -> None:
    assert [check.code for check in CHECKS] == list(RULES)
    assert list(CASES) == list(RULES)
    assert set(checklist.AT_PROPOSAL) <= set(RULES)
    for code, rule in RULES.items():
        assert code == rule.code
        assert rule.severity in SEVERITIES
        assert rule.bases
        assert all((rule.title, rule.source, rule.message, rule.remedy))


def test_a_clean_release_has_no_findings_at_all(tmp_path: Path) -> None:
    assert audited(clean(), tmp_path).findings == ()


@pytest.mark.parametrize("code", RULES)
def test_a_rule_finds_what_it_should(code: str, tmp_path: Path) -> None:
    found = audited(CASES[code][0](), tmp_path)
    assert code in codes(found)
    assert code in found.checked
    for each in found.findings:
        if each.code == code:
            assert each.basis in RULES[code].bases
            assert each.severity == RULES[code].severity
            assert "{" not in each.message
            assert finding_from(each.to_record()) == each
            assert finding_from(json.loads(canonical(each.to_json()))) == each


@pytest.mark.parametrize("code", RULES)
def test_a_rule_leaves_alone_what_it_should(code: str, tmp_path: Path) -> None:
    found = audited(CASES[code][1](), tmp_path)
    assert code in found.checked, "it was not even looked at"
    assert code not in codes(found)


@pytest.mark.parametrize("code", RULES)
def test_evidence_says_nothing_that_stands_in_the_file(code: str, tmp_path: Path) -> None:
    """Labels, names of tensors and metadata may be private; a finding is stored and certified."""
    found = audited(CASES[code][0](), tmp_path)
    shown = canonical([each.to_json() for each in found.findings]).decode()
    for private in ("rare disease", "Tuesday", "head.weight", "norm.running", "memory.x", "embedding"):
        assert private not in shown


def test_words_that_are_not_known_count_as_not_said() -> None:
    said = {"tuning": {"source": "magic"}, "pretraining": "public", "state": {"kept": 1}, "sampling": {"scheme": 3}}
    found = audit(
        Facts(declared=said, charged=(PoissonSampled(sampling_probability=0.1, event=Gaussian(noise_multiplier=1)),))
    )
    unread = {each.evidence["statement"] for each in found.findings if each.code == "statement.unknown"}
    assert unread == set(said)
    assert {"tuning.undeclared", "pretraining.undeclared", "state.undeclared", "sampling.undeclared"} <= codes(found)
    assert "statement.unknown" not in codes(audit(Facts(declared={"tuning": {"source": "public", "note": "more"}})))


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_word_of_a_statement_is_read(name: str) -> None:
    field, words = next(iter(STATEMENTS[name].items()))
    for word in words:
        declared = {name: {field: word}}
        assert statement(declared, name) == word
        assert manifest_from({"version": 1, **declared}).declared == declared
        assert not any(each.code == "statement.unknown" for each in audit(Facts(declared=declared)).findings)


# ---------------------------------------------------------------- what stands behind a word


@pytest.mark.parametrize(
    ("change", "offline", "with_ledger"),
    [
        ({"tuning": {"source": "charged"}}, {"statement.incomplete"}, {"tuning.uncharged"}),
        ({"tuning": {"source": "charged", "releases": ["rel_labels"]}}, set(), set()),
        ({"pretraining": {"data": "released"}}, {"statement.incomplete"}, {"pretraining.uncharged"}),
        ({"pretraining": {"data": "released", "release": "rel_void"}}, set(), {"pretraining.uncharged"}),
        ({"pretraining": {"data": "released", "release": "rel_x"}}, set(), {"pretraining.unknown_release"}),
        ({"pretraining": {"data": "released", "release": "rel_labels"}}, set(), set()),
        ({"evaluation": {"data": "charged"}}, {"statement.incomplete"}, {"metrics.uncharged"}),
        ({"evaluation": {"data": "charged", "releases": ["rel_void"]}}, set(), {"metrics.uncharged"}),
        ({"evaluation": {"data": "charged", "releases": ["rel_labels"]}}, set(), set()),
        (
            {"preprocessing": {**CLEAN["preprocessing"], "clip_norm": "charged"}},
            {"statement.incomplete"},
            {"preprocessing.uncharged"},
        ),
        (
            {"preprocessing": {**CLEAN["preprocessing"], "clip_norm": "charged", "releases": ["rel_x"]}},
            set(),
            {"preprocessing.uncharged"},
        ),
        ({"state": {"retained": "charged_memory"}}, {"state.uncharged"}, {"state.uncharged"}),
        ({"composition": {"claim": "parallel"}}, {"tasks.unchecked"}, {"tasks.unchecked"}),
        ({"composition": {"claim": "parallel"}, "task": "nowhere"}, {"tasks.unchecked"}, {"tasks.unknown"}),
        ({"composition": {"claim": "parallel"}, "task": "alone"}, {"tasks.unchecked"}, set()),
    ],
)  # fmt: skip
def test_words_are_looked_up_in_the_ledger_or_said_to_be_incomplete(
    change: dict[str, Any], offline: set[str], with_ledger: set[str], tmp_path: Path
) -> None:
    assert codes(audited(clean(**change), tmp_path)) == offline
    assert codes(audited(against_ledger(**change), tmp_path)) == with_ledger


def test_a_release_may_pay_for_its_own_metrics_and_constants(tmp_path: Path) -> None:
    """A charge beside the mechanism's may be it; where no mechanism has a price, nobody can tell."""
    said = {"evaluation": {"data": "charged"}, "metrics": {"accuracy": 0.9}}
    steps = {
        "kind": "poisson_sampled",
        "sampling_probability": 0.01,
        "event": {"kind": "gaussian", "noise_multiplier": 1.1},
    }
    training, more = {"kind": "repeated", "times": 2000, "event": steps}, {"kind": "pure_dp", "epsilon": 0.1}
    for make in (clean, against_ledger):
        assert codes(audited(make(**said, charges=[{"event": training}, {"event": more}]), tmp_path)) == set()
        unknown = make(**said, mechanism=None, charges=[{"event": more}])
        assert codes(audited(unknown, tmp_path)) == {"mechanism.unknown", "statement.incomplete"}


def test_each_constant_is_declared_by_itself(tmp_path: Path) -> None:
    [found] = audited(clean(preprocessing={"normalisation": "public", "lipschitz": "unused"}), tmp_path).findings
    assert (found.code, found.evidence) == ("preprocessing.undeclared", {"constants": "clip_norm, vocabulary"})


def test_why_nobody_looked_for_overlaps_is_told_truly(tmp_path: Path) -> None:
    claim = {"composition": {"claim": "parallel"}}
    for release, why in ((clean(**claim, task="one"), "no ledger"), (against_ledger(**claim), "no task is named")):
        [found] = audited(release, tmp_path).findings
        assert (found.code, found.severity) == ("tasks.unchecked", "warning")
        assert why in found.message


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"source": "prior"}, True),
        ({"source": "prior", "labels": LABELS}, False),
        ({"source": "prior", "digest": label_digest(LABELS)}, False),
        ({"source": "released"}, True),
        ({"source": "released", "release": "rel_1"}, False),
        ({"source": "none"}, False),
    ],
)
def test_a_label_space_says_which_labels(said: dict[str, Any], found: bool, tmp_path: Path) -> None:  # noqa: FBT001
    release = replace(clean(label_space=said), artifact=None)
    assert ("statement.incomplete" in codes(audited(release, tmp_path))) is found


# ---------------------------------------------------------------- policies


def test_errors_deny_unless_a_policy_says_otherwise() -> None:
    found = [
        RULES[code].found(RULES[code].bases[0]) for code in ("state.raw", "state.undeclared", "empty_task.undeclared")
    ]
    assert [each.code for each in denying(found, DEFAULT_VERDICTS)] == ["state.raw"]
    assert [each.code for each in denying(found, {"error": "allow", "state.undeclared": "deny"})] == [
        "state.undeclared"
    ]
    assert denying(found, {**DEFAULT_VERDICTS, "state.raw": "allow"}) == []
    assert len(denying(found, {"error": "deny", "warning": "deny", "note": "deny"})) == 3
    assert verdicts_of({"error": "deny", "state.raw": "allow"}) == {"error": "deny", "state.raw": "allow"}


@pytest.mark.parametrize("wrong", [{"errors": "deny"}, {"error": "maybe"}, {"no.such": "deny"}])
def test_a_policy_on_findings_knows_what_it_names(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="findings"):
        verdicts_of(wrong)


def test_a_finding_of_a_later_version_is_still_read() -> None:
    found = finding_from({"code": "new.rule", "basis": "checked", "severity": "error", "evidence": {"x": 1}})
    assert found.to_json()["title"] == "new.rule"
    assert denying([found], DEFAULT_VERDICTS) == [found]
    assert finding_from({"code": "artifact.metadata", "basis": "checked", "severity": "warning"}).message
    for wrong in (
        {},
        {"code": 1},
        {"code": "x", "basis": "felt", "severity": "error"},
        {**found.to_json(), "evidence": 3},
    ):
        with pytest.raises(InvalidDocument):
            finding_from(wrong)
    with pytest.raises(InvalidInput):
        Finding(code="x", basis="checked", severity="bad", message="")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Finding(code="x", basis="checked", severity="error", message="", evidence={"x": float("nan")})


# ---------------------------------------------------------------- prices


@pytest.mark.parametrize(
    ("charged", "price", "enough"),
    [
        (Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=1.0), True),
        (Gaussian(noise_multiplier=0.9), Gaussian(noise_multiplier=1.0), True),
        (Gaussian(noise_multiplier=1.1), Gaussian(noise_multiplier=1.0), False),
        (PureDP(epsilon=0.5), PureDP(epsilon=0.4), True),
        (PureDP(epsilon=0.4), PureDP(epsilon=0.5), False),
        (PureDP(epsilon=50.0), Gaussian(noise_multiplier=1.0), False),  # no Gaussian is pure
        (ApproxDP(epsilon=5.0, delta=1e-5), Gaussian(noise_multiplier=1.0), True),
        (ApproxDP(epsilon=4.0, delta=1e-5), Gaussian(noise_multiplier=1.0), False),  # the truth is 4.38
        (Repeated(times=3, event=PureDP(epsilon=0.1)), PureDP(epsilon=0.3), False),  # at small orders it is less
    ],
)  # fmt: skip
def test_charges_cover_a_price_or_do_not(charged: Any, price: Any, enough: bool) -> None:  # noqa: FBT001
    assert covers([charged], [price], adjacency="add_remove") is enough


def test_each_event_of_a_price_needs_a_charge_of_its_own() -> None:
    """Two charges may be on different people, each of whom pays for one of them."""
    one, half = Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=2.0)
    assert covers([half, one], [one], adjacency="add_remove")
    assert covers([half, one], [one, half], adjacency="add_remove")
    assert not covers([Gaussian(noise_multiplier=1.4)] * 2, [one], adjacency="add_remove")
    assert not covers([one], [half, half], adjacency="add_remove")
    assert not covers([], [one], adjacency="add_remove")


@pytest.mark.parametrize(
    ("name", "charges", "found"),
    [
        (None, [], {"charges.missing", "mechanism.unknown"}),
        (None, [{"event": {"kind": "pure_dp", "epsilon": 0.1}}], {"mechanism.unknown"}),
        ("dp-sgdd", [], {"charges.missing", "mechanism.unknown", "mechanism.misspelt"}),
        ("DP SGD", [{"event": {"kind": "pure_dp", "epsilon": 0.1}}], {"mechanism.unknown", "mechanism.misspelt"}),
        ("our-own", [{"event": {"kind": "pure_dp", "epsilon": 0.1}}], {"mechanism.unknown"}),
        ("our-own", [], {"charges.missing", "mechanism.unknown"}),
        ("dp-sgd", [], set()),
    ],
)
def test_a_release_names_what_ran_or_what_it_pays(
    name: str | None, charges: list[dict[str, Any]], found: set[str], tmp_path: Path
) -> None:
    mechanism = CLEAN["mechanism"] if name == "dp-sgd" else None if name is None else {"name": name}
    given = audited(clean(mechanism=mechanism, charges=charges), tmp_path)
    assert codes(given) == found
    near = [each.evidence["nearest"] for each in given.findings if each.code == "mechanism.misspelt"]
    assert near == ["dp-sgd"] * ("mechanism.misspelt" in found)


def test_no_name_of_the_catalog_is_taken_for_another() -> None:
    assert all(pre_release.nearest(name) is None for name in CATALOG)
    assert all(pre_release.nearest(f"{name}s") == name for name in CATALOG)


# ---------------------------------------------------------------- labels and heads


@pytest.mark.parametrize(
    ("made", "facts", "found"),
    [
        ({"sums": noise((3, 8))}, {"predictor": "cosine", "labels": LABELS}, set()),
        (
            {"sums": noise((2, 8))},
            {"predictor": "cosine", "labels": LABELS[:2]},
            {"artifact.labels", "artifact.head_width"},
        ),
        ({"weight": noise((3, 8)), "bias": noise((3,))}, {"predictor": "linear", "labels": LABELS}, set()),
        ({"head.weight": noise((5, 8))}, {"predictor": "adapter", "labels": LABELS}, {"artifact.head_width"}),
        ({"1.weight": noise((8, 4)), "3.weight": noise((3, 8))}, {"predictor": "network", "labels": LABELS}, set()),
        (
            {"1.weight": noise((3, 4)), "10.weight": noise((8, 8))},
            {"predictor": "network", "labels": LABELS},
            {"artifact.head_width"},
        ),
        ({"sums": noise((3, 8))}, {"predictor": "cosine", "labels": ["healthy", "ill", "x"]}, {"artifact.labels"}),
    ],
)  # fmt: skip
def test_our_own_artifacts_say_which_tensor_answers(
    made: dict[str, Any], facts: dict[str, Any], found: set[str], tmp_path: Path
) -> None:
    release = holding(made, {"stint": canonical(facts).decode(), "releasable": "true"})
    assert codes(audited(release, tmp_path)) == found


@pytest.mark.parametrize(
    ("made", "found"),
    [
        # a layer that answers by its name, in the ways of torch, timm, Hugging Face, Keras and Flax
        ({"head.weight": (3, 16), "head.bias": (3,)}, set()),
        ({"heads.head.weight": (9, 16), "b.weight": (16, 16)}, {"artifact.head_width"}),
        ({"score.weight": (9, 16)}, {"artifact.head_width"}),
        ({"classification_head.weight": (9, 16)}, {"artifact.head_width"}),
        ({"classifier.weight": (9, 16, 1, 1)}, {"artifact.head_width"}),
        ({"head.norm.weight": (16,), "head.fc.weight": (3, 16)}, set()),
        ({"head.kernel": (16, 3), "body.kernel": (3, 16)}, set()),
        ({"head.kernel": (3, 9)}, {"artifact.head_width"}),  # three inputs and nine classes
        ({"params/head/kernel": (16, 3), "params/head/bias": (3,)}, set()),
        ({"predictions/kernel:0": (1, 1, 16, 9), "predictions/bias:0": (9,)}, {"artifact.head_width"}),
        ({"head_kernel": (16, 3), "head_bias": (9,)}, {"artifact.head_width"}),
        ({"logits/w": (16, 3), "logits/b": (9,)}, {"artifact.head_width"}),
        ({"head.weight": (3, 16), "head.bias": (9,)}, {"artifact.head_width"}),
        # a layer that nobody can tell
        ({"proj.weight": (9, 16)}, {"artifact.head_unknown"}),
        ({"proj.weight": (3, 16)}, {"artifact.head_unknown"}),
        ({"head.bias": (3,)}, {"artifact.head_unknown"}),
        ({"head.weight": (9, 16), "classifier.weight": (9, 16)}, {"artifact.head_unknown"}),
        ({"classifier.1.weight": (9, 16), "classifier.4.weight": (9, 9)}, {"artifact.head_unknown"}),
        ({"classifier.1.weight": (9, 16), "classifier.4.weight": (3, 9)}, {"artifact.head_unknown"}),
        ({"head.weight": (3, 16), "head.bias": (3,), "classifier.weight": (3, 16)}, set()),
        ({"attention.heads.0.weight": (8, 16), "attention.heads.1.weight": (8, 16), "fc.weight": (3, 16)}, set()),
    ],
)  # fmt: skip
def test_the_head_is_found_by_its_name_or_said_to_be_unknown(
    made: dict[str, tuple[int, ...]], found: set[str], tmp_path: Path
) -> None:
    given = {name: noise(shape, place) for place, (name, shape) in enumerate(made.items())}
    assert codes(audited(holding(given), tmp_path)) == found


def test_a_head_that_is_named_is_compared_with_its_bias_and_by_its_columns(tmp_path: Path) -> None:
    for made, head, found in (
        ({"proj.weight": (9, 16)}, "proj.weight", {"artifact.head_width"}),
        ({"proj.weight": (3, 16), "proj.bias": (9,)}, "proj.weight", {"artifact.head_width"}),
        ({"proj.kernel": (16, 3), "proj.bias": (3,)}, "proj.kernel", set()),
        ({"classifier.1.weight": (9, 16), "classifier.4.weight": (3, 9)}, "classifier.4.weight", set()),
    ):
        given = {name: noise(shape, place) for place, (name, shape) in enumerate(made.items())}
        assert codes(audited(holding(given, artifact={"head": head}), tmp_path)) == found


@pytest.mark.parametrize("where", ["stint", "labels"])
@pytest.mark.parametrize(
    ("labels", "found"),
    [(LABELS, False), (LABELS[::-1], False), (LABELS[:2], True), ([*LABELS, "rare disease"], True), ([], True)],
)
def test_a_file_names_all_labels_and_no_others(labels: list[str], found: bool, where: str, tmp_path: Path) -> None:  # noqa: FBT001
    """That a label is missing tells that nobody had it (Proposition 4.1): a subset is no better than another set."""
    told = canonical({"labels": labels}).decode() if where == "stint" else json.dumps(labels)
    given = codes(audited(holding(tensors(), {where: told}), tmp_path))
    assert ("artifact.labels" in given) is found


def test_a_subset_is_not_the_set_that_was_released(tmp_path: Path) -> None:
    for released, found in ((LABELS, False), ([*LABELS, "rare"], True), (LABELS[:2], True)):
        given = codes(audited(Release(labels=released), tmp_path))
        assert ("label_space.mismatch" in given) is found


@pytest.mark.parametrize(
    ("said", "labels", "found"),
    [
        ({"source": "prior"}, None, True),
        ({"source": "prior"}, LABELS, False),
        ({"source": "released", "release": "rel_1"}, None, True),
        ({"source": "released", "release": "rel_1"}, LABELS, False),
        ({"source": "released", "release": "rel_1", "labels": LABELS}, None, False),
        ({"source": "prior", "digest": label_digest(LABELS)}, None, True),  # the file names none
        ({"source": "none"}, None, False),
    ],
)
def test_a_set_that_nobody_shows_is_compared_with_nothing(
    said: dict[str, Any],
    labels: list[str] | None,
    found: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    release = replace(clean(label_space=said), labels=labels)
    assert ("label_space.unchecked" in codes(audited(release, tmp_path))) is found


@pytest.mark.parametrize(
    ("made", "metadata", "changes", "found"),
    [
        (tensors(), None, {"kind": "other"}, True),
        (tensors(), None, {"label_space": {"source": "none"}}, True),
        (tensors(), None, {"kind": "labels"}, True),
        ({}, {"labels": json.dumps(LABELS)}, {"kind": "labels"}, False),
        ({"encoder.weight": noise((9, 8))}, {"labels": json.dumps(LABELS)}, {"kind": "other"}, True),
        ({"encoder.weight": noise((9, 8))}, None, {"kind": "other"}, False),
        ({"head.weight": noise((1, 8))}, None, {"label_space": {"source": "none"}}, False),  # a regression
        ({"sums": noise((3, 8))}, {"stint": '{"predictor":"cosine"}'}, {"kind": "other"}, True),
        (tensors(), None, {}, False),
    ],
)
def test_no_word_takes_the_labels_out_of_a_file(
    made: dict[str, Any],
    metadata: dict[str, str] | None,
    changes: dict[str, Any],
    found: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    given = codes(audited(holding(made, metadata, **changes), tmp_path))
    assert ("label_space.contradicted" in given) is found


def test_labels_of_what_a_run_of_ours_builds_on_may_be_taken_over() -> None:
    """A stream of tasks: what was told before may stand here too, and what this task has must."""
    for labels, wrong in (
        (["a", "b"], set()),
        (["a", "b", "old"], set()),
        (["b", "old"], {"artifact.labels"}),
        (["a", "b", "of nobody"], {"artifact.labels"}),
    ):
        head = Tensor(name="sums", dtype="F64", shape=(len(labels), 8), digest="")
        contents = Contents(sha256="", bytes=1, tensors=[head], facts={"predictor": "cosine"}, labels=labels)
        facts = Facts(is_ours=True, contents=contents, labels=["a", "b"], also=frozenset({"old"}))
        assert codes(audit(facts, codes=["artifact.labels", "artifact.head_width"])) == wrong


def test_a_layer_with_an_endless_number_is_no_head(tmp_path: Path) -> None:
    made = {"9" * 5000 + ".weight": noise((9, 16)), "1.weight": noise((3, 16))}
    facts = {"predictor": "network", "labels": LABELS}
    release = holding(made, {"stint": canonical(facts).decode(), "releasable": "true"})
    assert codes(audited(release, tmp_path)) == set()


def test_two_labels_may_have_one_output(tmp_path: Path) -> None:
    two = {"source": "prior", "labels": ["no", "yes"]}
    assert codes(audited(holding({"head.weight": noise((1, 4))}, label_space=two), tmp_path)) == set()
    assert "artifact.head_width" in codes(audited(holding({"head.weight": noise((3, 4))}, label_space=two), tmp_path))


def test_the_released_set_decides_and_not_what_is_declared(tmp_path: Path) -> None:
    release = Release(labels=["healthy", "ill"])
    found = codes(audited(release, tmp_path))
    assert {"label_space.mismatch", "artifact.head_width"} <= found
    assert codes(audited(Release(labels=[*LABELS]), tmp_path)) == set()


def test_labels_are_compared_with_a_digest_where_nobody_knows_them(tmp_path: Path) -> None:
    from accountant.audit.contents import label_digest

    for labels, wrong in ((LABELS, False), (["healthy", "rare"], True)):
        made = tensors(**{"head.weight": noise((len(labels), 16)), "head.bias": noise((len(labels),))})
        space = {"source": "prior", "digest": label_digest(LABELS)}
        found = codes(
            audited(holding(made, {"id2label": json.dumps(dict(enumerate(labels)))}, label_space=space), tmp_path)
        )
        assert ("label_space.mismatch" in found) is wrong


# ---------------------------------------------------------------- noise


def test_independent_noise_is_never_called_shared_whatever_the_data(tmp_path: Path) -> None:
    """The chance of a false alarm is 1e-9 for any signal; equal signals are the worst case."""
    from tests.service.audit_cases import noisy

    for seed in range(20):
        rows = np.full((40, 8), 3.0, dtype=np.float32) + noise((40, 8), seed)
        assert "noise.shared" not in codes(audited(noisy(rows), tmp_path))


def test_noise_that_all_labels_share_is_found_under_any_signal(tmp_path: Path) -> None:
    """One draw for all labels of a task, as the formula of the cosine classifier is printed."""
    from tests.service.audit_cases import noisy

    signal = noise((5, 256), 3) * 0.3
    found = audited(noisy(signal + noise((1, 256), 4) * 2.0, scale=2.0), tmp_path)
    [one] = [each for each in found.findings if each.code == "noise.shared"]
    assert one.evidence["pairs"] == 10


def test_noise_that_two_releases_share_is_found(tmp_path: Path) -> None:
    from tests.service.audit_cases import noisy

    same, signal = noise((3, 128), 4), noise((3, 128), 5) * 0.2
    release = noisy(same, earlier=file_of({"sums": same + signal}))
    assert "noise.shared" in codes(audited(release, tmp_path))
    release.manifest["artifact"]["builds_on"] = ["earlier.safetensors"]
    assert "noise.shared" not in codes(audited(release, tmp_path))


def test_sums_that_grow_over_tasks_share_no_noise_that_counts(tmp_path: Path) -> None:
    """Of three releases each adds to the one before: rows that stay are copies, rows that grow have one noise more."""
    first = noise((4, 64), 1)
    second = np.concatenate([first[:2] + noise((2, 64), 2), first[2:], noise((2, 64), 3)])
    third = np.concatenate([second[:1] + noise((1, 64), 4), second[1:], noise((2, 64), 5)])
    paths = []
    for name, rows in (("first", first), ("second", second), ("third", third)):
        paths.append(tmp_path / name)
        paths[-1].write_bytes(file_of({"sums": rows}))
    earlier = [inspection.earlier(path.name, path, keep=["sums"]) for path in paths[:2]]
    assert all(earlier)
    facts = Facts(
        kind="prototypes",
        declared={"noise": {"source": "fresh", "scale": 1.0, "tensor": "sums"}},
        contents=opened(paths[2], keep=["sums"]),
        earlier=[each for each in earlier if each is not None],
        builds_on=frozenset({"second"}),
    )
    assert not codes(audit(facts, codes=["noise.shared", "noise.repeated"]))
    alone = audit(replace(facts, builds_on=frozenset()), codes=["noise.shared"])
    assert codes(alone) == {"noise.shared"}


def test_a_copy_of_what_a_release_builds_on_is_no_reuse(tmp_path: Path) -> None:
    release = Release(earlier=file_of(tensors()))
    assert "noise.repeated" in codes(audited(release, tmp_path))
    release.manifest["artifact"] = {"builds_on": ["earlier.safetensors"]}
    assert "noise.repeated" not in codes(audited(release, tmp_path))
    frozen = Release(
        earlier=file_of({"zeros": np.zeros((3, 16), np.float32)}),
        artifact=file_of(tensors(z=np.zeros((3, 16), np.float32))),
    )
    assert "noise.repeated" not in codes(audited(frozen, tmp_path))


# ---------------------------------------------------------------- what is in a file


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("layer1.bn.running_var", "artifact.batch_norm"),
        ("bn/moving_mean", "artifact.batch_norm"),
        ("optimizer.state.0.step", "artifact.optimizer_state"),
        ("momentum_buffer", "artifact.optimizer_state"),
        ("num_examples", "artifact.example_counts"),
        ("memory", "artifact.training_data"),
        ("replay.0", "artifact.training_data"),
        ("buffer.images", "artifact.training_data"),
        ("x_train", "artifact.training_data"),
        # Flax and haiku
        ("batch_stats/bn/mean", "artifact.batch_norm"),
        ("BatchNorm_0.var", "artifact.batch_norm"),
        ("params/norm1/mean", "artifact.batch_norm"),
        ("resnet/~/bn/mean_ema", "artifact.batch_norm"),
        # Keras
        ("batch_normalization_3/moving_variance:0", "artifact.batch_norm"),
        ("normalization/mean", "artifact.batch_norm"),
        ("adam/dense_kernel_momentum", "artifact.optimizer_state"),
        ("Adam/m/dense/kernel:0", "artifact.optimizer_state"),
        ("SGD/dense/kernel/momentum", "artifact.optimizer_state"),
        ("optimizer/vars/0", "artifact.optimizer_state"),
        # optax
        ("opt.mu.body.weight", "artifact.optimizer_state"),
        ("opt_state/0/nu/body/kernel", "artifact.optimizer_state"),
        # torch, with underscores for dots
        ("layer1_bn1_running_mean", "artifact.batch_norm"),
        ("bn_mean", "artifact.batch_norm"),
        ("adam_exp_avg", "artifact.optimizer_state"),
        ("state.0.exp_avg_sq", "artifact.optimizer_state"),
        ("state.0.m", "artifact.optimizer_state"),
        # counts and data
        ("n_per_class", "artifact.example_counts"),
        ("head.n_samples_seen", "artifact.example_counts"),
        ("class_count_", "artifact.example_counts"),
        ("total_examples", "artifact.example_counts"),
        ("label_histogram", "artifact.example_counts"),
        ("token_counts", "artifact.example_counts"),
        ("train_images", "artifact.training_data"),
        ("images_train", "artifact.training_data"),
        ("data", "artifact.training_data"),
        ("cache/data/0", "artifact.training_data"),
        ("raw-data", "artifact.training_data"),
        ("memory_x", "artifact.training_data"),
        ("replay_labels", "artifact.training_data"),
    ],
)  # fmt: skip
def test_names_tell_what_a_tensor_is(name: str, code: str, tmp_path: Path) -> None:
    assert code in codes(audited(holding(tensors(**{name: noise((4, 4))})), tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "memory.key_proj.weight", "buffer_norm.weight", "inputs.weight", "account.weight", "memory_tokens",
        "norm.weight", "BatchNorm_0/scale", "bn1.bias", "layer_norm.weight", "fc_mu.weight", "mu.weight", "mean.weight",
        "encoder.mean", "opt.decoder.layers.0.weight", "state_proj.weight", "adaptive.m", "v.weight", "attention.v",
        "num_classes", "num_labels_embedding.weight", "scale_per_class", "support_proj.weight", "class_embedding",
        "training", "trainable.x_proj.weight", "data_encoder.weight", "image_features.weight", "private.weight",
    ],
)  # fmt: skip
def test_layers_with_such_names_are_left_alone(name: str, tmp_path: Path) -> None:
    assert audited(holding(tensors(**{name: noise((4, 4))})), tmp_path).findings == ()


def test_no_parameter_of_a_usual_model_is_taken_for_something_else() -> None:
    """The names that torch gives to layers, and to the parameters of the backbone that is built in."""
    import torch
    from torch import nn

    from trainers import backbones

    layers = nn.ModuleDict(
        {
            "linear": nn.Linear(2, 2), "conv": nn.Conv2d(1, 1, 1), "norm": nn.LayerNorm(2), "group": nn.GroupNorm(1, 2),
            "bn": nn.BatchNorm1d(2, track_running_stats=False), "embedding": nn.Embedding(2, 2),
            "attention": nn.MultiheadAttention(2, 1), "lstm": nn.LSTM(2, 2),
            "encoder": nn.TransformerEncoderLayer(2, 1), "decoder": nn.TransformerDecoderLayer(2, 1),
            "prelu": nn.PReLU(), "bilinear": nn.Bilinear(2, 2, 2),
        }
    )  # fmt: skip
    with torch.device("meta"):
        built = [name for name, _ in backbones.efficientnet_lite0(size=224).named_parameters()]
    names_of_all = [*layers.state_dict(), *built]
    assert len(names_of_all) > 100
    for name in names_of_all:
        for tell in (names.statistics_in, names.optimizer_in, names.counts_in, names.data_in):
            assert not tell(name), name


@pytest.mark.parametrize("name", ["a{}.memory.x", "a{}.counts", "head{}.head.weight"])
def test_as_many_tensors_as_a_file_may_have_are_checked_in_seconds(name: str, tmp_path: Path) -> None:
    many = {name.format(place): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for place in range(100_000)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(header(many))
    began = time.process_time()
    found = audit(Facts(contents=opened(path), labels=LABELS))
    assert time.process_time() - began < 20
    shown = {
        each.code: each.evidence for each in found.findings if "tensors" in each.evidence or "parts" in each.evidence
    }
    assert name.startswith("head") or [set(each.values()) & {100_000} for each in shown.values()] == [{100_000}]


def test_counts_are_found_by_what_they_add_up_to(tmp_path: Path) -> None:
    counts = np.array([1234, 3000, 766])  # the population has 5,000
    assert "artifact.example_counts" in codes(audited(holding(tensors(shift=counts)), tmp_path))
    assert "artifact.example_counts" in codes(audited(holding(tensors(shift=counts.astype(np.float32))), tmp_path))
    assert "artifact.example_counts" in codes(audited(holding(tensors(shift=counts[None])), tmp_path))
    assert audited(holding(tensors(shift=counts + 1)), tmp_path).findings == ()
    round_the_end = np.array([2**62, 2**62, 2**62, 2**62, 5000])  # they add up to 5,000 in 64 bits
    assert audited(holding(tensors(shift=round_the_end)), tmp_path).findings == ()


def test_rows_of_the_data_are_found_wherever_they_are(tmp_path: Path) -> None:
    data = noise((50, 2, 4), 9)
    hidden = np.concatenate([noise((3, 8), 10), data[17].reshape(1, 8)])
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"innocent.weight": hidden, "other.weight": noise((4, 8), 11)}))
    found = opened(path, rows=Rows.of(data))
    assert [tensor.data_rows for tensor in found.tensors] == [1, 0]
    assert "artifact.training_data" in codes(audit(Facts(contents=found)))
    assert not any(tensor.data_rows for tensor in opened(path, rows=Rows.of(noise((50, 8), 12))).tensors)


def _brain(values: np.ndarray[Any, Any]) -> bytes:
    """As bfloat16: torch's rounding is to the nearest, ties to even."""
    import torch

    brain = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    return bytes(brain.view(torch.int16).numpy().tobytes())


_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


@pytest.mark.parametrize(
    "data",
    [
        np.random.default_rng(1).integers(0, 127, (50, 12)).astype(np.uint8),
        np.random.default_rng(2).integers(-99, 99, (50, 3, 4)),
        noise((50, 12), 3),
        noise((50, 12), 4).astype(np.float64) + 1e-12,
        np.random.default_rng(5).random((50, 600)) < 0.3,  # as black and white images
    ],
)
def test_copies_of_rows_are_found_in_every_type_and_shape(data: np.ndarray[Any, Any], tmp_path: Path) -> None:
    """A copy in another type is a copy, and so is one that is flat, joined to others, or cut in another way."""
    path = tmp_path / "model.safetensors"
    rows, flat = Rows.of(data), data.reshape(50, -1)
    width = flat.shape[1]
    for kind in _TYPES:
        if data.dtype.kind == "f" and kind[0] != "f":
            continue  # they would be other numbers
        if data.dtype.kind == "i" and kind[0] == "u":
            continue
        copy = flat[7:17].astype(kind)
        other = np.arange(3 * width + 5).astype(kind)
        made = {
            "rows": copy,
            "flat": copy.reshape(-1),
            "deep": copy.reshape(2, 5, width),
            "cut": copy.reshape(10, 3, -1),
            "wide": np.concatenate([copy, np.ones((10, 1), dtype=kind)], axis=1),  # a label beside each row
            "joined": np.concatenate([other, copy.reshape(-1), other]),
            "one": copy[0],
            "none": flat[7:17].astype(kind)[:, ::-1].copy(),
        }
        path.write_bytes(file_of(made))
        found = {tensor.name: tensor.data_rows for tensor in opened(path, rows=rows).tensors}
        assert found == {**dict.fromkeys(made, 10), "one": 1, "none": 0}, kind
    content = _brain(flat[7:17])
    path.write_bytes(
        header({"b": {"dtype": "BF16", "shape": [10 * width], "data_offsets": [0, len(content)]}}, content)
    )
    assert opened(path, rows=rows).tensors[0].data_rows == 10


def test_rows_that_say_little_are_looked_for_where_they_fit(tmp_path: Path) -> None:
    """0 and 1 stand side by side in tensors that have nothing to do with data."""
    data = np.array([[0, 1], [3, 4], [37, 1], [5, 5]])
    path = tmp_path / "model.safetensors"
    ids = np.arange(512)
    path.write_bytes(file_of({"ids": ids[None], "eye": np.eye(8), "rows": data[1:], "mask": np.tile([0, 1], 50)}))
    found = {tensor.name: tensor.data_rows for tensor in opened(path, rows=Rows.of(data)).tensors}
    assert found == {"ids": 0, "eye": 0, "rows": 2, "mask": 0}  # one row is a single number, twice


def test_noise_is_never_taken_for_rows(tmp_path: Path) -> None:
    """Short rows of small types are met by chance: only those that a type has as they are count there."""
    path = tmp_path / "model.safetensors"
    rows = Rows.of(noise((2000, 2), 1))
    path.write_bytes(file_of({"a": noise((100_000, 2), 2).astype(np.float16), "b": noise((100_000, 2), 2)}))
    assert [tensor.data_rows for tensor in opened(path, rows=rows).tensors] == [0, 0]


def test_rows_are_found_wherever_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise((40, 17), 1)
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"w": np.concatenate([noise((5,), 2), data.reshape(-1), noise((3,), 3)])}))
    for at_once in (1, 16, 17, 18, 50):
        monkeypatch.setattr(row_copies, "_AT_ONCE", at_once)
        for block in (4, 68, 100, 1 << 20):
            monkeypatch.setattr(inspection, "_BLOCK", block)
            assert opened(path, rows=Rows.of(data)).tensors[0].data_rows == 40


def test_wide_rows_cost_no_more_than_narrow_ones(tmp_path: Path) -> None:
    """Time is linear in the file, whatever the width; memory is that of some rows."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"w": noise((2000, 1000), 1)}))
    for width in (4, 100_000):
        rows = Rows.of(noise((8, width), 2))
        tracemalloc.start()
        began = time.process_time()
        assert opened(path, rows=rows).tensors[0].data_rows == 0
        assert time.process_time() - began < 5
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("wrong", [np.zeros((0, 3)), np.arange(4), np.array([["a", "b"]]), np.zeros((2, 2), complex)])
def test_rows_are_rows_of_numbers(wrong: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match="two numbers or more"):
        Rows.of(wrong)


def test_frozen_public_layers_may_have_statistics_by_the_pipelines_word(tmp_path: Path) -> None:
    made = tensors(**{"backbone.bn.running_mean": noise((8,))})
    assert "artifact.batch_norm" in codes(audited(holding(made), tmp_path))
    assert codes(audited(holding(made, artifact={"public": ["backbone."]}), tmp_path)) == {"artifact.declared_public"}


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"backbone.optimizer.exp_avg": noise((8,))}, "artifact.optimizer_state"),
        ({"backbone.class_counts": np.array([1, 2, 3])}, "artifact.example_counts"),
        ({"backbone.votes": np.array([2000, 2000, 1000])}, "artifact.example_counts"),
        ({"backbone.memory.x": noise((5, 8))}, "artifact.training_data"),
        ({"backbone.replay_buffer": noise((5, 8))}, "artifact.training_data"),
        ({"backbone.embedding": noise((5000, 2))}, "artifact.rows_like_data"),
    ],
)
def test_no_word_makes_state_counts_or_data_public(made: dict[str, Any], code: str, tmp_path: Path) -> None:
    release = holding(tensors(**made), artifact={"public": ["backbone."]})
    assert codes(audited(release, tmp_path)) == {code, "artifact.declared_public"}


def test_what_is_declared_public_is_a_warning_and_may_be_denied(tmp_path: Path) -> None:
    release = clean(artifact={"public": ["body."]})
    [found] = audited(release, tmp_path).findings
    assert (found.code, found.severity, found.basis) == ("artifact.declared_public", "warning", "attested")
    assert denying([found], DEFAULT_VERDICTS) == []
    assert denying([found], {**DEFAULT_VERDICTS, "artifact.declared_public": "deny"}) == [found]


@pytest.mark.parametrize(
    ("head", "predictor", "found"),
    [
        ("body.weight", None, {"artifact.head_width"}),  # it has sixteen rows
        ("body.weight", "adapter", set()),  # head.weight has three, and answers, whoever says what
        ("head.weight", "linear", {"artifact.head_missing"}),  # there is no weight
        ("nowhere", "adapter", {"artifact.head_missing"}),
        ("scalar", None, {"artifact.head_missing"}),
        (None, "network", {"artifact.head_missing"}),  # no layer is numbered
        (None, "cosine", {"artifact.head_missing"}),
        (None, "something new", set()),
    ],
)
def test_the_files_own_predictor_is_stronger_than_a_named_head(
    head: str | None, predictor: str | None, found: set[str], tmp_path: Path
) -> None:
    facts = {"predictor": predictor, "labels": LABELS}
    metadata = None if predictor is None else {"stint": canonical(facts).decode(), "releasable": "true"}
    made = tensors(scalar=np.array(3.0, dtype=np.float32))
    release = holding(made, metadata, **({} if head is None else {"artifact": {"head": head}}))
    assert codes(audited(release, tmp_path)) == found


# ---------------------------------------------------------------- files that are not what they say


_PLAIN = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too short"),
        (b"\x08\x00", "too short"),
        (struct.pack("<Q", MAX_HEADER + 1) + b"{", "longer than 100 MB"),
        (struct.pack("<Q", 2**63) + b"{", "longer than 100 MB"),
        (struct.pack("<Q", 1000) + b"{}", "ends within its header"),
        (header(b"{" * 5000), "no JSON"),
        (header(b'{"a":' + b"[" * 100_000), "no JSON"),
        (header(b'{"a": NaN}'), "no JSON"),
        (header(b'{"a": [' + b"[]," * 600_000 + b"[]]}"), "too many parts"),
        (header(b'{"a": [' + b"1," * 2_100_000 + b"1]}"), "too many parts"),
        (header('{"a": 1}'.encode("utf-16-le")), "no JSON"),
        (header(b'{"\\ud800": {}}'), "no Unicode"),
        (header({"__metadata__": {"labels": '["\\ud800", "b"]'}}), "no Unicode"),
        (header(b'{"a": {}, "a": {}}'), "twice"),
        (header({"__metadata__": {"a": 1}}), "not text"),
        (header({"__metadata__": []}), "not text"),
        (header({"a": 3}), "dtype, a shape"),
        (header({"a": {**_PLAIN, "code": "x"}}, bytes(8)), "dtype, a shape"),
        (header({"a": {**_PLAIN, "dtype": "O"}}, bytes(8)), "unknown type"),
        (header({"a": {**_PLAIN, "dtype": "F4", "shape": [16]}}, bytes(8)), "not read here"),
        (header({"a": {**_PLAIN, "dtype": "C64", "shape": [1]}}, bytes(8)), "not read here"),
        (header({"a": {**_PLAIN, "shape": [-2]}}, bytes(8)), "impossible shape"),
        (header({"a": {**_PLAIN, "shape": [1.5]}}, bytes(8)), "impossible shape"),
        (header({"a": {**_PLAIN, "shape": [2**60]}}, bytes(8)), "impossible shape"),
        (header({"a": {**_PLAIN, "shape": [2**50, 2**50]}}, bytes(8)), "more or fewer bytes"),
        (header({"a": {**_PLAIN, "shape": [3]}}, bytes(8)), "more or fewer bytes"),
        (header({"a": {**_PLAIN, "data_offsets": [0, 800]}}, bytes(8)), "outside"),
        (header({"a": {**_PLAIN, "data_offsets": [-8, 0]}}, bytes(8)), "outside"),
        (header({"a": {**_PLAIN, "data_offsets": [8, 0]}}, bytes(8)), "outside"),
        (header({"a": _PLAIN, "b": _PLAIN}, bytes(8)), "share bytes"),
        (header({"a": _PLAIN, "b": {**_PLAIN, "data_offsets": [4, 12]}}, bytes(12)), "share bytes"),
        (header({"a": {**_PLAIN, "data_offsets": [8, 16]}}, bytes(16)), "between its tensors"),
        (header({"a": _PLAIN}, bytes(9)), "after its tensors"),
        (header({f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_001)}), "100,000"),
    ],
)  # fmt: skip
def test_damaged_files_are_told_with_a_reason_and_cost_nothing(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    began = time.monotonic()
    found = opened(path)
    assert time.monotonic() - began < 5
    assert found.problem is not None
    assert reason in found.problem
    assert "artifact.unreadable" in codes(audit(Facts(contents=found)))
    assert not found.is_open


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 - one of several kinds
            opened(path)


def test_a_file_cannot_vouch_for_its_own_labels(tmp_path: Path) -> None:
    promised = label_digest(["a", "b"])
    path = tmp_path / "model.safetensors"
    for labels, found in ((["a", "b"], False), (["a rare disease", "b"], True)):
        facts = canonical({"labels": labels, "label_space": promised}).decode()
        path.write_bytes(file_of({"head.weight": noise((2, 4))}, {"stint": facts, "releasable": "true"}))
        given_ = Facts(contents=opened(path), label_digests=frozenset({promised}))
        assert ("label_space.mismatch" in codes(audit(given_))) == found


@given(st.data())
def test_whatever_is_opened_here_the_library_opens_too(data: st.DataObject) -> None:
    """A file with a few bytes changed is told to be damaged, or has the same tensors for both; nothing else happens."""
    content = bytearray(file_of({"a": noise((2, 3), 1), "b": np.arange(4)}, {"format": "np"}))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    changed = bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(changed)
        found = opened(path)
    assert found.bytes == len(changed)
    if found.is_open:
        theirs = load(changed)
        assert {each.name: each.shape for each in found.tensors} == {name: each.shape for name, each in theirs.items()}
    assert all(finding_from(each.to_record()) for each in audit(Facts(contents=found)).findings)


class _Loaded:
    """A pickle that would tell if it were loaded."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(__file__).parent / "loaded",))


#: What early files were: lists, tables, numbers and names, small ones and ones longer than what is looked at.
_OLD: list[Any] = [
    [], [1.0], ["{" * 40], {}, {"weight": [0.5] * 20_000}, (1, 2), "text", 3, 2.5, True, None, 10**60, int, b"\x00\xff",
    ["x" * 200_000], {"k": b"ab" * 100_000}, np.zeros(3), np.arange(50_000.0),
]  # fmt: skip


def _legacy(protocol: int) -> bytes:
    """As torch wrote before it wrote archives: a number to know it by, a version, the system, then the object."""
    parts: tuple[Any, ...] = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"weight": [1.0]}, [])
    return b"".join(pickle.dumps(each, protocol=protocol) for each in parts)


def taped(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for each, data in (("sys_info", b"{}" * 300), (name, content)):
            member = tarfile.TarInfo(each)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def _npy() -> bytes:
    made = io.BytesIO()
    np.save(made, np.zeros(3))
    return made.getvalue()


@pytest.mark.parametrize(
    ("content", "form", "code"),
    [
        *((pickle.dumps(_Loaded(), protocol=n), "pickle", "artifact.pickle") for n in range(6)),
        *((pickle.dumps(each, protocol=n), "pickle", "artifact.pickle") for n in (0, 1) for each in _OLD),
        (_legacy(2), "pickle", "artifact.pickle"),
        (_legacy(0), "pickle", "artifact.pickle"),
        (taped("pickle", pickle.dumps(_Loaded())), "torch", "artifact.pickle"),
        (taped("model/weights.pkl", pickle.dumps(_Loaded())), "torch", "artifact.pickle"),
        (taped("readme.txt", b"hello"), "tar", "artifact.format"),
        (taped("readme.txt", b"hello")[:600].replace(b"0000005", b"7777777"), "tar", "artifact.format"),
        (b"N., a text that begins like one", "pickle", "artifact.pickle"),
        (b"(see below) is a text, and no program", "other", "artifact.format"),
        (b"I am a text\nand no whole number", "other", "artifact.format"),
        (zipped("archive/data.pkl", pickle.dumps(_Loaded())), "torch", "artifact.pickle"),
        (zipped("x.npy", _npy()), "npz", "artifact.format"),
        (zipped("readme.txt", b"hello"), "archive", "artifact.format"),
        (b"PK\x03\x04 and nothing", "archive", "artifact.format"),
        (_npy(), "npy", "artifact.format"),
        (b"GGUF\x03\x00\x00\x00 something", "gguf", "artifact.format"),
        (b"\x89HDF\r\n\x1a\n and more", "hdf5", "artifact.format"),
        (b"\x1f\x8b\x08 a compressed file", "other", "artifact.format"),
    ],
)  # fmt: skip
def test_other_files_are_recognised_and_never_loaded(content: bytes, form: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"  # whatever it is called
    path.write_bytes(content)
    found = opened(path)
    assert found.form == form
    assert not found.tensors
    assert code in codes(audit(Facts(contents=found)))
    assert not (Path(__file__).parent / "loaded").exists()


def test_a_length_that_looks_like_a_pickle_is_none(tmp_path: Path) -> None:
    for length in (0x280, 0x380, 0x480, 0x580, 0x6428, 0x7063):
        text = json.dumps({"a": _PLAIN}).encode()
        content = struct.pack("<Q", length) + text.ljust(length) + bytes(8)
        (tmp_path / "model").write_bytes(content)
        assert opened(tmp_path / "model").is_open, hex(length)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(zipped("data.pkl", bytes(200 << 20)))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    began = time.monotonic()
    assert opened(path).form == "torch"
    assert time.monotonic() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_an_archive_longer_than_what_is_looked_at_is_still_told(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(zipped("archive/data.pkl", np.random.default_rng(0).bytes(6 << 20)))
    assert path.stat().st_size > inspection._MAX_INDEX
    assert opened(path).form == "torch"


def test_every_type_of_number_is_read(tmp_path: Path) -> None:
    made = {
        kind: np.arange(6, dtype=kind).reshape(2, 3)
        for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        file_of({**made, "scalar": np.array(5.0), "empty": np.zeros((0, 3)), "no": np.array([True, False])})
    )
    found = {tensor.name: tensor for tensor in opened(path, keep=["f4"]).tensors}
    assert {found[kind].total for kind in made} == {15}
    assert all(tensor.is_finite for tensor in found.values())
    assert found["f4"].values is not None
    assert found["f4"].values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["scalar"].shape == ()
    assert found["empty"].size == 0
    brain = header({"b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, b"\x80\x3f\xc0\x7f")  # 1.0 and NaN
    path.write_bytes(brain)
    assert not opened(path).tensors[0].is_finite


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_small_floats_mean_what_torch_means_by_them(kind: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save

    small = torch.arange(256, dtype=torch.uint8).view(getattr(torch, kind))
    path = tmp_path / "model.safetensors"
    for named, finite in ((small, False), (small[:100], True)):
        path.write_bytes(save({"x": named.contiguous()}))
        [found] = opened(path, keep=["x"]).tensors
        assert found.values is not None
        np.testing.assert_array_equal(found.values[0], named.to(torch.float64).numpy())
        assert found.is_real
        assert found.is_finite is finite
    rows = torch.tensor([[1, 2, 4, 0.5, 8, 16, 1, 2, 4, 8, 2, 1, 64, 32, 16, 4, 2] * 2, [2.0] * 34])
    path.write_bytes(save({"x": rows.reshape(-1).to(small.dtype)}))
    assert opened(path, rows=Rows.of(rows.numpy())).tensors[0].data_rows == 1


def test_large_tensors_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = noise((1000, 7), 1)
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"w": values}))
    whole = opened(path, keep=["w"], rows=Rows.of(values[:10])).tensors[0]
    monkeypatch.setattr(inspection, "_BLOCK", 100)
    assert opened(path, keep=["w"], rows=Rows.of(values[:10])).tensors[0] == whole
    assert whole.data_rows == 10


# ---------------------------------------------------------------- manifests that cannot be read


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
        ({"pretrainnig": {}}, "pretrainnig", "'pretraining'"),
        ({"tuning": {"sauce": "public"}}, "tuning.sauce", "'source'"),
        ({"artifact": {"sha": "0"}}, "artifact.sha", "'sha256'"),
        ({"version": 2}, "version", "1, the version"),
        ({"version": None}, "version", "version = 1"),
        ({"version": True}, "version", "1, the version"),
        ({"kind": "model"}, "kind", "'weights'"),
        ({"state": {"retained": "everything"}}, "state.retained", "'dp_only'"),
        ({"state": {}}, "state", "a table with retained"),
        ({"state": "dp_only"}, "state", "a table"),
        ({"artifact": {"sha256": "XYZ"}}, "artifact.sha256", "64 hexadecimal"),
        ({"population": {"datapoints": 1.5}}, "population.datapoints", "whole number"),
        ({"population": {"delta": -1}}, "population.delta", "number > 0"),
        ({"label_space": {"source": "prior", "labels": [1]}}, "label_space.labels", "a list"),
        ({"charges": [{"event": {"kind": "gaussian"}}]}, "charges[0].event.noise_multiplier", ""),
        ({"charges": [{"scope": {}}]}, "charges[0]", "event"),
        ({"charges": [{"event": {"kind": "non_private"}, "evnt": 1}]}, "charges[0].evnt", "'event'"),
        ({"charges": {}}, "charges", "a list"),
        ({"mechanism": {"parameters": {}}}, "mechanism.name", "the name"),
    ],
)  # fmt: skip
def test_an_unknown_name_or_value_is_refused_with_the_nearest(change: dict[str, Any], path: str, said: str) -> None:
    document = {name: value for name, value in {**CLEAN, **change}.items() if value is not None}
    with pytest.raises(InvalidDocument) as problem:
        manifest_from(document)
    assert problem.value.argument.startswith(path.partition("[")[0])
    assert said in str(problem.value)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_manifest_is_a_table(document: Any) -> None:
    with pytest.raises(InvalidDocument, match="a table"):
        manifest_from(document)


def test_our_own_runs_need_not_say_what_our_own_program_does() -> None:
    mechanism = Mechanism(name="dp-sgd", proof_status="proved", adjacencies=("add_remove",))
    found = audit(Facts(is_ours=True, mechanism=mechanism, declared={"label_space": {"source": "prior"}}))
    assert codes(found) == {"tuning.undeclared", "artifact.unopened"}
