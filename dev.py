"""Runs, tests and measures Stint: `python3 dev.py run | test | bench`.

Standard library only. The first call makes `.venv` and installs the pinned versions of constraints.txt into
it; a stamp lets every later call start at once. Neither make nor ensurepip is needed, only a Python with pip.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

USAGE = """\
usage: python3 dev.py run [--port PORT] [--no-demo] ...
       python3 dev.py test [--quick | --full] [pytest arguments]
       python3 dev.py bench [name]

run    start the service with an embedded PostgreSQL and a demo population; Ctrl-C stops everything
test   format, lint, types, layers, then the tests; stops at the first that fails
         --quick   the inner loop: no slow tests, few random examples, no coverage
         --full    everything, with many random examples
bench  run one benchmark, or all of them"""

ROOT = Path(__file__).resolve().parent
OLDEST_PYTHON = (3, 11)
FOLDER = ".venv"
PAGES = "tests/dashboard"  # tests in a browser
MEASURED = ("accountant", "tests/accountant")  # what is measured for coverage, and the tests that cover it
EXTRA = "dev"  # of pyproject.toml: what the service, the checks and the benchmarks need, all of it
COVERAGE_PERCENT = 90
INSTALL_SECONDS = 15 * 60
TEST_SECONDS = 60 * 60  # 15 to 20 minutes on two cores; a machine that others slow down must not fail for it
FULL_TEST_SECONDS = 120 * 60

# Only what says where packages come from passes on to pip; PIP_TARGET, PIP_USER, PIP_NO_DEPS and their like
# would change what is installed, or where.
PASSED_TO_PIP = re.compile(
    "PIP_(CACHE_DIR|CERT|CLIENT_CERT|CONFIG_FILE|(DEFAULT_)?TIMEOUT|(EXTRA_)?INDEX_URL|FIND_LINKS"
    "|KEYRING_PROVIDER|NO_CACHE_DIR|NO_INDEX|PROXY|RETRIES|TRUSTED_HOST)"
)
# These would let another project's modules or settings in.
KEPT_FROM_ALL = frozenset({"PYTHONHOME", "PYTHONOPTIMIZE", "PYTHONPATH", "PYTHONWARNINGS", "VIRTUAL_ENV"})


class SetupError(Exception):
    """The environment cannot be made; the message is one sentence for the reader."""


class Step(NamedTuple):
    """One check of `dev.py test`."""

    name: str
    complaint: str
    command: Sequence[str]
    variables: Mapping[str, str] = {}
    again: Sequence[str] = ()  # what is run once more if tests failed, and says whether they do alone


def main(arguments: Sequence[str]) -> int:
    """Do what the first word says; 2 means that nothing was started."""
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if word in {"-h", "--help", "help"}:
        print(USAGE)
        return 0
    if word not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        python = prepare(ROOT)
    except SetupError as problem:
        print(f"dev.py: {problem}", file=sys.stderr)
        return 2
    return COMMANDS[word](python, rest)


def run(python: Path, arguments: Sequence[str]) -> int:
    """Become the service, so that a signal to this process reaches it and its exit code is this one's."""
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execve(python, [str(python), "-m", "service", "run", *arguments], clean_environment())


def bench(python: Path, arguments: Sequence[str]) -> int:
    """Run one benchmark, or all of them."""
    return _call([str(python), "-m", "benchmarks", *arguments])


def test(python: Path, arguments: Sequence[str]) -> int:
    """Run every check, cheapest first, and stop at the first that fails."""
    tiers = [word for word in ("--quick", "--full") if word in arguments]
    if len(tiers) > 1:
        print("dev.py: --quick and --full exclude each other.", file=sys.stderr)
        return 2
    tier = tiers[0].lstrip("-") if tiers else "default"
    pytest_arguments = [argument for argument in arguments if argument not in tiers]
    limit = FULL_TEST_SECONDS if tier == "full" else TEST_SECONDS
    return run_steps(steps(python, tier, pytest_arguments), limit_seconds=limit)


