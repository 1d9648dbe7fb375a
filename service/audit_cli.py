"""`stint audit`: the gate before a release, for CI. Offline it needs a manifest and a file, and nothing that runs.

Exit codes: 0 clean; 1 findings, or denied; 2 it could not run.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from accountant.audit.findings import (
    DEFAULT_VERDICTS,
    SEVERITIES,
    Finding,
    Severity,
    denying,
    finding_from,
    verdicts_of,
)
from accountant.audit.manifests import Manifest, manifest_from
from accountant.errors import AccountantError
from service.client import Stint, StintError
from service.findings_formats import FORMATS, Report, at_least
from service.foreground import CouldNot

if TYPE_CHECKING:
    from accountant.audit.contents import Contents
    from accountant.book import Book
    from trainers.row_copies import Rows

MAX_MANIFEST: Final = 1 << 24
MAX_LEDGER: Final = 1 << 32
_PATIENCE_SECONDS: Final = 2.0
_MOST_TOLD: Final = 200  # findings that a service takes in one audit
_POLICY: Final = ("accepts", "findings")

_file = click.Path(path_type=Path)


@click.command()
@click.argument("manifest", type=_file, metavar="[MANIFEST.toml|MANIFEST.json]", required=False)
@click.option("--artifact", type=_file, help="The file that is to leave the house; it is opened and never run.")
@click.option(
    "--release",
    metavar="REL",
    help="Have the service audit this release too, and record what is found in --artifact (STINT_URL, STINT_KEY).",
)
@click.option(
    "--no-record", is_flag=True, help="Do not tell the service what is found in --artifact: then no ledger has it."
)
@click.option(
    "--dry-run", is_flag=True, help="Have the service decide on the manifest as a proposal; nothing is recorded."
)
@click.option(
    "--ledger", type=_file, help="An export of the population's ledger (NDJSON), for checks without a service."
)
@click.option("--policy", type=_file, help="A policy as TOML or JSON: `accepts`, and `findings` that deny or allow.")
@click.option(
    "--labels", type=_file, help="The prior or released label set: a JSON list, or a label release's artifact."
)
@click.option("--earlier", type=_file, multiple=True, help="An earlier release's file, to compare noise with.")
@click.option("--public", type=_file, multiple=True, help="A public safetensors file, such as a frozen backbone's.")
@click.option("--rows", type=_file, help="Private rows (.npy, .npz, .safetensors) that must not be in the artifact.")
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), default="warning", show_default=True, help="Exit 1 from here on."
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="human", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--output", "-o", default="-", metavar="FILE", show_default=True, help="Where to; - is standard output.")
def audit(
    *,
    manifest: Path | None,
    artifact: Path | None,
    release: str | None,
    no_record: bool,
    dry_run: bool,
    ledger: Path | None,
    policy: Path | None,
    labels: Path | None,
    earlier: Sequence[Path],
    public: Sequence[Path],
    rows: Path | None,
    fail_on: Severity,
    form: str,
    as_json: bool,
    output: str,
) -> int:
    r"""Check a release before it leaves: exit 0 clean, 1 findings or denied, 2 it could not run.

    \b
    stint audit manifest.toml --artifact model.safetensors
    stint audit manifest.toml --artifact model.safetensors --format sarif --output findings.sarif
    stint audit --release rel_01J… --artifact model.safetensors
    """
    if manifest is None and release is None:
        raise click.UsageError("Give a manifest, or a --release of a service")
    if dry_run and manifest is None:
        raise click.UsageError("--dry-run proposes a manifest: give one")
    if as_json and form not in {"human", "json"}:
        raise click.UsageError(f"--json and --format {form} exclude each other")
    if rows is not None and artifact is None:
        raise click.UsageError("--rows are looked for in an --artifact: give one")
    if no_record and (artifact is None or release is None):
        raise click.UsageError("--no-record keeps what is found in an --artifact from a --release: give both")
    report = _audited(
        manifest,
        artifact=artifact,
        release=release,
        is_recorded=not no_record,
        dry_run=dry_run,
        ledger=ledger,
        policy=policy,
        labels=labels,
        earlier=earlier,
        public=public,
        rows=rows,
        fail_on=fail_on,
    )
    written = FORMATS["json" if as_json else form](report)
    if output == "-":
        click.echo(written, nl=False)
    else:
        Path(output).write_text(written, encoding="utf-8")
    return 0 if report.is_clean else 1


def _audited(
    manifest: Path | None,
    *,
    artifact: Path | None,
    release: str | None,
    is_recorded: bool,
    dry_run: bool,
    ledger: Path | None,
    policy: Path | None,
    labels: Path | None,
    earlier: Sequence[Path],
    public: Sequence[Path],
    rows: Path | None,
    fail_on: Severity,
) -> Report:
    from accountant.audit import checklist  # noqa: PLC0415 - scipy need not be loaded to say how this is used
    from service import pre_release  # noqa: PLC0415

    said = None if manifest is None else manifest_from(_document(manifest))
    book = None if ledger is None else _book(ledger)
    rules = _policy(policy)
    verdicts: Mapping[str, str] = {**(DEFAULT_VERDICTS if book is None else book.policy.findings), **rules["findings"]}
    findings, checked, reasons = list[Finding](), list[str](), list[Mapping[str, Any]]()
    contents: Contents | None = None
    is_told = False
    if said is not None or artifact is not None:
        facts = pre_release.from_manifest(
            said or Manifest(),
            artifact=None if artifact is None else _existing(artifact),
            book=book,
            labels=None if labels is None else _labels(labels),
            accepts=rules["accepts"],
            earlier=[_readable(path) for path in earlier],
            public=[_readable(path) for path in public],
            rows=None if rows is None else _rows(rows),
        )
        # Without a manifest nobody had a chance to say anything: only what the file shows counts.
        codes = None if said is not None else _of_files(checklist.CHECKS)
        audited = checklist.audit(facts, codes=codes)
        findings, checked, contents = list(audited.findings), list(audited.checked), facts.contents
    if release is not None or dry_run:
        with _client() as client:
            if release is not None:
                told = None if contents is None or not is_recorded else _found(contents, findings, checked)
                answer = _answer(client, release, told)
                is_told = answer["reported"] is not None
                findings += _only_theirs(answer, findings, is_opened=artifact is not None)
                checked += [code for code in answer["checked"] if code not in checked]
                if contents is not None and answer["committed"] is not None:
                    findings += _digest(contents, answer["committed"]["sha256"], release)
                if book is None:
                    verdicts = {**answer["policy"]["findings"], **rules["findings"]}
            if dry_run:
                assert said is not None
                decision = client.dry_run(**_proposal(said))["decision"]
                reasons = decision["reasons"] if decision["outcome"] == "denied" else []
    denied = denying(findings, verdicts)
    failing = [each for each in at_least(findings, fail_on) if verdicts.get(each.code) != "allow"]
    failing += [each for each in denied if each not in failing]
    return Report(
        manifest=str(manifest) if manifest is not None else str(release),
        artifact=None if artifact is None else str(artifact),
        findings=findings,
        failing=failing,
        denied=denied,
        checked=checked,
        reasons=reasons,
        is_told=is_told,
    )


def _of_files(checks: Sequence[Any]) -> list[str]:
    """The rules on what a file shows. Which layer is the head is for a manifest to say."""
    codes = [each.code for each in checks if each.code.startswith(("artifact.", "noise."))]
    return [code for code in codes if code != "artifact.head_unknown"]


def _only_theirs(answer: Mapping[str, Any], mine: Sequence[Finding], *, is_opened: bool) -> list[Finding]:
    """What the service found and was not found here; that it had no file is no matter if there is one here."""
    theirs = [finding_from(each) for each in answer["findings"]]
    known = [(each.code, each.evidence) for each in mine]
    return [
        each
        for each in theirs
        if (each.code, each.evidence) not in known and not (is_opened and each.code == "artifact.unopened")
    ]


def _digest(contents: Contents, recorded: str, release: str) -> list[Finding]:
    from accountant.audit.findings import RULES  # noqa: PLC0415

    if contents.sha256 == recorded:
        return []
    where = f"release {release}"
    return [RULES["artifact.digest"].found("checked", found=contents.sha256, where=where, expected=recorded)]


# ---------------------------------------------------------------- what it is given


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CouldNot(f"{path}: there is no such file")
    return path


def _readable(path: Path) -> Path:
    """A file to compare with: one that nobody can read would make the comparison an empty one."""
    from trainers.inspection import is_readable  # noqa: PLC0415

    if not is_readable(_existing(path)):
        raise CouldNot(f"{path} is no safetensors file that can be read: there is nothing to compare with")
    return path


def _document(path: Path) -> Any:
    """A TOML or JSON file, by its ending or, for others, by trying."""
    if _existing(path).stat().st_size > MAX_MANIFEST:
        raise CouldNot(f"{path} is larger than 16 MiB")
    text = path.read_bytes()
    is_json = path.suffix.lower() == ".json" or (path.suffix.lower() != ".toml" and text.lstrip()[:1] == b"{")
    try:
        return json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text.decode())
    except (ValueError, RecursionError) as problem:
        raise CouldNot(f"{path} is not {'JSON' if is_json else 'TOML'}: {problem}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _policy(path: Path | None) -> dict[str, Any]:
    """The rules of a policy that an audit goes by."""
    document = {} if path is None else _document(path)
    if not isinstance(document, dict):
        raise CouldNot(f"{path} is not a policy: a table with {' and '.join(_POLICY)} is expected")
    findings, accepts = document.get("findings", {}), document.get("accepts")
    if not isinstance(findings, dict):
        raise CouldNot(f"{path}: findings is a table from severities and codes to deny or allow")
    known = ("proved", "claimed", "refuted")
    if accepts is not None and (not isinstance(accepts, list) or not accepts or not set(accepts) <= set(known)):
        raise CouldNot(f"{path}: accepts is a list of {', '.join(known)}")
    return {"findings": verdicts_of(findings), "accepts": accepts}


def _labels(path: Path) -> list[str]:
    from service.pre_release import labels_in  # noqa: PLC0415

    found = labels_in(_existing(path))
    if found is None:
        raise CouldNot(f"{path} tells no labels: a JSON list or the artifact of a label release is expected")
    return found


def _book(path: Path) -> Book:
    """The book of an exported ledger, whose hashes were followed from its first entry to its last."""
    from accountant.book import replay  # noqa: PLC0415
    from accountant.canonical import canonical  # noqa: PLC0415
    from accountant.chain import Link  # noqa: PLC0415

    if _existing(path).stat().st_size > MAX_LEDGER:
        raise CouldNot(f"{path} is larger than 4 GiB")

    def entries() -> Any:
        with path.open("rb") as lines:
            for line in lines:
                each = json.loads(line)
                link = Link(
                    number=each["number"], previous=bytes.fromhex(each["previous"]), hash=bytes.fromhex(each["hash"])
                )
                last.append(link)
                del last[:-1]
                yield link, canonical(each["body"])

    last: list[Link] = []
    try:
        book = replay(entries())
    except (ValueError, KeyError, TypeError, AccountantError, RecursionError) as problem:
        raise CouldNot(f"{path} is no export of a ledger: {problem}") from None
    if book.chain.link != last[0]:
        raise CouldNot(f"{path}: the hash of its last entry does not follow from its entries")
    return book


def _rows(path: Path) -> Rows:
    """All arrays of a file as rows that must not leave."""
    import numpy as np  # noqa: PLC0415

    from trainers import columns  # noqa: PLC0415
    from trainers.row_copies import Rows  # noqa: PLC0415

    size = _existing(path).stat().st_size

    def opened() -> Any:
        return path.open("rb")

    try:
        match path.suffix.lower():
            case ".npy":
                found: Any = columns.npy({"x": (opened, path, size)})
                taken = found.take(["x"], None)["x"].values
            case ".safetensors":
                found = columns.safetensors(opened, path, size)
                taken = found.take(["x"], None)["x"].values
            case ".npz":
                taken = columns.Archive(opened).take(["x"], None)["x"].values
            case _:
                raise CouldNot(f"{path}: rows are .npy, or an array x in .npz or .safetensors")
    except (columns.DataProblem, OSError, ValueError, KeyError) as problem:
        raise CouldNot(f"{path} has no array x of rows that can be read: {problem}") from None
    rows = Rows.of(np.asarray(taken))
    if not rows.are_told:
        raise CouldNot(f"{path} has no row that could be told from others: each is one number, again and again")
    return rows


# ---------------------------------------------------------------- the service


def _client() -> Stint:
    if not os.environ.get("STINT_KEY", "").strip():
        raise CouldNot("there is no key: set STINT_KEY to one with the role pipeline, officer or auditor")
    try:
        return Stint(retry_seconds=_PATIENCE_SECONDS)
    except ValueError as problem:
        raise CouldNot(f"STINT_KEY: {problem}") from None


def _found(contents: Contents, findings: Sequence[Finding], checked: Sequence[str]) -> dict[str, Any]:
    """What was found in a file, for a service that does not have it: the first of every rule, then the others."""
    from accountant.audit.standing import REPORTABLE  # noqa: PLC0415

    told = [each for each in findings if each.code in REPORTABLE]
    firsts = list({each.code: each for each in reversed(told)}.values())
    told = [*firsts, *(each for each in told if each not in firsts)]
    return {
        "sha256": contents.sha256,
        "bytes": contents.bytes,
        "checked": [code for code in checked if code in REPORTABLE],
        "findings": [{"code": each.code, "evidence": dict(each.evidence)} for each in told[:_MOST_TOLD]],
    }


def _answer(client: Stint, release: str, told: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the service finds. A file that is not the artifact is told of here, and nowhere recorded."""
    try:
        return client.audit(release, found=told)
    except StintError as problem:
        if told is None or (problem.name, problem.problem.get("field")) != ("conflict", "found.sha256"):
            raise
        return client.audit(release)


def _proposal(said: Manifest) -> dict[str, Any]:
    """A manifest as a proposal."""
    from accountant.events import event_to_json  # noqa: PLC0415

    if "name" not in said.population:
        raise CouldNot("--dry-run needs the population's name: population.name in the manifest")
    proposal: dict[str, Any] = {"population": said.population["name"], **said.declared}
    proposal |= {name: value for name in ("unit", "adjacency") if (value := getattr(said, name)) is not None}
    if said.mechanism is not None:
        proposal["mechanism"] = dict(said.mechanism)
        if said.task is not None:
            proposal["task"] = said.task
        return proposal
    if not said.charges:
        raise CouldNot("--dry-run needs a mechanism, or charges")
    proposal["kind"] = said.kind
    charges = []
    for place, (event, scope) in enumerate(zip(said.charges, said.scopes, strict=True)):
        on = scope if scope is not None else None if said.task is None else {"task": said.task}
        if on is None:
            raise CouldNot(f"--dry-run needs to know whom charges[{place}] touches: scope, or task for all")
        charges.append({"scope": dict(on), "event": event_to_json(event)})
    return proposal | {"charges": charges}
