"""The command line: `stint run`, `stint price`, `stint verify`, …

Exit codes: 0 fine; 1 denied, not ok, or a problem that the service answered; 2 wrong use, or it could not run. An error
is one line on standard error. `--json` is for machines.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from accountant.errors import AccountantError
from service import audit_cli, audits_cli, evidence_cli
from service import settings as settings_module
from service.client import Denied, Document, Stint, StintError, Unreachable, artifact_of
from service.errors import WrongSecrets
from service.foreground import CouldNot, Foreground, database_problems

# What serves is imported where it is used: a price must not wait for a web server.
if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.database import Database

FINE, NOT_OK, COULD_NOT = 0, 1, 2
_PATIENCE_SECONDS: Final = 2.0
_PIECE: Final = 65_536
_FORMS: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
_Command = TypeVar("_Command", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the words say; the exit code."""
    try:
        answer = stint.main(
            args=None if arguments is None else list(arguments), prog_name="stint", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as problem:
        click.echo(problem.format_message(), err=True)
        return COULD_NOT
    except click.UsageError as problem:
        path = problem.ctx.command_path if problem.ctx else "stint"
        return _complain(f"{problem.format_message()} (see `{path} --help`)", COULD_NOT)
    except click.ClickException as problem:
        return _complain(problem.format_message(), COULD_NOT)
    except Unreachable as problem:
        return _complain(str(problem), COULD_NOT)
    except StintError as problem:
        detail = str(problem).rstrip(".")
        return _complain(f"{detail}. {problem.advice}".strip(), NOT_OK)
    except Denied as problem:
        return _complain(str(problem), NOT_OK)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has had enough
        return FINE
    except (CouldNot, WrongSecrets, AccountantError) as problem:
        return _complain(str(problem), COULD_NOT)
    except OSError as problem:
        named = f"{problem.filename}: " if problem.filename else ""
        return _complain(f"{named}{problem.strerror or problem}", COULD_NOT)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted.", 130)
    return answer if isinstance(answer, int) else FINE


def _complain(message: str, code: int) -> int:
    click.echo(f"stint: {' '.join(message.split())}", err=True)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="stint", message="%(version)s")
def stint() -> None:
    """A ledger of what was released about every datapoint, and a gate before the next release.

    Commands that talk to a service find it by STINT_URL (http://127.0.0.1:8000) and open it with STINT_KEY.
    """


# ---------------------------------------------------------------- what commands share


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Answer with JSON.")(command)


def _echo_json(document: object) -> None:
    click.echo(json.dumps(document, ensure_ascii=False))


def _client() -> Stint:
    if not os.environ.get("STINT_KEY", "").strip():
        raise CouldNot("there is no key: set STINT_KEY to one (the first start of the service prints an admin key)")
    try:
        return Stint(retry_seconds=_PATIENCE_SECONDS)
    except ValueError as problem:
        raise CouldNot(f"STINT_KEY: {problem}") from None


def _read_json(path: str) -> Any:
    return _json_of(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes(), path)


def _read_request(path: str, what: str) -> Document:
    """The fields of a request."""
    document = _read_json(path)
    if not isinstance(document, dict):
        raise CouldNot(f"{path} is not {what}: a JSON object is expected")
    if "idempotency_key" in document:
        raise CouldNot(f"idempotency_key is no field of {what}: it is given beside it, as --idempotency-key")
    return document