COMMANDS = {"run": run, "test": test, "bench": bench}


# The checks


def steps(python: Path, tier: str, pytest_arguments: Sequence[str]) -> list[Step]:
    """The checks of a tier ("quick", "default" or "full"), cheapest first."""
    module = (str(python), "-m")
    selection = {"quick": ["-m", "not slow and not full"], "default": ["-m", "not full"], "full": []}[tier]
    # The whole suite uses all cores, and the accountant is measured by its own tests: measuring takes time in others.
    # A selection starts sooner without either.
    measured = tier != "quick" and not pytest_arguments
    spread = ["-n", "auto", "--dist", "worksteal"]
    # The workers use all cores already; threads inside of them would wait for each other.
    variables = {"STINT_HYPOTHESIS": tier, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # A browser is driven by an event loop that stays with its process, where other tests could have none of theirs.
    # A machine that others slow down may reach a limit that a test waits for: what failed gets a second chance, alone.
    alone = ("--last-failed", "--last-failed-no-failures", "none", "-p", "no:xdist")
    pages = Step(
        "pages",
        "A page did not pass",
        (*module, "pytest", *selection, *spread, PAGES),
        variables,
        (*module, "pytest", *selection, *alone, PAGES),
    )
    accountant = Step(
        "accountant",
        f"The accountant's tests did not pass, or they cover less than {COVERAGE_PERCENT} % of its branches",
        (*module, "pytest", *selection, *spread, "--cov", f"--cov-fail-under={COVERAGE_PERCENT}", *MEASURED),
        variables,
    )
    elsewhere = [f"--ignore={folder}" for folder in (PAGES, *(MEASURED if measured else ()))]
    return [
        Step(
            "format",
            "Some files are not formatted (`ruff format` mends that)",
            (*module, "ruff", "format", "--check"),
        ),
        Step("lint", "ruff found fault with the code", (*module, "ruff", "check")),
        Step("types", "mypy found a type error", (*module, "mypy")),
        Step("layers", "An import crosses a layer", (str(python.with_name("lint-imports")), "--no-logo")),
        *([] if pytest_arguments else [pages]),
        *([accountant] if measured else []),
        Step(
            "tests",
            "The tests did not pass",
            (*module, "pytest", *selection, *(spread if measured else []), *(pytest_arguments or elsewhere)),
            variables,
            (*module, "pytest", *selection, *alone, *elsewhere) if measured else (),
        ),
    ]


def run_steps(checks: Sequence[Step], *, limit_seconds: float) -> int:
    """Run the checks in order, say how long each took, and stop at the first failure with one sentence."""
    started = time.monotonic()
    for step in checks:
        print(f"[{step.name}]", flush=True)
        step_started = time.monotonic()
        try:
            code = _call(step.command, step.variables, limit_seconds=started + limit_seconds - step_started)
            if code == 1 and step.again:  # tests ran to the end, and some failed
                print(f"[{step.name}] some failed, see above; those are run once more, one after the other", flush=True)
                code = _call(step.again, step.variables, limit_seconds=started + limit_seconds - time.monotonic())
        except subprocess.TimeoutExpired:
            print(f"[{step.name}] stopped: all checks together may take {limit_seconds / 60:g} minutes.")
            return 1
        print(f"[{step.name}] {time.monotonic() - step_started:.1f} s", flush=True)
        if code != 0:
            print(f"{step.complaint}; to run only this step: {_as_typed(step)}", flush=True)
            return 1
    print(f"All checks passed in {time.monotonic() - started:.1f} s.", flush=True)
    return 0


def _as_typed(step: Step) -> str:
    """The step as a line to paste into a shell, as short as the current folder allows."""
    here = Path.cwd() == ROOT
    words = [word.replace(f"{ROOT}{os.sep}", "") if here else word for word in step.command]
    settings = [f"{name}={value}" for name, value in step.variables.items()]
    return ("" if here else f"cd {shlex.quote(str(ROOT))} && ") + shlex.join([*settings, *words])


def _call(
    command: Sequence[str], variables: Mapping[str, str] | None = None, *, limit_seconds: float | None = None
) -> int:
    """Run a command of the environment at the root of the checkout."""
    return subprocess.run(
        command, cwd=ROOT, env=clean_environment() | dict(variables or {}), timeout=limit_seconds, check=False
    ).returncode


# The environment


def prepare(root: Path) -> Path:
    """The Python of the environment that holds just what this checkout asks for; made if it is missing."""
    if sys.version_info < OLDEST_PYTHON:
        wanted, found = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
        raise SetupError(f"Stint needs Python {wanted} or newer, and this is Python {found}.")
    folder = root / FOLDER
    python, stamp = folder / "bin" / "python", folder / "stint-installed"
    wanted_stamp = fingerprint(root)
    with _only_one(root / f"{FOLDER}.lock") as lock:
        if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted_stamp:
            return python
        pip = _find_pip()
        started = time.monotonic()
        print(f"Setting up {folder} (once; this takes a few minutes) ...", flush=True)
        # From scratch, since neither an interrupted nor an outdated environment can be trusted.
        stamp.unlink(missing_ok=True)
        try:
            venv.create(folder, clear=True, symlinks=True, with_pip=False)
        except OSError as problem:
            raise SetupError(f"{folder} cannot be made: {problem}.") from problem
        _install(pip, root, python, lock)
        stamp.write_text(wanted_stamp, encoding="utf-8")
        print(f"Set up in {time.monotonic() - started:.0f} s.", flush=True)
    return python


def fingerprint(root: Path) -> str:
    """Changes with anything that the environment depends on, and with nothing else."""
    import tomllib  # noqa: PLC0415 - an older Python has none, and must get as far as being told so

    try:
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise SetupError(f"The list of what to install cannot be read: {problem}.") from problem
    parts = [
        settings.get("build-system"),
        settings.get("project"),
        settings.get("tool", {}).get("hatch"),
        constraints,
        sys.version,
        str(root),
        EXTRA,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would bend the project's own environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEPT_FROM_ALL and (not name.startswith("PIP_") or PASSED_TO_PIP.fullmatch(name))
    }


def _find_pip() -> list[str]:
    """The command of a pip that can install into another environment: this Python's, or that of its base."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, str(base)):
        command = [python, "-m", "pip"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*command, "--version"], env=clean_environment(), capture_output=True, timeout=60, check=True
            )
            return command
    raise SetupError(
        f"{sys.executable} has no pip; install it (on Debian: apt-get install python3-pip) and call again."
    )


def _install(pip: Sequence[str], root: Path, python: Path, lock: int) -> None:
    """Install the checkout with its extra; pip's words go to a log and are shown only when it fails.

    pip inherits the lock, so that it stays locked while an orphaned pip is still at work.
    """
    log = python.parent.parent / "install.log"
    command = [*pip, "--python", str(python), "--disable-pip-version-check", "--no-input"]
    command += ["install", "--progress-bar", "off", "-c", "constraints.txt", "-e", f".[{EXTRA}]"]
    with log.open("w", encoding="utf-8") as out:
        try:
            subprocess.run(
                command,
                cwd=root,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                timeout=INSTALL_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired:
            raise SetupError(f"The install took over {INSTALL_SECONDS // 60} minutes; see {log}.") from None
        except subprocess.CalledProcessError:
            print(
                *log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:],
                sep="\n",
                file=sys.stderr,
            )
            raise SetupError(f"The install failed; pip's last words are above, all of them in {log}.") from None


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[int]:
    """Let one process at a time set up the environment; the others wait as long as an install may take."""
    give_up = time.monotonic() + INSTALL_SECONDS
    try:
        lock = path.open("w", encoding="utf-8")
    except OSError as problem:
        raise SetupError(f"The checkout cannot be written to: {problem}.") from problem
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise SetupError(f"Another process holds {path} and does not finish.") from None
                time.sleep(0.2)
        yield lock.fileno()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("dev.py: interrupted.", file=sys.stderr)
        sys.exit(130)
