"""Python imports this at its start if its folder is in PYTHONPATH: it plants what the words of PLANTED say.

crash           a mechanism fails with its first row in the text of the exception, and says it aloud as well
embed           a mechanism keeps rows of the data beside its weights
quiet           a mechanism uses an eighth of the noise that it was told to
gate=FILE       a mechanism waits after its first step until the file is there
late=FILE       an attempt waits after it has staged everything until the file is there
hungry=FILE     a mechanism takes memory until there is no more: Python's if the file is not there yet, then torch's
unchecked=away  the worker finds no database when it would first check what was made; unchecked=fault: it never can
die=commit      the worker kills itself (-9) when it would commit; die=publish: when it has committed
outage=FOLDER   the worker writes the number of its database process to `reached` in the folder when it is about to
                commit a release, everything but that done, and goes on when `go` is there; once
begun=FOLDER    the worker puts `reached` into the folder when it has begun an attempt, and goes on when `go` is there;
                prepared=FOLDER: when it would prepare it; checked=FOLDER: when it would check what was made;
                written=FOLDER: when a commit is written, and not yet durable; staging=FOLDER: so does an attempt that
                has staged its first file but for the end of it
pause=commit    the worker stops itself when it would commit, until somebody wakes it; pause=decision: within the
                transaction that would, with its population locked
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

PLANTED = dict(word.partition("=")[::2] for word in os.environ.get("PLANTED", "").split())


def _in_mechanism(module: Any) -> None:
    run = module.run

    def planted(given: Any) -> Any:
        if "crash" in PLANTED:
            sys.stdout.write(f"aloud {given.rows[0].x[0].tolist()}")
            raise RuntimeError(f"near {given.rows[0].x[0].tolist()} of {given.rows[0].y[0]}")
        if "hungry" in PLANTED:
            _eat(Path(PLANTED["hungry"]))

        def progress(done: int, of: int) -> None:
            given.progress(done, of)
            while "gate" in PLANTED and done == 1 and not Path(PLANTED["gate"]).exists():
                time.sleep(0.01)

        if "quiet" in PLANTED:
            parameters = {**given.parameters, "noise_multiplier": given.parameters["noise_multiplier"] / 8}
            given = replace(given, parameters=parameters)
        made = run(replace(given, progress=progress))
        if "embed" in PLANTED:
            import torch

            return replace(made, tensors={**made.tensors, "memory.x": torch.from_numpy(given.rows[0].x[:2].copy())})
        return made

    module.run = planted


def _eat(file: Path) -> None:
    """Little by little, so that not much is left for whoever hears of it; with nothing at all, C++ would abort."""
    import resource

    import torch

    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + 2**27, has + 2**27))
    first, eaten = not file.exists(), list[object]()
    file.touch()
    while first:
        eaten.append(bytearray(2**12))
    while True:
        eaten.append(torch.empty(2**20, dtype=torch.uint8))


def _in_artifacts(module: Any) -> None:
    write, save_file = module.write, module.save_file

    def unfinished(tensors: Any, path: Path, **named: Any) -> None:
        save_file(tensors, path, **named)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])  # the last of its numbers is not whole
        _wait(Path(PLANTED["staging"]))
        path.write_bytes(whole)

    if "staging" in PLANTED:
        module.save_file = unfinished

    def planted(*arguments: Any, **named: Any) -> Any:
        made = write(*arguments, **named)
        while "late" in PLANTED and not Path(PLANTED["late"]).exists():
            time.sleep(0.01)
        return made

    module.write = planted


def _in_worker(module: Any) -> None:
    def fall(number: int) -> Callable[..., Any]:
        def fallen(*_: object, **__: object) -> None:
            os.kill(os.getpid(), number)

        return fallen

    def before(function: Callable[..., Any], strike: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*arguments: Any, **named: Any) -> Any:
            strike()
            return function(*arguments, **named)

        return struck

    def after(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
        def waiting(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            _wait(folder)
            return found

        return waiting

    match PLANTED:
        case {"die": "commit"}:
            module.jobs.commit = before(module.jobs.commit, fall(signal.SIGKILL))
        case {"pause": "commit"}:
            module.jobs.commit = before(module.jobs.commit, fall(signal.SIGSTOP))
        case {"pause": "decision"}:
            commit, stops = module.jobs.commit, [fall(signal.SIGSTOP)]
            # Once: a decision whose connection is lost is made again.
            module.jobs.commit = lambda **named: before(commit(**named), lambda: stops and stops.pop()())
        case {"begun": folder}:
            module.jobs.begin = after(module.jobs.begin, Path(folder))
        case {"prepared": folder}:
            module.named_releases = before(module.named_releases, lambda: _wait(Path(folder)))
        case {"checked": folder}:
            module.audits.Gathered = before(module.audits.Gathered, lambda: _wait(Path(folder)))
        case {"die": "publish"}:
            module.Staging.publish = fall(signal.SIGKILL)
        case {"unchecked": kind}:
            from sqlalchemy.exc import OperationalError

            away = [OperationalError("SELECT", {}, Exception("the database is away"))]

            def unlucky() -> None:
                if kind == "fault":
                    raise RuntimeError("a fault of ours")
                if away:
                    raise away.pop()

            module.audits.Gathered = before(module.audits.Gathered, unlucky)


def _wait(folder: Path) -> None:
    (folder / "reached").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def _in_writer(module: Any) -> None:
    commit, write = module._Page.commit, module._Page._write

    def written(page: Any, raw: Any) -> None:
        with raw.pipeline():  # at its end all is sent, which else would wait for the commit
            write(page, raw)
        if "release.committed" in page.kinds:
            _wait(Path(PLANTED["written"]))

    if "written" in PLANTED:
        module._Page._write = written

    def planted(page: Any, connection: Any) -> None:
        folder = Path(PLANTED.get("outage", "/nowhere"))
        if "release.committed" in page.kinds and folder.exists() and not (folder / "go").exists():
            number = connection.connection.driver_connection.info.backend_pid
            (folder / "number").write_text(str(number))
            (folder / "number").rename(folder / "reached")
            while not (folder / "go").exists():
                time.sleep(0.01)
        commit(page, connection)

    module._Page.commit = planted


_PLANTS: dict[str, Callable[[Any], None]] = {
    "trainers.mechanisms.dp_sgd": _in_mechanism,
    "trainers.artifacts": _in_artifacts,
    "service.worker": _in_worker,
    "service.store.writer": _in_writer,
}


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, plant: Callable[[Any], None]) -> None:
        self._loader, self._plant = loader, plant

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._plant(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        plant = _PLANTS.get(fullname)
        if plant is None:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert found is not None
        assert found.loader is not None
        found.loader = _Loader(found.loader, plant)
        return found


if PLANTED:
    sys.meta_path.insert(0, _Finder())
