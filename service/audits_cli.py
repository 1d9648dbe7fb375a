"""`stint audits`: have mechanisms attacked on made-up rows, and see what came of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

#: How an audit ends that speaks against nothing.
_FINE = (("concluded", "consistent"), ("concluded", "inconclusive"))
_json_option = click.option("--json", "as_json", is_flag=True, help="Answer with JSON.")


@click.group()
def audits() -> None:
    """Empirical audits of mechanisms (docs/audits.md)."""


@audits.command("start")
@click.argument("population")
@click.argument("mechanism")
@click.argument("audit", required=False)
@click.option("--samples", type=int, help="Runs of each side, or canaries; as many as the audit takes, unless said.")
@click.option("--freeze", is_flag=True, help="A violation freezes the population as well.")
@click.option("--queue", default="default", show_default=True, help="Whose workers run it.")
@click.option("--wait", is_flag=True, help="Wait until it has ended: exit 1 if it found a violation, or nothing.")
@_json_option
def start(
    *,
    population: str,
    mechanism: str,
    audit: str | None,
    samples: int | None,
    freeze: bool,
    queue: str,
    wait: bool,
    as_json: bool,
) -> int:
    """Plan an audit of a mechanism; a worker runs it."""
    from service.cli import _client, _echo_json  # noqa: PLC0415 - it registers this module

    asked: dict[str, Any] = {"mechanism": mechanism, "audit": audit, "samples": samples, "queue": queue}
    if freeze:
        asked["on_violation"] = "freeze"
    with _client() as client:
        found = client.start_audit(population, **{name: value for name, value in asked.items() if value is not None})
        if not as_json:
            confidence = f"{found['confidence']:.6f}"
            click.echo(f"{found['id']}: audit {found['number']} of {population}, at confidence {confidence}.")
            click.echo(_would_see(found))
        if wait:
            with click.progressbar(length=found["samples"], label="samples", file=sys.stderr) as bar:
                found = client.wait_for_audit(found["id"], progress=lambda step, _: bar.update(step - bar.pos))
            if not as_json:
                _show(found)
    if as_json:
        _echo_json(found)
    return 1 if wait and (found["status"], found["verdict"]) not in _FINE else 0


@audits.command("list")
@click.option("--population", help="Of this one only.")
@_json_option
def list_audits(*, population: str | None, as_json: bool) -> None:
    """All audits, newest first."""
    from service.cli import _client, _echo_json  # noqa: PLC0415 - it registers this module

    with _client() as client:
        found = list(client.audits(population=population))
    if as_json:
        _echo_json(found)
    else:
        for each in found:
            click.echo(f"{each['id']}  {each['population']}  {each['mechanism']}: {each['audit']}  {_stands(each)}")


@audits.command("show")
@click.argument("audit")
@_json_option
def show(*, audit: str, as_json: bool) -> None:
    """What an audit came to."""
    from service.cli import _client, _echo_json  # noqa: PLC0415 - it registers this module

    with _client() as client:
        found = client.empirical_audit(audit)
    if as_json:
        _echo_json(found)
    else:
        _show(found)


def _would_see(found: Mapping[str, Any]) -> str:
    twin, needed = found["power"]["twin"], found["power"]["samples"]
    if needed is None:
        return f"At this confidence it would not show {twin}: unless it finds a violation, it will be inconclusive."
    if found["samples"] < needed:
        return f"It shows {twin} from {needed:,} samples on: with fewer it finds a violation or is inconclusive."
    return f"With {found['samples']:,} samples it shows {twin}."


def _show(found: Mapping[str, Any]) -> None:
    click.echo(f"{found['id']}: {_stands(found)}. {found['sentence']}")
    if (told := found["webhook"]) is not None:
        click.echo(f"Webhook {told['id']}: {told['status'].replace('_', ' ')}, {told['tries']} tries.")


def _stands(audit: Mapping[str, Any]) -> str:
    """Its verdict, or how far it is."""
    if audit["status"] != "running":
        return str(audit["verdict"] or audit["status"])
    done = audit["progress"]
    return f"running, {done['step']:,} of {done['steps']:,} samples"
