"""Commands for evidence: certificates, statements and reports, and how to check them offline.

To check a certificate takes its bytes and a public key: no service, no database, no network.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from service import settings as settings_module
from service.client import artifact_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from accountant.certificates import Verdict
    from service.client import Stint

_HEX_KEY: Final = re.compile(r"[0-9a-f]{64}")
_json_option = click.option("--json", "as_json", is_flag=True, help="Answer with JSON.")
_output = click.option(
    "--output", "-o", default="-", metavar="FILE", help="Where to; - is standard output.", show_default=True
)

_keys = click.option(
    "--key", "keys", multiple=True, metavar="PUBLIC",
    help="A public key that you trust: 64 hexadecimal digits, or a file with them or with PEM. May be repeated.",
)  # fmt: skip
_trusted_folder = click.option(
    "--data", type=click.Path(path_type=Path),
    help="Without --key, trust the installation in this folder (STINT_DATA; ./data), if there is one.",
)  # fmt: skip


def written(content: bytes, output: str) -> None:
    """Bytes to a file, or as they are to standard output."""
    if output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        Path(output).write_bytes(content)


@click.command()
@click.argument("release")
@_output
@_json_option
def certificate(*, release: str, output: str, as_json: bool) -> None:
    """The signed certificate of a release that was committed, or that expired into spent."""
    from service.cli import _client, _echo_json  # noqa: PLC0415 - it registers this module

    if as_json and output == "-":
        raise click.UsageError("--json needs a file to write to: --output FILE")
    with _client() as client:
        content = client.certificate(release)
    written(content, output)
    if as_json:
        _echo_json({"release": release, "file": output, "bytes": len(content)})
    elif output != "-":
        click.echo(f"{output}: {len(content):,} bytes. Anybody can check it: stint verify-certificate {output}")


@click.command("verify-certificate")
@click.argument("file", metavar="FILE|-")
@_keys
@click.option("--artifact", type=click.Path(), help="The file that the certificate should be about.")
@_trusted_folder
@_json_option
def verify_certificate(
    *, file: str, keys: tuple[str, ...], artifact: str | None, data: Path | None, as_json: bool
) -> int:
    """Check a certificate offline: exit 0 if it is genuine, 1 if it is broken or nobody trusted signed it.

    A certificate carries the key that it was signed with. That shows that nothing was changed, and not who signed: get
    the public key of an installation by another way; it stands in every checkpoint.
    """
    from accountant import certificates  # noqa: PLC0415
    from accountant.envelopes import MAX_BYTES  # noqa: PLC0415
    from service.cli import FINE, NOT_OK, _echo_json  # noqa: PLC0415
    from service.signing import is_signed  # noqa: PLC0415

    trusted = [_key(each) for each in keys] or _installed(data)
    if file == "-":
        given = sys.stdin.buffer.read(MAX_BYTES + 2)
    else:
        with Path(file).open("rb") as opened:
            given = opened.read(MAX_BYTES + 2)
    digest = None if artifact is None else str(artifact_of(artifact)["sha256"])
    verdict = certificates.verify(given, is_signed=is_signed, trusted=trusted, artifact_sha256=digest)
    if as_json:
        _echo_json(verdict.to_json())
    else:
        for line in _lines(verdict, checked_artifact=digest is not None):
            click.echo(line)
    return FINE if verdict.outcome == "genuine" else NOT_OK


def _lines(verdict: Verdict, *, checked_artifact: bool) -> list[str]:
    """A verdict for people."""
    shown = verdict.to_json()
    lines = [shown["text"], *(f"  {each['code']}: {each['message']}" for each in shown["reasons"])]
    if verdict.signer is not None:
        lines.append(f"Signed with the key {verdict.signer.hex()}.")
    said = shown["certificate"]
    if said is None:
        return lines
    release, guarantee, artifact = said["release"], said["guarantee"], said["artifact"]
    lines.append(f"Release {release['id']} of population {release['population']} ({release['status']}).")
    lines += [
        f"  {each['text']}: {each['of']}, if {each['condition']}."
        for each in (guarantee["release"], guarantee["lifelong"])
    ]
    if artifact is None:
        lines.append("  Nothing is known of what left the house.")
    else:
        compared = "which is the file's" if checked_artifact else "with which no file was compared"
        lines.append(f"  Artifact sha256 {artifact['sha256']}, {compared}.")
    found = [f"{each['code']} ({each['severity']}, {each['basis']})" for each in said["findings"]]
    lines.append(f"  {said['audit']['text']}")
    lines.append(f"  Findings: {', '.join(found)}." if found else "  Findings: none is recorded.")
    for each in said["violations"]:
        since = ", and a policy has lifted that" if each["lifted"] else ""
        lines.append(f"  Audit {each['audit']} found the promise of its mechanism false{since}.")
    return lines


def _key(given: str) -> bytes:
    """A public key as it was given: digits, or a file with digits or PEM."""
    from service.foreground import CouldNot  # noqa: PLC0415

    text = given.strip()
    if not _HEX_KEY.fullmatch(text) and Path(given).is_file():
        text = Path(given).read_text(encoding="ascii", errors="replace").strip()
    if _HEX_KEY.fullmatch(text):
        return bytes.fromhex(text)
    if text.startswith("-----BEGIN PUBLIC KEY-----"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

        with suppress(ValueError):
            loaded = load_pem_public_key(text.encode())
            if isinstance(loaded, Ed25519PublicKey):
                return loaded.public_bytes_raw()
    raise CouldNot(f"--key takes 64 hexadecimal digits, or a file with them or with an Ed25519 key as PEM: {given}")


def _installed(data: Path | None) -> list[bytes]:
    """The key of the installation in a folder; nothing is made where there is none."""
    from service import signing  # noqa: PLC0415
    from service.foreground import CouldNot  # noqa: PLC0415

    folder = data or settings_module.from_environment(os.environ).data
    if (folder / "secrets.json").exists():
        return [signing.load(folder).public_key]
    if data is not None:
        raise CouldNot(f"{data} holds no installation of Stint")
    return []


@click.command()
@click.argument("population")
@click.argument("ordinal", required=False, type=click.IntRange(min=0))
@click.option("--key", help="The datapoint's key instead of its ordinal; - reads it from standard input.")
@click.option("--format", "form", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
@_output
@_json_option
def statement(*, population: str, ordinal: int | None, key: str | None, form: str, output: str, as_json: bool) -> None:
    """What has been released about one person, in plain words, to hand to that person."""
    from service.cli import _client  # noqa: PLC0415

    if (ordinal is None) == (key is None):
        raise click.UsageError("Give either an ordinal or --key")
    if key == "-":
        key = sys.stdin.readline().rstrip("\n")
    with _client() as client:
        content = client.statement(population, ordinal=ordinal, key=key, form="json" if as_json else form)
    written(content, output)
    if output != "-":
        click.echo(f"{output}: {len(content):,} bytes")
    elif form != "text" or as_json:
        click.echo()


def report(
    client: Callable[[], Stint], about: str, *, since: str | None, until: str | None, form: str, output: str
) -> int:
    """Write a report on a population or a release; how many bytes it has."""
    is_release = re.fullmatch(r"rel_[0-9A-Z]{26}", about) is not None
    if is_release and (since is not None or until is not None):
        raise click.UsageError("A report on a release is of its whole life: leave out --from and --to")
    named = {"release": about} if is_release else {"population": about, "since": since, "until": until}
    with client() as opened:
        content = opened.report(form=form, **named)
    written(content, output)
    return len(content)


@click.command("verify-report")
@click.argument("file", metavar="REPORT.json|REPORT.html|-")
@_keys
@_trusted_folder
@_json_option
def verify_report(*, file: str, keys: tuple[str, ...], data: Path | None, as_json: bool) -> int:
    """Check offline that a report is the one that was signed: exit 0 if so, by a key that you trust.

    Of HTML, what is signed is inside; and the page must be what this version prints of it, or somebody may have changed
    what can be read there. Paper shows the digest that this command prints.
    """
    from accountant import envelopes  # noqa: PLC0415
    from accountant.errors import Refused  # noqa: PLC0415
    from service import printed  # noqa: PLC0415
    from service.cli import FINE, NOT_OK, _echo_json, _json_of  # noqa: PLC0415
    from service.signing import is_signed  # noqa: PLC0415

    trusted = [_key(each) for each in keys] or _installed(data)
    content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    page = content if content[:9].lower() == b"<!doctype" else None
    document = _json_of(content, file) if page is None else printed.carried_in(page)
    given = document if isinstance(document, dict) else {}
    try:
        opened = envelopes.open_document(
            given.get("report"),
            given.get("envelope"),
            predicate_type=envelopes.REPORT_TYPE,
            is_signed=is_signed,
            trusted=trusted,
        )
        _must_be_a_print(page, given)
    except Refused as refusal:
        answer = {"outcome": "broken", "reasons": [{"code": refusal.code, "message": refusal.message}], "signer": None}
        said = f"Broken: it proves nothing. {refusal.code}: {refusal.message}"
    else:
        outcome = "genuine" if opened.is_trusted else "consistent"
        digest = opened.subjects[0]["digest"]["sha256"]
        answer = {"outcome": outcome, "reasons": [], "signer": opened.signer.hex(), "sha256": digest}
        period = f"{opened.predicate.get('population')}, {opened.predicate.get('from')} to {opened.predicate.get('to')}"
        known = "" if opened.is_trusted else ", signer unknown"
        said = f"{outcome.capitalize()}{known}: the report on {period}, signed with the key {opened.signer.hex()}."
        said = f"{said}\nIts sha256 is {digest}."
    if as_json:
        _echo_json(answer)
    else:
        click.echo(said)
    return FINE if answer["outcome"] == "genuine" else NOT_OK


def _must_be_a_print(page: bytes | None, document: dict[str, Any]) -> None:
    """What can be read on a page must be what was signed; of JSON, that is one and the same."""
    from accountant.errors import Refused  # noqa: PLC0415
    from service import printed  # noqa: PLC0415

    if page is not None and not printed.is_print_of(page, "report", document):
        message = (
            "the page is not what this version prints of the report in it: it was changed, or is of another version"
        )
        raise Refused("page.other", message)


COMMANDS: Final[tuple[click.Command, ...]] = (certificate, verify_certificate, statement, verify_report)


def register(group: Any) -> None:
    """Add the commands of this module."""
    for command in COMMANDS:
        group.add_command(command)
