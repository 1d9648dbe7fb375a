"""`stint audits`: have mechanisms attacked on made-up rows, and see what came of it."""

from __future__ import annotations

from typing import Any

import click

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
@_json_option
def start(
    *, population: str, mechanism: str, audit: str | None, samples: int | None, freeze: bool, queue: str, as_json: bool
) -> None:
    """Plan an audit of a mechanism; a worker runs it."""
    from service.cli import _client, _echo_json  # noqa: PLC0415 - it registers this module

    asked: dict[str, Any] = {"mechanism": mechanism, "audit": audit, "samples": samples, "queue": queue}
    if freeze:
        asked["on_violation"] = "freeze"
    with _client() as client:
        found = client.start_audit(population, **{name: value for name, value in asked.items() if value is not None})
    if as_json:
        _echo_json(found)
    else:
        click.echo(f"{found['id']}: audit {found['number']} of {population}, at confidence {found['confidence']:.6f}.")


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
            said = each["verdict"] or each["status"]
            click.echo(f"{each['id']}  {each['population']}  {each['mechanism']}: {each['audit']}  {said}")


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
        click.echo(f"{found['id']}: {found['verdict'] or found['status']}. {found['sentence']}")