def _json_of(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as problem:
        shown = "standard input" if path == "-" else path
        raise CouldNot(f"{shown} is not JSON: {problem}") from None


def _parameters(pairs: Sequence[str]) -> Document:
    """`name=value` words; a value is read as JSON if it is JSON."""
    found: Document = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--parameter takes name=value, not {pair!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _settings(**given: Any) -> Settings:
    """The environment's settings, with what the command line says instead."""
    settings = settings_module.from_environment(os.environ)
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def _place(database: str | None, data: Path | None) -> Settings:
    """Which database a command without the service means: a folder that is named is nearer than DATABASE_URL."""
    settings = _settings(database_url=database, data=data)
    return replace(settings, database_url="") if data is not None and database is None else settings


def _must_have_a_database(settings: Settings) -> None:
    """Whoever has nothing to do without a service makes no house of its own in a wrong folder."""
    if not settings.database_url and not (settings.data / "postgres" / "PG_VERSION").exists():
        advice = "name its folder (STINT_DATA), or a server (DATABASE_URL)"
        raise CouldNot(f"{settings.data} holds no embedded PostgreSQL of Stint: {advice}")


@contextmanager
def _offline(database: str | None, data: Path | None) -> Iterator[Database]:
    """The database itself, beside or without the service."""
    from service.app import database_url  # noqa: PLC0415
    from service.store.database import Database  # noqa: PLC0415

    settings = _place(database, data)
    _must_have_a_database(settings)
    with database_problems(), database_url(settings) as url:
        opened = Database(url, settings)
        try:
            yield opened
        finally:
            opened.close()


# ---------------------------------------------------------------- serving


_host = click.option("--host", help="The address to listen on (STINT_HOST; 127.0.0.1).")
_port = click.option("--port", type=click.IntRange(0, 65535), help="The port (STINT_PORT; 8000); 0 takes a free one.")
_data = click.option("--data", type=click.Path(path_type=Path), help="The data folder (STINT_DATA; ./data).")


@stint.command()
@_host
@_port
@_data
@click.option("--demo/--no-demo", default=True, help="Make the demo population, unless it is there.")
@click.option("--worker/--no-worker", default=True, help="Run a worker beside the service, if torch is installed.")
@_json_option
def run(*, host: str | None, port: int | None, data: Path | None, demo: bool, worker: bool, as_json: bool) -> None:
    """Run everything: PostgreSQL (embedded, unless DATABASE_URL is set), the service, a worker, a demo population."""
    settings = _settings(host=host, port=port, data=data)
    if "STINT_LOG_LEVEL" not in os.environ:
        settings = replace(settings, log_level="WARNING")  # this terminal is for the address and the key
    Foreground(settings, demo=demo, worker=worker and _has_torch(), as_json=as_json).run()


@stint.command()
@_host
@_port
@_data
@_json_option
def serve(*, host: str | None, port: int | None, data: Path | None, as_json: bool) -> None:
    """Run the service, and nothing that was made up. It logs every request to standard error."""
    Foreground(_settings(host=host, port=port, data=data), demo=False, worker=False, as_json=as_json).run()


def _has_torch() -> bool:
    """Whether it is installed; it is not imported."""
    return find_spec("torch") is not None


@stint.command()
@click.option("--device", default="cpu", show_default=True, help="What it runs on: cpu, cuda, cuda:0 …")
@click.option("--queue", default="default", show_default=True, help="Whose jobs it takes.")
@click.option(
    "--data", "allowed", multiple=True, metavar="URI-PREFIX",
    help="Below what jobs may read data (STINT_INPUTS; ./data/inputs). May be given several times.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Stop when there is nothing left to do.")
@click.option("--seed", type=int, help="Repeatable noise, for tests: what is made then can never be committed.")
@click.option("--leashed", is_flag=True, hidden=True)
@_json_option
def worker(
    *, device: str, queue: str, allowed: Sequence[str], once: bool, seed: int | None, leashed: bool, as_json: bool
) -> None:
    """Run jobs. It needs the database and the secrets of the service (DATABASE_URL, STINT_DATA), and torch."""
    from service import logs  # noqa: PLC0415
    from service.placement import lacking, undriven  # noqa: PLC0415
    from service.schemas import DEVICE, QUEUE  # noqa: PLC0415
    from service.worker import Options, work  # noqa: PLC0415

    if not _has_torch():
        raise CouldNot("a worker needs torch: install Stint with its extra `trainers`")
    if not re.fullmatch(DEVICE, device):
        raise click.UsageError(f"--device takes cpu, cuda or cuda:0, not {device!r}")
    if not re.fullmatch(QUEUE, queue):
        raise click.UsageError(f"--queue takes a name that jobs can have: up to 24 of a-z, 0-9, _ and -, not {queue!r}")
    settings = _settings()
    readable = settings_module.located("--data", allowed) or settings.allowed_inputs
    problem = undriven(readable) or lacking(device=device, backbones=settings.backbones)
    if problem is not None:
        raise CouldNot(problem)
    _must_have_a_database(settings)
    logs.configure(settings.log_level if "STINT_LOG_LEVEL" in os.environ else "WARNING")
    options = Options(device=device, queue=queue, allowed=readable, once=once, seed=seed, leashed=leashed)
    with database_problems():
        work(settings, options, say=lambda line: _echo_json({"said": line}) if as_json else click.echo(line, err=True))


@stint.command()
@click.option("--database", metavar="URL", help="A PostgreSQL server (DATABASE_URL).")
@_data
@_json_option
def migrate(*, database: str | None, data: Path | None, as_json: bool) -> None:
    """Bring the database up to date, and stop."""
    from service.app import database_url  # noqa: PLC0415
    from service.store.database import migrate as bring_up_to_date  # noqa: PLC0415

    with database_problems(), database_url(_place(database, data)) as url:
        bring_up_to_date(url)
    if as_json:
        _echo_json({"migrated": True})
    else:
        click.echo("The database is up to date.")


@stint.command()
@_json_option
def demo(*, as_json: bool) -> None:
    """Make the demo population in a running service; what is there already is left alone."""
    from service import demo as made_up  # noqa: PLC0415

    with _client() as client, _bar("Demo", made_up.length(), shown=not as_json) as bar:
        steps = made_up.seed(client, progress=lambda done, _of: bar.update(done - bar.pos))
    if as_json:
        _echo_json({"population": made_up.POPULATION, "steps": steps})
    else:
        click.echo(f"Demo population: {made_up.POPULATION} ({steps} steps{'' if steps else ': it was there already'}).")


def _bar(label: str, length: int | None, *, shown: bool) -> Any:
    """A progress bar in a terminal; where the end is not known, or nobody looks, none."""
    hidden = length is None or not (shown and sys.stderr.isatty())
    return click.progressbar(length=length or 0, label=label, file=sys.stderr, hidden=hidden)


# ---------------------------------------------------------------- prices, without any service

_adjacency = click.option(
    "--adjacency", type=click.Choice(["add_remove", "replace_one"]), default="add_remove", show_default=True
)
_delta = click.option("--delta", type=float, default=1e-6, show_default=True)
_parameter = click.option("--parameter", "-p", "parameters", multiple=True, metavar="NAME=VALUE")


@stint.command()
@click.argument("event", required=False, metavar="[EVENT.json|-]")
@click.option("--mechanism", help="A mechanism of the catalog, instead of an event.")
@_parameter
@_delta
@_adjacency
@_json_option
def price(
    *,
    event: str | None,
    mechanism: str | None,
    parameters: Sequence[str],
    delta: float,
    adjacency: Any,
    as_json: bool,
) -> None:
    r"""What an event costs: bounds on ε by every engine. Needs no service.

    \b
    stint price run.json --delta 1e-5
    stint price --mechanism dp-sgd -p noise_multiplier=1.1 -p sampling_probability=0.01 -p steps=2000 -p clip_norm=1
    """
    from accountant.engines import ENGINES, account  # noqa: PLC0415
    from accountant.events import Composed, event_from_json  # noqa: PLC0415
    from trainers.catalog import mechanism as find_mechanism  # noqa: PLC0415

    if (event is None) == (mechanism is None):
        raise click.UsageError("Give either a file with an event (- is standard input) or --mechanism")
    if event is not None:
        if parameters:
            raise click.UsageError("--parameter belongs to --mechanism")
        asked = event_from_json(_read_json(event))
    else:
        quoted = find_mechanism(str(mechanism)).quote(_parameters(parameters), adjacency=adjacency)
        asked = Composed(events=tuple(each.event for each in quoted.charges))
    best = account(asked, delta=delta, adjacency=adjacency)
    engines = {name: engine(asked, delta, adjacency) for name, engine in ENGINES.items()}
    if as_json:
        _echo_json(
            {
                "delta": delta,
                "adjacency": adjacency,
                "epsilon_upper": _number(best.upper),
                "epsilon_lower": _number(best.lower),
                "engine": best.engine,
                "engines": {
                    name: {"upper": _number(each.upper), "lower": _number(each.lower), "remark": each.remark}
                    for name, each in engines.items()
                },
            }
        )
        return
    click.echo(f"ε ≤ {_up(best.upper)} at δ = {delta:g} ({adjacency}), by {best.engine}")
    for name, each in engines.items():
        bounds = f"{_down(each.lower)} ≤ ε ≤ {_up(each.upper)}" if math.isfinite(each.upper) else "no upper bound"
        click.echo(f"  {name:<12} {bounds}{'; ' + each.remark if each.remark else ''}")


def _up(value: float) -> str:
    """What may be promised rounds up."""
    return "∞" if math.isinf(value) else f"{math.ceil(value * 1e6) / 1e6:.6f}"


def _down(value: float) -> str:
    return "∞" if math.isinf(value) else f"{math.floor(value * 1e6) / 1e6:.6f}"


@stint.command()
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--sampling-probability", type=float, default=1.0, show_default=True)
@click.option("--steps", type=int, help="How many steps: the least noise is looked for.")
@click.option("--noise-multiplier", type=float, help="How much noise: the most steps are looked for.")
@_adjacency
@_json_option
def calibrate(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int | None,
    noise_multiplier: float | None,
    adjacency: Any,
    as_json: bool,
) -> None:
    """The least noise, or the most steps, with which DP-SGD keeps a promise. Needs no service."""
    from accountant import calibrate_noise_multiplier, calibrate_steps  # noqa: PLC0415

    promise: Document = {
        "epsilon": epsilon, "delta": delta, "sampling_probability": sampling_probability, "adjacency": adjacency,
    }  # fmt: skip
    if (steps is None) == (noise_multiplier is None):
        raise click.UsageError("Give either --steps or --noise-multiplier")
    if steps is not None:
        noise = calibrate_noise_multiplier(steps=steps, **promise)
        found: Document = {"noise_multiplier": float(noise), "steps": steps}
        sentence = f"noise_multiplier ≥ {math.ceil(noise * 1e6) / 1e6:.6f}"
    else:
        assert noise_multiplier is not None
        most = calibrate_steps(noise_multiplier=noise_multiplier, **promise)
        found = {"noise_multiplier": noise_multiplier, "steps": most}
        sentence = f"steps ≤ {most}"
    if as_json:
        _echo_json({**promise, **found})
    else:
        click.echo(f"{sentence} keeps ε ≤ {epsilon:g} at δ = {delta:g} ({adjacency})")


# ---------------------------------------------------------------- releases


def _proposal_options(command: _Command) -> _Command:
    for option in reversed(
        [
            click.argument("proposal", required=False, metavar="[PROPOSAL.json|-]"),
            click.option("--population"),
            click.option("--task"),
            click.option("--part"),
            click.option("--mechanism"),
            _parameter,
            click.option("--kind"),
            click.option("--on-exhausted", type=click.Choice(["deny", "trim"])),
            click.option("--hold-seconds", type=int),
        ]
    ):
        command = option(command)
    return command


def _proposal(proposal: str | None, given: Mapping[str, Any]) -> Document:
    """A file's proposal, with what the options say instead."""
    document = {} if proposal is None else _read_request(proposal, "a proposal")
    parameters, mechanism = given["parameters"], given["mechanism"]
    if mechanism is not None:
        document["mechanism"] = {"name": mechanism, "parameters": _parameters(parameters)}
    elif parameters:
        raise click.UsageError("--parameter belongs to --mechanism")
    for name in ("population", "task", "part", "kind", "on_exhausted", "hold_seconds"):
        if given[name] is not None:
            document[name] = given[name]
    if "population" not in document:
        raise click.UsageError("Name the --population, or give a file with a proposal")
    return document


def _show_decision(answer: Document, *, as_json: bool) -> int:
    decision = answer["decision"]
    admitted = decision["outcome"] == "admitted"
    if as_json:
        _echo_json(answer)
        return FINE if admitted else NOT_OK
    epsilon = decision["epsilon"]
    after = "∞" if epsilon["after"] is None else f"{epsilon['after']:.6g}"
    before = "∞" if epsilon["before"] is None else f"{epsilon['before']:.6g}"
    named = f"{answer['id']}: " if "id" in answer else "dry run: "
    left_out = f" ({decision['trimmed']:,} of {decision['datapoints']:,} left out)" if decision["trimmed"] else ""
    click.echo(
        f"{named}{decision['outcome']}, {decision['datapoints'] - decision['trimmed']:,} datapoints{left_out}, "
        f"highest ε {before} → {after} of {epsilon['budget']:g}"
    )
    if answer.get("expires_at"):
        click.echo(f"  held until {answer['expires_at']}; commit or void it before, or it counts as spent")
    for each in (*decision["reasons"], *decision["advice"]):
        click.echo(f"  {each['message']}")
        if "remedy" in each:
            click.echo(f"    {each['remedy']}")
    for finding in answer.get("findings", []):
        if finding["severity"] != "note" and all(finding["code"] != each["code"] for each in decision["reasons"]):
            click.echo(f"  {finding['severity']}: {finding['code']}: {finding['message']}")
    return FINE if admitted else NOT_OK


@stint.command()
@_proposal_options
@click.option("--idempotency-key", help="A name for this request: sent again under it, it has one effect.")
@_json_option
def propose(*, proposal: str | None, idempotency_key: str | None, as_json: bool, **given: Any) -> int:
    """Propose a release: held (exit 0) or denied (exit 1), and recorded either way."""
    document = _proposal(proposal, given)
    with _client() as client:
        return _show_decision(client.propose(idempotency_key=idempotency_key, **document), as_json=as_json)


@stint.command("dry-run")
@_proposal_options
@_json_option
def dry_run(*, proposal: str | None, as_json: bool, **given: Any) -> int:
    """What would be decided now; nothing is recorded."""
    document = _proposal(proposal, given)
    with _client() as client:
        return _show_decision(client.dry_run(**document), as_json=as_json)


@stint.command()
@click.argument("release")
@click.option("--artifact", type=click.Path(), help="The file that leaves the house; its digest is recorded.")
@click.option("--uri", help="Where it goes.")
@click.option("--reason", help="Why it is settled by hand; of a blocked mechanism, an officer says why it has left.")
@_json_option
def commit(*, release: str, artifact: str | None, uri: str | None, reason: str | None, as_json: bool) -> None:
    """It left the house: what was held is spent."""
    if uri is not None and artifact is None:
        raise click.UsageError("--uri belongs to --artifact")
    document = None if artifact is None else artifact_of(artifact, uri=uri)
    with _client() as client:
        _show_resolved(client.commit(release, artifact=document, reason=reason), as_json=as_json)


@stint.command()
@click.argument("release")
@click.option("--reason", required=True, help="Why nothing left the house; it is recorded.")
@_json_option
def void(*, release: str, reason: str, as_json: bool) -> None:
    """Nothing of it left the house: the hold is gone."""
    with _client() as client:
        _show_resolved(client.void(release, reason=reason), as_json=as_json)


def _show_resolved(answer: Document, *, as_json: bool) -> None:
    if as_json:
        _echo_json(answer)
    else:
        click.echo(f"{answer['id']}: {answer['status']} (entry {answer['entry']['number']} of {answer['population']})")


stint.add_command(audit_cli.audit)
stint.add_command(audits_cli.audits)


# ---------------------------------------------------------------- jobs


@stint.group()
def jobs() -> None:
    """Mechanisms that a worker runs under a hold."""


@jobs.command("submit")
@click.argument("job", metavar="JOB.json|-")
@click.option("--wait", is_flag=True, help="Wait until it is committed (exit 0), failed or cancelled (exit 1).")
@click.option("--idempotency-key", help="A name for this request: sent again under it, it has one effect.")
@_json_option
def submit_job(*, job: str, wait: bool, idempotency_key: str | None, as_json: bool) -> int:
    """Price a mechanism, hold its release and queue it (exit 0); denied, it is recorded, and is no job (exit 1)."""
    document = _read_request(job, "a job")
    with _client() as client:
        made = client.submit(idempotency_key=idempotency_key, **document)
        if not wait:
            if as_json:
                _echo_json(made.document)
            else:
                click.echo(f"{made.id}: queued, as release {made.release}")
            return FINE
        with _bar("Running", 100, shown=not as_json) as bar:
            made.wait(progress=lambda step, steps: bar.update(100 * step // max(1, steps) - bar.pos))
        return _show_job(made.document, as_json=as_json)


def _show_job(found: Document, *, as_json: bool) -> int:
    if as_json:
        _echo_json(found)
    else:
        click.echo(_job_line(found))
        if found["artifact"]:
            click.echo(f"  {found['artifact']['uri']}, sha256 {found['artifact']['sha256']}")
    return NOT_OK if found["status"] in {"failed", "cancelled"} else FINE


def _job_line(found: Document) -> str:
    progress, epsilon = found["progress"], found["epsilon"]["after"]
    left = progress["seconds_left"]
    return (
        f"{found['id']}: {found['status']}, {found['mechanism']['name']} on {found['population']}, "
        f"step {progress['step']:,} of {progress['steps']:,}"
        + (f", about {left:.0f} s left" if left is not None else "")
        + (f", highest ε {epsilon:.6g}" if epsilon is not None else "")
        + (f", {found['error']}" if found["error"] else "")
    )


@jobs.command("list")
@click.option("--population")
@click.option("--status", type=click.Choice(["queued", "running", "committed", "failed", "cancelled"]))
@_json_option
def list_jobs(*, population: str | None, status: str | None, as_json: bool) -> None:
    """All jobs, newest first."""
    with _client() as client:
        found = list(client.jobs(population=population, status=status))
    if as_json:
        _echo_json(found)
        return
    for each in found:
        click.echo(_job_line(each))


@jobs.command("show")
@click.argument("job")
@_json_option
def show_job(*, job: str, as_json: bool) -> None:
    """One job, and how it went."""
    with _client() as client:
        found, lines = client.job(job).document, client.job_lines(job)
    if as_json:
        _echo_json({**found, "lines": lines})
        return
    _show_job(found, as_json=False)
    for line in lines:
        click.echo(f"  {line['at']} {line['message']}")


@jobs.command("fetch")
@click.argument("job")
@click.option("--to", metavar="PATH", help="The file to write, or a folder for it (./RELEASE.safetensors).")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@_json_option
def fetch_artifact(*, job: str, to: str | None, force: bool, as_json: bool) -> None:
    """The artifact of a committed job, as a file that has the digest of the ledger."""
    with _client() as client:
        found = client.job(job)
        target = Path(to or ".")
        if to is None or target.is_dir():
            target /= f"{found.release}.safetensors"
        size = (found.document["artifact"] or {}).get("bytes")
        try:
            with _bar("Fetching", size, shown=not as_json) as bar:
                kept = found.download(target, overwrite=force, progress=lambda done, _of: bar.update(done - bar.pos))
        except FileExistsError:
            raise CouldNot(f"{target} is there already; --force writes over it") from None
    if as_json:
        _echo_json(kept)
    else:
        click.echo(f"{kept['file']}: {kept['bytes']:,} bytes, sha256 {kept['sha256']}")


@jobs.command("card")
@click.argument("job")
@_json_option
def show_card(*, job: str, as_json: bool) -> None:
    """The model card of a committed job: what was promised to whom, and how it was made."""
    with _client() as client:
        release = client.job(job).release
        if as_json:
            _echo_json(client.card(release))
        else:
            click.echo(client.card_text(release), nl=False)


@jobs.command("cancel")
@click.argument("job")
@_json_option
def cancel_job(*, job: str, as_json: bool) -> None:
    """Its release is voided, and nothing of it is published."""
    with _client() as client:
        found = client.job(job)
        found.cancel()
    if as_json:
        _echo_json(found.document)
    else:
        click.echo(_job_line(found.document))


# ---------------------------------------------------------------- populations and datapoints


@stint.command()
@_json_option
def populations(*, as_json: bool) -> None:
    """All populations and what was promised to them."""
    with _client() as client:
        found = list(client.populations())
    if as_json:
        _echo_json(found)
        return
    for each in found:
        click.echo(
            f"{each['name']}: {each['datapoints']:,} datapoints, {each['tasks']:,} tasks, "
            f"{each['releases']:,} releases, {each['status']}. Promise: {each['promise']['text']}"
        )


@stint.command()
@click.argument("population")
@click.argument("file", metavar="FILE.ndjson|FILE.csv|FILE.parquet|-")
@click.option("--format", "form", type=click.Choice(list(_FORMS)), help="If the name of the file does not say it.")
@_json_option
def register(*, population: str, file: str, form: str | None, as_json: bool) -> None:
    """Register datapoints by key: a line {"key": "…"} each, or CSV or Parquet with a column `key`.

    Sent again, a key is known.
    """
    ending = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}.get(
        Path(file).suffix.lower()
    )
    form = form or ("ndjson" if file == "-" else ending)
    if form is None:
        raise click.UsageError(f"Is {file} NDJSON, CSV or Parquet? Say it with --format")
    kind = _FORMS[form]
    source = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115 - closed below, unless it is not ours
    try:
        size = None if file == "-" else os.fstat(source.fileno()).st_size
        with _client() as client, _bar("Registering", size, shown=not as_json) as bar:

            def pieces() -> Iterator[bytes]:
                while piece := source.read(_PIECE):
                    yield piece
                    bar.update(len(piece))

            answer = client.register_stream(population, pieces(), content_type=kind)
    finally:
        if file != "-":
            source.close()
    if as_json:
        _echo_json(answer)
    else:
        click.echo(
            f"{answer['registered']:,} registered, {answer['known']:,} known before, {answer['returned']:,} returned; "
            f"{population} has {answer['datapoints']:,} datapoints"
        )


# ---------------------------------------------------------------- evidence


@stint.command()
@click.argument("names", metavar="[POPULATION]...", nargs=-1)
@click.option("--database", metavar="URL", help="Read this PostgreSQL itself, without the service.")
@click.option("--data", type=click.Path(path_type=Path), help="Read the embedded PostgreSQL of this folder itself.")
@_json_option
def verify(*, names: Sequence[str], database: str | None, data: Path | None, as_json: bool) -> int:
    """Rebuild populations from their logs, and compare; exit 1 if something does not agree.

    If none is named: all of them, and the log of keys.
    """
    if database is not None or data is not None:
        found = _verified_offline(names, database, data)
    else:
        with _client() as client:
            chosen = names or [each["name"] for each in client.populations()]
            found = [client.verify(name) for name in chosen] + ([] if names else [client.verify_keys()])
    if as_json:
        _echo_json(found)
    else:
        for each in found:
            cohorts = f" {each['cohorts']:,} cohorts," if "cohorts" in each else ""
            counted = f"{each['entries']:,} entries,{cohorts} {each['checkpoints']:,} checkpoints"
            called = each["population"] if "population" in each else f"The log of {each['log']}"
            click.echo(f"{called}: {'ok' if each['ok'] else 'NOT OK'}, {counted}")
            for line in [*each["problems"], *(f"Note: {note}" for note in each.get("notes", []))]:
                click.echo(f"  {line}")
        if not any("population" in each for each in found):
            click.echo("There is no population.")
    return FINE if all(each["ok"] for each in found) else NOT_OK


def _verified_offline(names: Sequence[str], database: str | None, data: Path | None) -> list[Document]:
    from sqlalchemy import text  # noqa: PLC0415

    from service import signing  # noqa: PLC0415
    from service.errors import Problem  # noqa: PLC0415
    from service.operations import evidence  # noqa: PLC0415

    folder = _settings(data=data).data  # its signing key, if it is here: that of the database may have been changed
    trusted = signing.load(folder).public_key if (folder / "secrets.json").exists() else None

    with _offline(database, data) as opened:
        with opened.transaction() as connection:
            known = connection.execute(text("SELECT name FROM population ORDER BY name")).scalars().all()
        try:
            found = [evidence.verify(opened, None, name, trusted=trusted) for name in names or known]
            return found + ([] if names else [evidence.verify_keys(opened, trusted=trusted)])
        except Problem as problem:
            raise StintError(problem.document("offline")) from None


@stint.command()
@click.argument("population", metavar="POPULATION|RELEASE")
@click.option(
    "--format", "form", type=click.Choice(["ndjson", "csv", "json", "html"]),
    help="ndjson (complete; the default) or csv; of a report json (signed; the default) or html.",
)  # fmt: skip
@click.option("--report", is_flag=True, help="A report for a period, or on one release, instead of the ledger.")
@click.option(
    "--from", "since", metavar="TIME", help="Where the period of a report begins: 2026-01-01, or with a time."
)
@click.option("--to", "until", metavar="TIME", help="Where it ends; now, if left out.")
@click.option("--output", "-o", default="-", metavar="FILE", help="Where to; - is standard output.", show_default=True)
@_json_option
def export(
    *, population: str, form: Any, report: bool, since: str | None, until: str | None, output: str, as_json: bool
) -> None:
    """The whole ledger of a population as a file, or a report on a population or a release.

    NDJSON is complete; CSV is for reading.
    """
    if as_json and output == "-":
        raise click.UsageError("--json needs a file to export to: --output FILE")
    form = form or ("json" if report else "ndjson")
    if (form in {"json", "html"}) is not report:
        raise click.UsageError("ndjson and csv are forms of the ledger, json and html of a --report")
    if report:
        written = evidence_cli.report(_client, population, since=since, until=until, form=form, output=output)
        _show_exported(population, form, output, written, as_json=as_json)
        return
    if since is not None or until is not None:
        raise click.UsageError("--from and --to belong to --report")
    written = 0
    with _client() as client, client.export(population, form=form) as pieces:
        target = sys.stdout.buffer if output == "-" else Path(output).open("wb")  # noqa: SIM115 - closed below
        try:
            for piece in pieces:
                target.write(piece)
                written += len(piece)
            target.flush()
        finally:
            if output != "-":
                target.close()
    _show_exported(population, form, output, written, as_json=as_json)


def _show_exported(population: str, form: str, output: str, written: int, *, as_json: bool) -> None:
    if as_json:
        _echo_json({"population": population, "format": form, "file": output, "bytes": written})
    elif output != "-":
        click.echo(f"{output}: {written:,} bytes")


# ---------------------------------------------------------------- keys


@stint.group()
def keys() -> None:
    """Who may come in."""


@keys.command("create")
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, required=True,
    type=click.Choice(["pipeline", "officer", "auditor", "worker", "admin"]),
)  # fmt: skip
@click.option("--days", type=float, help="After so many days it opens nothing.")
@click.option("--reason", help="Kept in the log of keys.")
@click.option("--database", metavar="URL", help="Write into this PostgreSQL itself: for whoever lost the admin key.")
@click.option("--data", type=click.Path(path_type=Path), help="The same, for the embedded PostgreSQL of this folder.")
@_json_option
def create_key(
    *,
    name: str,
    roles: Sequence[str],
    days: float | None,
    reason: str | None,
    database: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """A new key; its secret is shown this once."""
    if database is not None or data is not None:
        from service.operations import keys as key_operations  # noqa: PLC0415

        with _offline(database, data) as opened:
            made = key_operations.create(opened, name=name, roles=roles, expires_in_days=days, reason=reason)
    else:
        with _client() as client:
            made = client.create_key(name, roles=roles, expires_in_days=days, reason=reason)
    if as_json:
        _echo_json(made)
    else:
        click.echo(f"{made['secret']}\n  {made['id']}, {', '.join(made['roles'])}. The secret is shown this once.")


@keys.command("list")
@_json_option
def list_keys(*, as_json: bool) -> None:
    """All keys, without their secrets."""
    with _client() as client:
        found = client.keys()
    if as_json:
        _echo_json(found)
        return
    for each in found:
        state = "revoked" if each["revoked"] else f"until {each['expires_at']}" if each["expires_at"] else "valid"
        used = f"last used {each['last_used_at']}" if each["last_used_at"] else "never used"
        click.echo(f"{each['id']}  {each['prefix']}…  {each['name']}  {', '.join(each['roles'])}  {state}  {used}")


@keys.command("revoke")
@click.argument("key")
@click.option("--reason", help="Kept in the log of keys.")
@_json_option
def revoke_key(*, key: str, reason: str | None, as_json: bool) -> None:
    """Within two seconds this key opens nothing any more."""
    with _client() as client:
        client.revoke_key(key, reason=reason)
    if as_json:
        _echo_json({"id": key, "revoked": True})
    else:
        click.echo(f"{key} is revoked.")


evidence_cli.register(stint)
