# SPDX-License-Identifier: Apache-2.0
"""Which files mutants are made of, what each decides, and the tests that see what the world cannot."""
from dataclasses import dataclass

API = ("tests/api/test_roundtrip", "tests/api/test_faults", "tests/api/test_policy")
READING = ("tests/unit/test_lineage", "tests/unit/engine/test_verify",
           "tests/unit/engine/test_export", "tests/unit/engine/test_restore")
STORE = ("tests/unit/store/test_store_order", "tests/unit/store/test_store_verbs",
         "tests/unit/store/test_store_faults")
SAVE = ("tests/unit/engine/test_save", *API)


@dataclass(frozen=True)
class Scope:
    """One file."""

    file: str
    why: str
    tests: tuple[str, ...] = ()


SCOPE = [
    Scope("libckpt/engine/save.c", "the order of a commit, its fence and its acknowledgement", SAVE),
    Scope("libckpt/engine/save_end.c", "what is left of a save that failed", SAVE),
    Scope("libckpt/engine/claim.c", "who may write", SAVE),
    Scope("libckpt/engine/open.c", "what a process takes a store for, and who holds it",
          READING + SAVE),
    Scope("libckpt/engine/scanner.c", "what is believed of what is read", READING + API),
    Scope("libckpt/engine/scan.c", "what was read, in order",
          READING),
    Scope("libckpt/engine/lineage.c", "what a restore may choose",
          READING),
    Scope("libckpt/engine/removal.c", "the order of a removal, and who may not be removed", SAVE),
    Scope("libckpt/engine/retention.c", "which steps stay",
          ("tests/unit/test_lineage", *SAVE)),
    Scope("libckpt/engine/keeper.c", "when steps go, and what dead processes left", SAVE),
    Scope("libckpt/engine/remover.c", "what a user may remove", SAVE),
    Scope("libckpt/store/store_file_small.c", "how a manifest, an index and a claim become durable",
          STORE),
    Scope("libckpt/store/store_file_shard.c", "how a shard becomes durable", STORE),
    Scope("libckpt/store/store_file_names.c", "directories, removal, locks", STORE),
    Scope("libckpt/store/store_file.c", "what every verb begins and ends with", STORE),
]
