"""Parts that recipes share: what is trained, and how. All of it is public and none of it has a price."""

from __future__ import annotations

from typing import Final

from trainers.catalog.parameters import Bounds, Parameter

MAX_WIDTH: Final = 1 << 20

#: What is trained: `trainers.models.build` makes it.
MODEL: Final = (
    Parameter(
        name="model",
        kind="string",
        choices=("linear", "mlp", "cnn"),
        description="a linear classifier, a perceptron with hidden layers, or a network of convolutions",
    ),
    Parameter(
        name="hidden",
        kind="array",
        each=Parameter(
            name="width", kind="integer", description="of one layer", bounds=Bounds(minimum=1, maximum=MAX_WIDTH)
        ),
        description="widths of the hidden layers of an mlp, or channels of the convolutions of a cnn",
        bounds=Bounds(minimum=0, maximum=16),
        default=[],
    ),
    Parameter(
        name="shape",
        kind="array",
        each=Parameter(
            name="size", kind="integer", description="of one axis", bounds=Bounds(minimum=1, maximum=MAX_WIDTH)
        ),
        description="of a row of x, which is public: [784], or [1, 28, 28] for a cnn",
        bounds=Bounds(minimum=1, maximum=4),
    ),
)

#: How it is trained: what an optimiser makes of noisy gradients costs nothing more.
OPTIMISER: Final = (
    Parameter(
        name="optimiser",
        kind="string",
        choices=("sgd", "adam"),
        description="what is done with a noisy gradient",
        default="sgd",
    ),
    Parameter(
        name="learning_rate",
        kind="number",
        description="of the optimiser",
        bounds=Bounds(exclusive_minimum=0, maximum=1e6),
    ),
    Parameter(
        name="momentum",
        kind="number",
        description="share of the last step that sgd takes again, or of the old average that adam keeps",
        bounds=Bounds(minimum=0, exclusive_maximum=1),
        default=0.9,
    ),
    Parameter(
        name="physical_batch",
        kind="integer",
        description="most rows that are worked on at a time, in whole tiles of 32; larger samples are added up",
        bounds=Bounds(minimum=1, maximum=4096),  # what float32 makes of larger sums is no longer small beside one row
        default=512,
    ),
)


def release(name: str, description: str) -> Parameter:
    """A parameter that holds the id of a committed release, or "" for none."""
    return Parameter(
        name=name, kind="string", description=description, bounds=Bounds(minimum=0, maximum=100), default=""
    )


#: Where training starts.
START: Final = release("start", "id of a release whose weights training starts from; none if empty")
