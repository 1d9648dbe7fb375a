"""The loop: what a step adds up, what it divides by, what one datapoint can change, and the optimisers after it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from trainers import clipping, private_sgd
from trainers.clipping import clipped_sum, trainable
from trainers.models import build, load, state
from trainers.noise import Noise, grid_step
from trainers.ports import Rows
from trainers.private_sgd import Adam, Gradient, Sgd, Source, noisy_gradient, train

SLOTS = 40
LOOKS = {2, 3}  # rows of zeros that show on which axis rows are
PLACES = 2  # passes of public rows that show whether places matter


def network() -> nn.Module:
    module = build({"model": "mlp", "hidden": [5], "shape": [4]}, outputs=3)
    with torch.no_grad():
        for place, parameter in enumerate(trainable(module)):
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) * (place + 1) / 4)
    return module


def source(*, without: Sequence[int] = (), rows_per_unit: int = 1, **change: Any) -> Source:
    chance = np.random.default_rng(3)
    unit = np.repeat(np.arange(SLOTS), rows_per_unit)
    x = chance.normal(size=(len(unit), 4)).astype(np.float32)
    labels = chance.integers(0, 3, len(unit))
    kept = ~np.isin(unit, without)
    rows = Rows(slots=SLOTS, unit=unit[kept], x=x[kept], y=labels[kept], rows_per_unit=rows_per_unit)
    settings = {"sampling_probability": 0.5, "noise_multiplier": 1e-6, "clip_norm": 0.7} | change
    return Source.of(rows, labels[kept], **settings)


def flat(gradient: Gradient) -> torch.Tensor:
    return torch.cat([each.flatten() for each in gradient]).double()


def step(given: Source, seed: int = 5, **change: Any) -> torch.Tensor:
    return flat(noisy_gradient(network(), given, Noise.repeatable(seed), **change))


def test_a_step_is_the_clipped_sum_of_its_sample_over_a_public_constant() -> None:
    given = source(sampling_probability=1.0)
    exact = flat(clipped_sum(network(), given.x[:-1], given.y[:-1], clip_norm=0.7)) / SLOTS
    assert torch.allclose(step(given), exact, atol=1e-6)
    assert torch.allclose(step(given, normaliser=8.0), exact * SLOTS / 8, atol=1e-6)


def test_parts_of_a_batch_add_up() -> None:
    whole = step(source())
    for physical_batch in (1, 7, 1000):
        assert torch.allclose(step(source(), physical_batch=physical_batch), whole, atol=1e-6)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_a_datapoint_that_is_null_changes_nothing_but_its_own_part(probability: float) -> None:
    """The coins of others, the noise and the divisor are the same without it, so that one clipped gradient is left."""
    moved = []
    for slot in range(SLOTS):
        change = step(source(sampling_probability=probability)) - step(
            source(without=[slot], sampling_probability=probability)
        )
        moved.append(float(change.norm()) * probability * SLOTS)
    assert max(moved) <= 0.7 + 1e-4
    assert sum(value > 0.01 for value in moved) == (SLOTS if probability == 1 else pytest.approx(12, abs=6))


def test_all_rows_of_a_datapoint_share_its_norm_and_its_coin() -> None:
    given = source(rows_per_unit=3)
    sampled = given.unit[given.sample(Noise.repeatable(5))]
    assert set(np.unique(sampled, return_counts=True)[1]) == {3}
    for slot in range(0, SLOTS, 7):
        change = step(source(rows_per_unit=3, sampling_probability=1.0)) - step(
            source(rows_per_unit=3, sampling_probability=1.0, without=[slot])
        )
        assert float(change.norm()) * SLOTS <= 0.7 + 1e-4


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_parts_are_of_one_public_size(model: str) -> None:
    module = network() if model == "mlp" else nn.Linear(4, 3)
    given, sizes = source(), set[int]()
    module.register_forward_pre_hook(lambda _, inputs: sizes.add(len(inputs[0])))
    for seed in range(8):
        noisy_gradient(module, given, Noise.repeatable(seed))
    assert sizes - LOOKS == {given.batch(512)}


@pytest.mark.parametrize("others", [1, 3])
def test_one_more_row_moves_no_large_row_over_the_border_of_two_labels(others: int) -> None:
    """A logit of a large row is rounded by more than labels differ, and otherwise in a batch of another size."""
    torch.manual_seed(0)
    module = nn.Linear(16, 32, bias=False)
    moved = 0.0
    for _ in range(40):
        x, weight = torch.randn(16, dtype=torch.float64), module.weight.detach().double()
        first, second = (weight @ x).topk(2).indices.tolist()
        across = weight[first] - weight[second]
        x = 1e9 * (x - (x @ across) / (across @ across) * across)
        found = []
        for count in (others, others + 1):
            rows = Rows(slots=4, unit=np.arange(count), x=x.float().expand(count, -1).numpy().copy(), y=np.zeros(count))
            given = Source.of(
                rows, np.full(count, first), sampling_probability=1.0, noise_multiplier=1e-6, clip_norm=1.0
            )
            found.append(flat(noisy_gradient(module, given, Noise.repeatable(0), normaliser=1.0)))
        moved = max(moved, float((found[1] - found[0]).norm()))
    assert moved <= 1 + 1e-4


@pytest.mark.parametrize("physical_batch", [1, 7, 8, 50, 250, 512, 4096])
def test_batches_are_of_whole_tiles(physical_batch: int) -> None:
    for slots in (1, 40, 3000):
        size = replace(source(sampling_probability=1.0), slots=slots).batch(physical_batch)
        assert size % 32 == 0
        assert size - 32 < physical_batch


@pytest.mark.parametrize("physical_batch", [8, 512])
def test_one_more_row_at_the_front_moves_no_row_over_a_kink(physical_batch: int) -> None:
    """It moves all others to the next place, where some would round otherwise in a batch of 8: 300 clip norms."""
    torch.manual_seed(1)
    module = build({"model": "mlp", "hidden": [3], "shape": [49]}, outputs=2)
    first = module[1]
    with torch.no_grad():
        module[-1].weight.copy_(torch.tensor([[1.0], [-1.0]]).expand(2, 3))
        weight, bias = first.weight.double(), first.bias.double()
        x = torch.randn(2000, 49, dtype=torch.float64)
        on_the_kink = torch.tensor([0.0, -1.0, -1.0]) - (x @ weight.T + bias)
        x = (x + on_the_kink @ torch.linalg.inv(weight @ weight.T) @ weight).float()
        filler = torch.randn(8, 49)
        sides = torch.stack([torch.stack([_at(first, filler, each, place) for place in range(8)]) for each in x])
    gain = sides - sides.roll(-1, dims=1)
    rows = torch.cat(
        [x[gain[:, place].argsort(descending=True)[turn]][None] for turn in range(30) for place in range(8)]
    )
    sums = []
    for given in (rows, torch.cat([torch.zeros(1, 49), rows])):
        slots = len(rows) + 1
        unit = np.arange(slots - len(given), slots)
        found = Source.of(
            Rows(slots=slots, unit=unit, x=given.numpy(), y=np.ones(len(given))),
            np.ones(len(given), dtype=np.int64),
            sampling_probability=1.0,
            noise_multiplier=1e-6,
            clip_norm=1.0,
        )
        sums.append(
            flat(noisy_gradient(module, found, Noise.repeatable(0), normaliser=1.0, physical_batch=physical_batch))
        )
    assert float((sums[1] - sums[0]).norm()) <= 1 + 1e-4


def _at(layer: nn.Module, others: torch.Tensor, row: torch.Tensor, place: int) -> torch.Tensor:
    """Whether the first unit is on for this row at this place."""
    batch = others.clone()
    batch[place] = row
    return (layer(batch)[place, 0] > 0).float()


def test_a_network_that_rounds_by_place_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 3), ByPlace())
    before = state(module)
    with pytest.raises(ValueError, match=r"recipe.physical_batch: expected a size at which .* at every place, got 32"):
        noisy_gradient(module, source(), Noise.repeatable(0), physical_batch=32)
    assert all(torch.equal(before[name], each) for name, each in state(module).items())


@pytest.mark.parametrize("widths", [[49, 3], [561, 6], [50, 7, 10], [784, 256, 256, 10]])
def test_rows_of_any_width_round_alike_at_every_place(widths: list[int]) -> None:
    """Products of widths that are no multiple of four go by alignment on some processors, if they may."""
    module = build({"model": "mlp", "shape": widths[:1], "hidden": widths[1:-1]}, outputs=widths[-1])
    for rows in (32, 288):
        with clipping.wherever_a_row_stands(module, [torch.zeros(rows, widths[0])], loss=clipping.cross_entropy):
            assert not clipping._rounds_by_place(module, torch.zeros(rows, widths[0]), clipping.cross_entropy)


def test_one_thread_does_what_several_would_round_by_place() -> None:
    threads, by_place = torch.get_num_threads(), ByPlace(from_threads=2)
    torch.set_num_threads(2)
    try:
        noisy_gradient(nn.Sequential(nn.Linear(4, 3), by_place), source(), Noise.repeatable(0))
        assert by_place.seen[:2] == [2, 2]  # public rows, at two places
        assert set(by_place.seen[2:]) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


class ByPlace(nn.Module):  # type: ignore[misc]  # torch is not read
    """Later rows of a batch are larger, where torch has so many threads; it remembers how many."""

    def __init__(self, *, from_threads: int = 1) -> None:
        super().__init__()
        self.from_threads, self.seen = from_threads, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.get_num_threads())
        by = 1e-6 if torch.get_num_threads() >= self.from_threads else 0.0
        return x * (1 + by * torch.arange(len(x))[:, None])


def test_to_find_a_sample_takes_no_more_where_somebody_is_null() -> None:
    """A step that looked at every slot only where somebody is null took twice as long, and told so."""
    peaks = []
    for without in ((), (7,)):
        unit = np.delete(np.arange(100_000), without)
        rows = Rows(slots=100_000, unit=unit, x=np.zeros((len(unit), 1), np.float32), y=np.zeros(len(unit), np.int64))
        given = Source.of(rows, rows.y, sampling_probability=0.01, noise_multiplier=1.0, clip_norm=1.0)
        samples = given.samples(FixedCoins(), times=2)
        first = next(samples)
        tracemalloc.start()
        try:
            assert np.array_equal(next(samples), first)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert np.array_equal(unit[first], np.setdiff1d(FixedCoins.HEADS, without))
    assert max(peaks) < 1.1 * min(peaks) < 100_000


class FixedCoins(Noise):
    """Heads for the same slots, again and again."""

    HEADS = np.arange(0, 100_000, 7)[:1000]

    def __init__(self) -> None:
        super().__init__(bytes(32), releasable=False)

    def samples(self, _count: int, _probability: float, *, times: int) -> Iterator[NDArray[np.int64]]:
        return (self.HEADS for _ in range(times))


def test_of_many_steps_no_list_is_kept() -> None:
    """The tenth step of a million takes no more than that of a thousand."""

    class Enough(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done == 10:
            raise Enough

    peaks = []
    for steps in (1000, 10**6):
        tracemalloc.start()
        try:
            with pytest.raises(Enough):
                train(
                    network(),
                    [source()],
                    steps=steps,
                    noise=Noise.repeatable(0),
                    optimiser="sgd",
                    learning_rate=0.1,
                    progress=stop,
                )
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_an_empty_sample_is_a_step_of_noise() -> None:
    nobody = source(without=range(SLOTS), noise_multiplier=2.0)
    drawn = step(nobody) * nobody.expected / (2.0 * 0.7)
    assert drawn.shape == (sum(each.numel() for each in trainable(network())),)
    assert 0.6 < float(drawn.std()) < 1.5
    assert torch.equal(step(nobody), step(nobody))
    assert nobody.expected == source().expected  # of slots, not of rows


@pytest.mark.parametrize(("physical_batch", "passes_of_a_step"), [(4, 2), (512, 1)])
def test_nobody_takes_as_long_as_everybody(physical_batch: int, passes_of_a_step: int) -> None:
    """As many passes, of as many rows, of which as many are weighted."""
    taken = []
    clipping._STEADY.clear()
    for without in ((), range(SLOTS)):
        module, passes = network(), list[int]()
        module.register_forward_pre_hook(lambda _, inputs, passes=passes: passes.append(len(inputs[0])))
        given = source(without=without, sampling_probability=1.0)
        usual = [
            part[1] for part in given.space(given.batch(physical_batch)).parts(given, given.sample(Noise.repeatable(0)))
        ]
        noisy_gradient(module, given, Noise.repeatable(0), physical_batch=physical_batch)
        taken.append((passes, usual))
        clipping._STEADY.clear()  # or the second is not looked at again, whoever it is
    assert taken[0] == taken[1]
    assert sum(size not in LOOKS for size in taken[0][0]) == PLACES + passes_of_a_step
    assert sum(taken[0][1]) == SLOTS


def test_a_network_is_looked_at_once() -> None:
    clipping._STEADY.clear()
    module, passes = network(), list[int]()
    module.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    for looks in (PLACES, 0):
        passes.clear()
        noisy_gradient(module, source(), Noise.repeatable(0))
        assert sum(size not in LOOKS for size in passes) == looks + 1


def test_what_a_network_cannot_take_fails_for_nobody_too() -> None:
    """A job that ends otherwise with a row than without one would tell of that row, for nothing."""
    module = build({"model": "mlp", "hidden": [5], "shape": [3]}, outputs=3)  # rows have 4 numbers
    for without in ((), range(SLOTS)):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            noisy_gradient(module, source(without=without), Noise.repeatable(0))


def test_a_gradient_is_on_the_grid_of_its_noise() -> None:
    given = source(noise_multiplier=1.5, clip_norm=1.0, sampling_probability=0.4)
    steps = step(given) * given.expected / grid_step(1.5)
    assert torch.equal(steps, steps.round())


def test_noise_has_the_deviation_that_was_paid_for() -> None:
    noise = Noise.repeatable(9)
    given = source(noise_multiplier=3.0, sampling_probability=1.0)
    exact = flat(clipped_sum(network(), given.x[:-1], given.y[:-1], clip_norm=0.7))
    drawn = torch.cat([flat(noisy_gradient(network(), given, noise)) * SLOTS - exact for _ in range(200)])
    assert float(drawn.std()) == pytest.approx(3.0 * 0.7, rel=0.03)
    assert abs(float(drawn.mean())) < 0.1


def test_labels_outside_the_space_are_null() -> None:
    rows = Rows(slots=4, unit=np.arange(4), x=np.ones((4, 4), dtype=np.float32), y=np.arange(4))
    given = Source.of(rows, np.array([0, -1, 2, -1]), sampling_probability=1.0, noise_multiplier=1.0, clip_norm=1.0)
    assert given.unit.tolist() == [0, 2]
    assert given.slots == 4
    assert given.expected == 4


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda weights: Sgd(weights, learning_rate=0.1, momentum=0.0),
            lambda weights: torch.optim.SGD(weights, lr=0.1),
        ),
        (
            lambda weights: Sgd(weights, learning_rate=0.1, momentum=0.8),
            lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.8),
        ),
        (
            lambda weights: Adam(weights, learning_rate=0.1, momentum=0.7),
            lambda weights: torch.optim.Adam(weights, lr=0.1, betas=(0.7, 0.999)),
        ),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_optimisers_are_those_of_torch(ours: Any, theirs: Any) -> None:
    one, other = ([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(2, 2))] for _ in range(2))
    move, torchs = ours(one), theirs(other)
    chance = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = [torch.randn(each.shape, generator=chance) for each in one]
        move(gradient)
        for parameter, each in zip(other, gradient, strict=True):
            parameter.grad = each.clone()
        torchs.step()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_training_is_repeatable_and_says_how_far_it_is(optimiser: str, device: str) -> None:
    told: list[tuple[int, int]] = []
    made = []
    for _ in range(2):
        module = network().to(device)
        given = source(noise_multiplier=0.5)
        moved = Source.of(
            Rows(slots=SLOTS, unit=given.unit, x=given.x[:-1].numpy(), y=given.y[:-1].numpy()),
            given.y[:-1].numpy(),
            sampling_probability=0.5,
            noise_multiplier=0.5,
            clip_norm=0.7,
            device=device,
        )
        train(
            module,
            [moved],
            steps=5,
            noise=Noise.repeatable(2),
            optimiser=optimiser,
            learning_rate=0.1,
            momentum=0.5,
            progress=lambda done, of: told.append((done, of)),
        )
        made.append(state(module))
    assert told == 2 * [(done, 5) for done in range(1, 6)]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert not torch.equal(made[0]["1.weight"], state(network())["1.weight"])


def test_a_schedule_names_sources_and_combine_follows_one_gradient() -> None:
    seen: list[int] = []

    def last(gradients: Sequence[Gradient]) -> Gradient:
        seen.append(len(gradients))
        return gradients[-1]

    both = [source(), source(clip_norm=0.1)]
    module = network()
    train(
        module,
        both,
        steps=3,
        noise=Noise.repeatable(2),
        optimiser="sgd",
        learning_rate=0.1,
        combine=last,
        schedule=lambda number: [0] if number == 0 else [0, 1],
    )
    assert seen == [1, 2, 2]


def test_weights_go_out_and_come_back() -> None:
    module, other = network(), build({"model": "mlp", "hidden": [5], "shape": [4]}, outputs=3)
    saved = state(module)
    load(other, saved)
    x = torch.ones(2, 4)
    assert torch.equal(module(x), other(x))
    saved["1.weight"].zero_()
    assert torch.equal(module(x), other(x))  # they share no memory
    with pytest.raises(ValueError, match="weights of the network"):
        load(build({"model": "linear", "hidden": [], "shape": [4]}, outputs=3), saved)


@pytest.mark.parametrize(
    "recipe",
    [
        {"model": "linear", "hidden": [], "shape": [4, 2]},
        {"model": "mlp", "hidden": [7, 3], "shape": [8]},
        {"model": "cnn", "hidden": [2, 3], "shape": [2, 6, 5]},
    ],
)
def test_networks_start_alike_and_prefer_nothing(recipe: dict[str, Any]) -> None:
    before = torch.random.get_rng_state()
    one, other = build(recipe, outputs=6), build(recipe, outputs=6)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(one(torch.randn(3, *recipe["shape"])), torch.zeros(3, 6))


def test_images_too_small_for_their_convolutions_are_refused() -> None:
    for shape in ([784], [1, 3, 9]):
        with pytest.raises(ValueError, match=r"recipe.shape: expected channels, height and width"):
            build({"model": "cnn", "hidden": [4, 4], "shape": shape}, outputs=2)


@pytest.mark.parametrize("memory", [1 << 25, 1])
@pytest.mark.parametrize("physical_batch", [8, 512])
def test_a_core_to_spare_changes_nothing_but_the_time(
    monkeypatch: pytest.MonkeyPatch, physical_batch: int, memory: int
) -> None:
    """Samples of several sources, of one part and of many, and more steps than are drawn ahead."""
    monkeypatch.setattr(private_sgd, "_MEMORY", memory)
    trained = []
    for cores in (1, 1000):
        monkeypatch.setattr("trainers.ahead.cores", lambda cores=cores: cores)
        module = network()
        train(
            module,
            [source(), source(sampling_probability=0.9), source(without=range(30))],
            steps=11,
            noise=Noise.repeatable(7),
            optimiser="adam",
            learning_rate=0.1,
            combine=lambda gradients: [sum(parts) for parts in zip(*gradients, strict=True)],
            schedule=lambda step: [0, 1, 2] if step % 3 else [2, 0],
            physical_batch=physical_batch,
        )
        trained.append(flat(list(module.parameters())))
    assert torch.equal(*trained)
    assert not torch.equal(trained[0], flat(list(network().parameters())))
