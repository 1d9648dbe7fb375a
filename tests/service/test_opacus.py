"""The Opacus hook with the real Opacus, on a real service: what is held is what runs, and nothing else runs."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.client import Denied, Stint
from service.opacus_client import NotCovered, Observed, Training, private_training
from tests.service.harness import fresh
from tests.service.terminal import Running

PEOPLE, BATCHES, NOISE = 60, 5, 2.0

pytestmark = [
    pytest.mark.slow,
    # Opacus says at every start that its random numbers are not for production, and torch that inputs need no gradient.
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    # torch forks the workers of a data loader, which Python 3.12 and later warn about where torch has threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def population(stint: Stint) -> str:
    name = fresh("opacus")
    stint.create_population(name, unit="user", epsilon=10.0, delta=1e-6)
    stint.register_count(name, 2 * PEOPLE)
    stint.create_task(name, "week", members={"next": PEOPLE})
    return name


@dataclass
class Script:
    """A training script as people have it, and what it made."""

    engine: Any
    model: Any
    optimizer: Any
    loader: Any
    plain_loader: Any

    def hold(self, stint: Stint, population: str, **more: Any) -> Training:
        asked: dict[str, Any] = {"task": "week", "epochs": 2} | more
        given = {"optimizer": self.optimizer, "data_loader": self.loader}
        return private_training(stint, self.engine, population=population, **given, **asked)

    def backward(self, batch: Any) -> None:
        import torch

        features, labels = batch
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(features), labels).backward()

    def step(self, batch: Any) -> None:
        self.backward(batch)
        self.optimizer.step()

    def epoch(self, loader: Any = None) -> None:
        for batch in self.loader if loader is None else loader:
            self.step(batch)

    def weights(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def has(self, weights: dict[str, Any]) -> bool:
        return all(value.equal(weights[name]) for name, value in self.model.state_dict().items())

    @property
    def counted(self) -> int:
        return sum(steps for *_, steps in self.engine.accountant.history)


def script(
    *,
    size: int = PEOPLE,
    workers: int = 0,
    dtype: str = "float32",
    loader: Callable[[Any], Any] | None = None,
    **more: Any,
) -> Script:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(1)
    data = TensorDataset(torch.randn(size, 4, dtype=getattr(torch, dtype)), torch.randint(2, (size,)))
    plain = DataLoader(data, batch_size=size // BATCHES, num_workers=workers) if loader is None else loader(data)
    model = torch.nn.Linear(4, 2, dtype=getattr(torch, dtype))
    engine = PrivacyEngine()
    arguments: dict[str, Any] = {"noise_multiplier": NOISE, "max_grad_norm": 1.0} | more
    private = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), data_loader=plain, **arguments
    )
    return Script(engine, private[0], private[1], private[-1], plain)


def refused(trained: Script, attempt: Callable[[], object], match: str) -> None:
    """It is refused before a random number is drawn and before a weight changes."""
    import torch

    weights, chance, counted = trained.weights(), torch.get_rng_state(), trained.counted
    with pytest.raises(NotCovered, match=match):
        attempt()
    assert trained.has(weights)
    assert torch.get_rng_state().equal(chance)
    assert trained.counted == counted


# ---------------------------------------------------------------- a run that is covered


def test_a_run_is_held_as_it_is_and_committed(stint: Stint, population: str, tmp_path: Path) -> None:
    import torch

    trained, model = script(), tmp_path / "model.pt"
    start = trained.weights()
    with trained.hold(stint, population) as release:
        assert stint.release(release.id)["status"] == "held"
        trained.epoch()
        trained.epoch()
        assert not trained.has(start)
        torch.save(trained.model.state_dict(), model)
        release.commit(artifact=model)
        refused(trained, trained.optimizer.step, "No hold is open")
    after = stint.release(release.id)
    assert after["status"] == "committed"
    assert after["artifact"]["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert release.steps_run == release.steps == trained.counted == 2 * BATCHES
    [charge] = after["charges"]
    assert charge["datapoints"] == PEOPLE
    assert charge["event"]["times"] == 2 * BATCHES
    assert charge["event"]["event"]["event"] == {"kind": "gaussian", "noise_multiplier": NOISE}
    assert charge["event"]["event"]["sampling_probability"] == pytest.approx(1 / BATCHES, abs=2**-24)
    assert charge["event"]["event"]["sampling_probability"] >= 1 / BATCHES


def test_the_price_is_a_bound_and_close_to_that_of_opacus(stint: Stint, population: str) -> None:
    trained = script()
    with trained.hold(stint, population) as release:
        trained.epoch()
        trained.epoch()
        release.commit()
    delta, error = 1e-6, 0.01
    discrete = trained.engine.accountant._get_dprv(eps_error=error, delta_error=delta / 1000)
    lower, _, upper = discrete.compute_epsilon(delta, delta / 1000, error)
    assert upper == trained.engine.get_epsilon(delta)
    ours = stint.price(release._proposal["mechanism"], delta=delta)["epsilon_upper"]
    assert lower <= ours <= upper
    assert upper - lower < 3 * error
    assert stint.datapoint(population, 0)["epsilon"]["spent"] >= ours  # the gate is for life, and dearer
    assert stint.datapoint(population, PEOPLE)["epsilon"]["spent"] == 0


def test_physical_batches_are_no_steps(stint: Stint, population: str) -> None:
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    trained, physical = script(), 0
    with (
        trained.hold(stint, population, epochs=None, steps=BATCHES) as release,
        BatchMemoryManager(data_loader=trained.loader, max_physical_batch_size=3, optimizer=trained.optimizer) as parts,
    ):
        for batch in parts:
            trained.step(batch)
            physical += 1
        assert physical > BATCHES
        assert release.steps_run == trained.counted == BATCHES
        batch = next(iter(parts))
        trained.backward(batch)
        refused(trained, trained.optimizer.step, "held for 5 steps")
        release.commit()
    assert stint.release(release.id)["status"] == "committed"


def test_empty_batches_are_steps_and_odd_rates_are_understood(stint: Stint, population: str) -> None:
    from opacus.data_loader import DPDataLoader

    # A loader made by hand; an epoch has 33 batches, so Opacus counts with a rate of 1/33 instead of 0.03.
    trained = script(loader=lambda data: DPDataLoader(data, sample_rate=0.03), poisson_sampling=False)
    sizes = []
    with trained.hold(stint, population, epochs=1) as release:
        for features, labels in trained.loader:
            sizes.append(len(features))
            trained.step((features, labels))
        release.commit()
    assert 0 in sizes
    assert trained.engine.accountant.history == [(NOISE, 1 / 33, 33)]
    [charge] = stint.release(release.id)["charges"]
    assert charge["event"]["times"] == release.steps_run == 33
    assert charge["event"]["event"]["sampling_probability"] == pytest.approx(0.03, abs=2**-24)


def test_schedulers_of_the_learning_rate_and_workers_are_welcome(stint: Stint, population: str) -> None:
    import torch

    trained = script(workers=1)
    with trained.hold(stint, population, epochs=1) as release:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(trained.optimizer, gamma=0.9)
        trained.epoch()
        scheduler.step()
        release.commit()
    assert release.steps_run == BATCHES


def test_training_goes_on_in_another_block(stint: Stint, population: str) -> None:
    trained = script()
    with trained.hold(stint, population, epochs=1) as first:
        trained.epoch()
        first.commit()
    with trained.hold(stint, population, epochs=1) as second:
        trained.epoch()
        trained.backward(next(iter(trained.loader)))
        refused(trained, trained.optimizer.step, f"{second.id} was held for {BATCHES} steps")
        second.commit()
    assert (first.steps_run, second.steps_run, trained.counted) == (BATCHES, BATCHES, 2 * BATCHES)
    assert {each["status"] for each in stint.releases(population)} == {"committed"}


def test_weights_that_another_block_trained_on_are_not_voided(stint: Stint, population: str) -> None:
    trained = script()
    with trained.hold(stint, population, epochs=1) as first:
        trained.epoch()
    with trained.hold(stint, population, epochs=1) as second:
        trained.epoch()
        second.commit()
    with pytest.raises(NotCovered, match=f"trained on from the weights of release {first.id}"):
        first.void(reason="not needed")
    assert stint.release(first.id)["status"] == "held"


def test_fewer_steps_are_charged_in_full(stint: Stint, population: str, caplog: pytest.LogCaptureFixture) -> None:
    trained = script()
    with trained.hold(stint, population) as release:
        trained.epoch()
        held = stint.datapoint(population, 0)["epsilon"]["held"]
        release.commit()
    assert f"{BATCHES} of {2 * BATCHES} steps ran" in caplog.text
    assert stint.datapoint(population, 0)["epsilon"]["spent"] == held


# ---------------------------------------------------------------- leaving, and being denied


def test_leaving_without_a_word_lets_the_hold_stand(stint: Stint, population: str) -> None:
    trained, crashed = script(), script()
    with trained.hold(stint, population) as left:
        trained.epoch()
    with pytest.raises(RuntimeError, match="out of memory"), crashed.hold(stint, population) as other:
        raise RuntimeError("out of memory")
    assert {each["id"]: each["status"] for each in stint.releases(population)} == {left.id: "held", other.id: "held"}
    trained.backward(next(iter(trained.loader)))
    refused(trained, trained.optimizer.step, "No hold is open")
    left.commit()  # late, and of what ran inside
    assert stint.release(left.id)["status"] == "committed"


def test_a_denial_comes_before_the_training(stint: Stint, population: str) -> None:
    trained = script(noise_multiplier=0.3)
    with pytest.raises(Denied, match="budget") as denied, trained.hold(stint, population, epochs=20):
        pytest.fail("the block must not run")
    assert stint.release(denied.value.release["id"])["status"] == "denied"
    assert trained.counted == 0


def test_nobody_is_trimmed_since_the_data_loader_would_not_know(stint: Stint) -> None:
    name = fresh("opacus")
    stint.create_population(name, unit="user", epsilon=3.0, delta=1e-6, on_exhausted="trim")
    stint.register_count(name, PEOPLE)
    stint.create_task(name, "week", members={"next": PEOPLE})
    spent = {"scope": {"ranges": [[0, 10]]}, "event": {"kind": "pure_dp", "epsilon": 2.9}}
    assert stint.propose(population=name, charges=[spent])["status"] == "held"
    trained = script()
    assert (
        stint.dry_run(**(trained.hold(stint, name)._proposal | {"on_exhausted": "trim"}))["decision"]["trimmed"] == 10
    )
    with pytest.raises(Denied), trained.hold(stint, name):
        pytest.fail("the block must not run")


# ---------------------------------------------------------------- what is not covered


def test_a_step_too_many_is_refused(stint: Stint, population: str) -> None:
    trained = script()
    with trained.hold(stint, population, epochs=None, steps=BATCHES) as release:
        trained.epoch()
        trained.backward(next(iter(trained.loader)))
        refused(trained, trained.optimizer.step, "held for 5 steps")
        release.commit()  # what ran is what was held
    assert stint.release(release.id)["status"] == "committed"


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        ("optimizer", "noise_multiplier", 1.9),
        ("optimizer", "max_grad_norm", 0.5),
        ("optimizer", "expected_batch_size", 11),
        ("sampler", "sample_rate", 0.25),
    ],
)
def test_a_step_that_changed_is_refused(stint: Stint, population: str, owner: str, name: str, value: float) -> None:
    trained = script()
    with trained.hold(stint, population) as release:
        trained.epoch()
        trained.backward(next(iter(trained.loader)))
        changed = trained.optimizer if owner == "optimizer" else trained.loader.batch_sampler
        before = getattr(changed, name)
        setattr(changed, name, value)
        refused(trained, trained.optimizer.step, f"was {float(before):.3g}.* and is {value:.3g}")
    assert stint.release(release.id)["status"] == "held"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"poisson_sampling": False}, "no Poisson sampling"),
        ({"rand_on_empty": True}, "made-up element"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0"),
        ({"clipping": "per_layer", "max_grad_norm": [1.0, 1.0]}, "clips to several norms"),
        (
            {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2}
            | {"max_clipbound": 2.0, "min_clipbound": 0.5, "unclipped_num_std": 5.0},
            "how many gradients were clipped",
        ),
        ({"grad_sample_mode": "ghost"}, "the model clips"),
        ({"dtype": "bfloat16"}, "too coarse"),
    ],
)
def test_what_the_price_does_not_cover_is_refused(
    stint: Stint, population: str, arguments: dict[str, Any], match: str
) -> None:
    with pytest.raises(NotCovered, match=match):
        script(**arguments).hold(stint, population)
    assert not list(stint.releases(population))


def test_distributed_optimizers_are_refused(stint: Stint, population: str) -> None:
    from opacus.optimizers import DistributedDPOptimizer

    trained = script()
    trained.optimizer.__class__ = DistributedDPOptimizer
    with pytest.raises(NotCovered, match="several processes"):
        trained.hold(stint, population)


def test_arguments_that_contradict_each_other_are_refused(stint: Stint, population: str) -> None:
    trained = script()
    for more in ({"steps": 3}, {"epochs": None}, {"epochs": 0}, {"on_exhausted": "trim"}, {"idempotency_key": "again"}):
        with pytest.raises(ValueError, match=r"either steps|one step or more|leave out"):
            trained.hold(stint, population, **more)


def test_batches_from_elsewhere_are_refused(stint: Stint, population: str) -> None:
    for workers in (0, 1):
        trained = script(workers=workers)
        with trained.hold(stint, population):
            [batch, *_] = list(trained.plain_loader)
            trained.backward(batch)
            refused(trained, trained.optimizer.step, "No batch was drawn")


def test_a_batch_is_one_step_and_every_batch_is_one(stint: Stint, population: str) -> None:
    reused, summed, skipped = script(), script(), script()
    with reused.hold(stint, population):
        batch = next(iter(reused.loader))
        reused.step(batch)
        reused.backward(batch)
        refused(reused, reused.optimizer.step, "No batch was drawn")
    with summed.hold(stint, population):
        batches = iter(summed.loader)
        summed.optimizer.signal_skip_step(do_skip=True)
        summed.step(next(batches))
        summed.backward(next(batches))
        refused(summed, summed.optimizer.step, "2 batches were drawn")
    with skipped.hold(stint, population):
        batches = iter(skipped.loader)
        next(batches)
        skipped.backward(next(batches))
        refused(skipped, skipped.optimizer.step, "2 batches were drawn")


def test_the_optimizer_inside_cannot_be_used_by_itself(stint: Stint, population: str) -> None:
    trained = script()
    with trained.hold(stint, population) as release:
        trained.backward(next(iter(trained.loader)))
        refused(trained, trained.optimizer.original_optimizer.step, "gradients that have no noise")
        with pytest.raises(NotCovered, match="No step of this optimizer ran"):
            release.commit()
    refused(trained, trained.optimizer.original_optimizer.step, "gradients that have no noise")
    assert stint.release(release.id)["status"] == "held"


def test_opacus_must_have_counted_the_same(stint: Stint, population: str) -> None:
    trained, other = script(), script()
    with trained.hold(stint, population) as release:
        trained.epoch()
        trained.engine.accountant.step(noise_multiplier=NOISE, sample_rate=1 / BATCHES)
        with pytest.raises(NotCovered, match=r"has 6 steps of noise 2 at rate 0\.2, this block has counted 5 steps"):
            release.commit()
    assert stint.release(release.id)["status"] == "held"
    trained.engine = script().engine  # which never hears of a step
    trained.optimizer, trained.model, trained.loader = other.optimizer, other.model, other.loader
    with trained.hold(stint, population):
        batch, weights = next(iter(trained.loader)), trained.weights()
        with pytest.raises(NotCovered, match="has no steps, this block has counted 1 steps"):
            trained.step(batch)
        assert trained.has(weights)


def test_steps_that_nobody_held_are_refused(stint: Stint, population: str) -> None:
    trained = script()
    trained.epoch()
    with pytest.raises(NotCovered, match=f"counted {BATCHES} steps that no block"), trained.hold(stint, population):
        pytest.fail("the block must not run")
    trained = script()
    with trained.hold(stint, population) as release:
        trained.epoch()
        release.void(reason="the data were wrong")
    with pytest.raises(NotCovered, match="which was voided"), trained.hold(stint, population):
        pytest.fail("the block must not run")
    assert [each["status"] for each in stint.releases(population)] == ["voided"]


def test_one_block_at_a_time(stint: Stint, population: str) -> None:
    trained, other = script(), script()
    with trained.hold(stint, population) as release:
        with pytest.raises(NotCovered, match="entered once"), release:
            pytest.fail("the block must not run")
        other.loader = trained.loader  # one sample for two optimizers
        for second in (trained, other):
            with pytest.raises(NotCovered, match="in one block at a time"), second.hold(stint, population):
                pytest.fail("the block must not run")
        trained.loader = script().loader
        with pytest.raises(NotCovered, match="in a block already"), trained.hold(stint, population):
            pytest.fail("the block must not run")
    assert len(list(stint.releases(population))) == 1


def test_more_elements_than_datapoints_are_refused(stint: Stint, population: str) -> None:
    trained = script(size=PEOPLE + BATCHES)
    with (
        pytest.raises(NotCovered, match="65 elements and this release is charged to 60"),
        trained.hold(stint, population),
    ):
        pytest.fail("the block must not run")
    assert [each["status"] for each in stint.releases(population)] == ["voided"]


# ---------------------------------------------------------------- small print


@pytest.mark.parametrize("rate", [1.0, 0.7, 0.5, 1 / 3, 1 / 49, 0.01, 1e-4, 3e-8])
def test_the_probability_covers_every_float_below_the_rate(rate: float) -> None:
    import torch

    seen = Observed(
        noise_multiplier=1.0, sampling_rate=rate, clip_norm=1.0, loss_reduction="mean", expected_batch_size=1,
        dataset_size=1,
    )  # fmt: skip
    probability = seen.sampling_probability
    assert rate <= probability < rate + 2**-24
    # torch.rand is a multiple of 2^-24, and the sampler compares it with the rate: those below are at most so many.
    assert not torch.tensor([probability], dtype=torch.float32).lt(rate).item()


def test_neither_torch_nor_opacus_is_imported_before_a_block() -> None:
    code = "import sys, service.client, service.opacus_client; print({'torch', 'opacus'} & set(sys.modules))"
    report = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert report.stdout.strip() == "set()"


def test_the_script_of_the_service_page_runs(
    running: Running, stint: Stint, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (checkout / "docs" / "service.md").read_text(encoding="utf-8")
    [block] = [
        each
        for each in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "private_training" in each
    ]
    stint.create_population("clinic-a", unit="user", epsilon=3.0, delta=1e-6)
    stint.register_count("clinic-a", 5000)
    stint.create_task("clinic-a", "2026-w46", members={"next": 5000})
    monkeypatch.setenv("STINT_URL", running.url)
    monkeypatch.setenv("STINT_KEY", running.key)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/service.md", "exec"), {"__name__": "__main__"})
    [release] = stint.releases("clinic-a")
    assert release["status"] == "committed"
    assert release["artifact"]["bytes"] == (tmp_path / "model.pt").stat().st_size
