"""Tasks and windows: which datapoints a plan touches, how often, and whether that stays bounded for ever.

`tasks` checks when each datapoint pays for its own task only; `schedules` says which blocks of a stream are trained
when; `allocations` gives the noise that makes a whole life cost exactly the budget; `readings` prices the published
algorithms as printed; `memories` charges episodic memories; `outlooks` decides whether a plan is bounded for ever.
"""

from accountant.streams.allocations import Allocation, gaussian_noise, pure_noise, record_contribution
from accountant.streams.memories import EpisodicMemory, PartCharge, role
from accountant.streams.outlooks import Outlook, memory_outlook, schedule_outlook, tasks_outlook
from accountant.streams.schedules import (
    Block,
    ContinualRelease,
    Life,
    Model,
    MultiResolution,
    SlidingWindow,
    Step,
    lives,
    sliding_window_schedule,
)
from accountant.streams.tasks import Breach, Task, TaskwiseComposition, compose_taskwise

__all__ = [
    "Allocation",
    "Block",
    "Breach",
    "ContinualRelease",
    "EpisodicMemory",
    "Life",
    "Model",
    "MultiResolution",
    "Outlook",
    "PartCharge",
    "SlidingWindow",
    "Step",
    "Task",
    "TaskwiseComposition",
    "compose_taskwise",
    "gaussian_noise",
    "lives",
    "memory_outlook",
    "pure_noise",
    "record_contribution",
    "role",
    "schedule_outlook",
    "sliding_window_schedule",
    "tasks_outlook",
]
