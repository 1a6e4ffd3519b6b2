# SPDX-License-Identifier: Apache-2.0
"""Which files mutants are made of, what each decides, and the tests that see what the world cannot."""
from dataclasses import dataclass

SAVE = ("tests/unit/engine/test_saving", "tests/unit/engine/test_keeper", "tests/unit/engine/test_save",
        "tests/api/test_policy")
STORE = ("tests/unit/engine/test_keeper", "tests/unit/engine/test_claim",
         "tests/unit/engine/test_pick", "tests/unit/test_lineage",
         "tests/api/test_faults", "tests/api/test_policy")


@dataclass(frozen=True)
class Scope:
    """One file."""

    file: str
    why: str
    tests: tuple[str, ...] = ()


SCOPE = [
    Scope("libckpt/engine/save.c", "the order of a commit, its fence and its acknowledgement", SAVE),
    Scope("libckpt/engine/save_end.c", "what is left of a save that failed", SAVE),
    Scope("libckpt/engine/claim.c", "who may write", STORE),
    Scope("libckpt/engine/retention.c", "which steps stay", STORE),
    Scope("libckpt/engine/keeper.c", "when steps go, and what dead processes left", STORE),
    Scope("libckpt/engine/removal.c", "the order of a removal, and who may not be removed", STORE),
    Scope("libckpt/engine/remover.c", "what a user may remove", STORE),
]
