"""DP-CL as published, for reproduction and audits: DP-AGEM, but each step reads one memory that it draws in secret.

"Continual Learning with Differential Privacy" (Desai, Lai, Phan & Thai 2021), Algorithm 1. Its Lemma 2 says that a
memory pays once, however many tasks follow, which is refuted: it is read again in each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.mechanisms.dp_agem_as_published import learned

if TYPE_CHECKING:
    from trainers.ports import Made, Run


def run(run: Run) -> Made:
    """The weights after `steps` steps on one task, each against one memory."""
    return learned(run, lambda memories: [run.noise.integer(memories)] if memories else [])
