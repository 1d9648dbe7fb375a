"""What stands against a release, and what was looked at: nothing goes away because somebody did not look."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.audit import checklist
from accountant.audit.findings import RULES, finding_from
from accountant.audit.standing import IN_FILES, REPORTABLE, UNOPENED, against, findings_in, looked_at

A, B = "a" * 64, "b" * 64
WORDS = tuple(check.code for check in checklist.CHECKS if check.code not in IN_FILES)
EVERYTHING = tuple(RULES)


def found(*codes: str) -> list[dict[str, Any]]:
    return [{"code": code, "basis": "checked", "severity": RULES[code].severity} for code in codes]


def held(*codes: str, job: bool = False) -> dict[str, Any]:
    return {"kind": "release.held", "actor": "key_1", "findings": found(*codes)} | ({} if job else {"expires_at": "…"})


def committed(digest: str | None = A, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "release.committed", "actor": "key_1", **more}
    return body if digest is None else {**body, "artifact": {"sha256": digest}}


def audited(*codes: str, opened: str | None = None, checked: tuple[str, ...] | None = None) -> dict[str, Any]:
    looked = checked if checked is not None else WORDS if opened is None else EVERYTHING
    body = {"kind": "release.audited", "actor": "key_2", "findings": found(*codes), "checked": list(looked)}
    return body if opened is None else {**body, "artifact": {"sha256": opened}}


def reported(digest: str, *codes: str, own: tuple[str, ...] = (UNOPENED,)) -> dict[str, Any]:
    told = [each | {"basis": "attested"} for each in found(*codes)]
    report = {"artifact": {"sha256": digest}, "findings": told, "checked": sorted(REPORTABLE)}
    return {**audited(*own), "actor": "key_3", "reported": report}


def codes(*entries: dict[str, Any]) -> list[str]:
    return [each.code for each in against(entries).findings]


def looked(*entries: dict[str, Any]) -> Any:
    return looked_at(list(enumerate(entries, start=1)))


# ---------------------------------------------------------------- what stands


def test_words_that_are_looked_at_again_are_settled_and_others_are_not() -> None:
    assert codes(held("state.undeclared"), audited()) == []
    assert codes(held("state.undeclared"), audited(checked=("tuning.undeclared",))) == ["state.undeclared"]


def test_what_was_found_in_a_file_is_taken_back_only_by_whoever_opens_that_file_again() -> None:
    seen = [held(), committed(A), audited("artifact.batch_norm", "noise.repeatable", opened=A)]
    assert codes(*seen) == ["noise.repeatable", "artifact.batch_norm"]
    assert codes(*seen, audited(UNOPENED)) == ["noise.repeatable", "artifact.batch_norm"]
    assert codes(*seen, audited("artifact.digest", opened=B)) == [
        "noise.repeatable", "artifact.digest", "artifact.batch_norm",
    ]  # fmt: skip
    assert codes(*seen, audited("artifact.digest", opened=B), audited(opened=A)) == []
    assert codes(*seen, audited(opened=A)) == []


def test_what_was_found_beside_another_file_stays_since_that_may_be_gone() -> None:
    assert codes(held(), committed(A), audited("noise.repeated", opened=A), audited(opened=A)) == ["noise.repeated"]
    assert codes(held(), committed(A), audited("noise.repeated", opened=B), audited(opened=A)) == []


def test_what_a_client_found_stays_while_its_file_is_the_artifact() -> None:
    leak = "artifact.training_data"
    assert codes(held(), reported(A, leak)) == [leak]
    assert codes(held(), reported(A, leak), reported(A)) == [leak]  # the next may have looked with less
    assert codes(held(), reported(A, leak), committed(A), audited(UNOPENED), audited(opened=A)) == [leak]
    assert codes(held(), reported(A, leak), reported(B)) == []  # another file may be the artifact
    assert codes(held(), reported(A, leak), reported(B), committed(A)) == [leak]
    assert codes(held(), reported(A, leak), committed(B)) == [UNOPENED]
    [told] = against([held(), reported(A, leak)]).findings
    assert (told.by, told.basis, told.to_json()["by"]) == ("key_3", "attested", "key_3")
    assert finding_from(told.to_json()) == told
    assert [(each.code, each.by) for each in findings_in(reported(A, leak))] == [(UNOPENED, None), (leak, "key_3")]


_CODES = st.lists(st.sampled_from(sorted(REPORTABLE)), max_size=3)


@given(
    leak=st.sampled_from(sorted(REPORTABLE)),
    later=st.lists(
        st.one_of(
            st.builds(lambda found: audited(*found), st.lists(st.sampled_from(WORDS), max_size=3)),
            st.builds(lambda found, digest: reported(digest, *found), _CODES, st.sampled_from([A, B])),
            st.builds(lambda found: audited(*found, opened=B), _CODES),
        ),
        max_size=6,
    ),
    by_client=st.booleans(),
)
def test_a_finding_in_the_artifact_outlives_everybody_who_did_not_open_it(
    leak: str,
    later: list[dict[str, Any]],
    by_client: bool,  # noqa: FBT001
) -> None:
    first = reported(A, leak) if by_client else audited(leak, opened=A)
    assert leak in codes(held(), committed(A), first, *later)


# ---------------------------------------------------------------- what was looked at


@pytest.mark.parametrize(
    ("entries", "made", "opened_by", "text"),
    [
        ([held(), committed()], False, None, "Not audited: no file was opened; only what was declared was checked."),
        ([held(), audited(), committed()], True, None, "Nobody opened the artifact."),
        ([held(), committed(), audited(opened=A)], True, "service", "the service opened the artifact"),
        ([held(), committed(), audited(opened=B)], True, None, "Nobody opened the artifact."),
        ([held(), reported(A)], True, "client", "The service did not open the artifact; a client did"),
        ([held(), reported(A), committed(A)], True, "client", "a client did"),
        ([held(), reported(A), committed(B)], True, None, "Nobody opened the artifact."),
        ([held(), reported(A), committed(None)], True, None, "Nobody opened the artifact."),
        ([held(), committed(), reported(A), audited(opened=A)], True, "service", "the service opened the artifact"),
        ([held(job=True), committed(checked=EVERYTHING)], True, "worker", "made the artifact opened it"),
        ([held(job=True), committed()], None, None, "Not stated"),
        ([held(job=True)], False, None, "Not audited"),
    ],
)  # fmt: skip
def test_it_is_said_who_looked_and_at_what(
    entries: list[dict[str, Any]],
    made: bool | None,  # noqa: FBT001
    opened_by: str | None,
    text: str,
) -> None:
    seen = looked(*entries)
    assert (seen.made, seen.opened_by) == (made, opened_by)
    assert text in seen.text
    shown = seen.to_json()
    assert (shown["artifact_opened"], shown["text"]) == (opened_by is not None, seen.text)


def test_rules_that_were_checked_in_another_file_were_not_checked_in_the_artifact() -> None:
    assert set(looked(held(), committed(A), audited(opened=B)).checked) == set(WORDS)
    assert set(looked(held(), committed(A), audited(), audited(opened=A)).checked) == set(RULES)
    seen = looked(held(), reported(A), committed(A))
    assert (set(seen.checked), set(seen.reported), seen.entry) == (set(WORDS), set(REPORTABLE), 2)
    assert looked(held(), reported(A), committed(B)).reported == ()


def test_codes_of_another_version_are_kept_as_they_are() -> None:
    assert looked(held(), audited(checked=("state.raw", "no.longer"))).checked == ("state.raw", "no.longer")
