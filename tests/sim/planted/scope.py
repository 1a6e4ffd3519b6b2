# SPDX-License-Identifier: Apache-2.0
"""Which files mutants are made of, what each decides, and the tests that see what the world cannot."""
from dataclasses import dataclass

# What a rank of many does, and what is left of its steps, this world does not see: it has ranks alone.
RANKS = ("tests/unit/engine/test_notify", "tests/unit/engine/test_outcome", "tests/unit/engine/test_leaving",
         "tests/unit/engine/test_catalog_writer")
SAVE = ("tests/unit/engine/test_saving", "tests/unit/engine/test_gc", *RANKS,
        "tests/unit/engine/test_save", "tests/api/test_policy")
STORE = ("tests/unit/engine/test_gc", "tests/unit/engine/test_claim", *RANKS,
         "tests/unit/engine/test_select_step", "tests/unit/test_lineage",
         "tests/api/test_faults", "tests/api/test_policy")
VERBS = ("tests/unit/store/test_store_order", "tests/unit/store/test_store_verbs",
         "tests/unit/store/test_store_faults", "tests/unit/store/test_store_real")
LANE = ("tests/unit/engine/test_pipeline", "tests/unit/engine/test_saving",
        "tests/unit/engine/test_save", "tests/api/test_policy")
# The simulated programs restore and verify; none exports.
READ = ("tests/unit/engine/test_shard_read", "tests/unit/engine/test_ending", "tests/unit/engine/test_shard_location",
        "tests/unit/engine/test_reading", "tests/unit/engine/test_verify",
        "tests/unit/engine/test_restore", "tests/unit/engine/test_export",
        "tests/unit/engine/test_restoring", "tests/unit/engine/test_step_exists",
        "tests/unit/engine/test_shard_load", "tests/unit/engine/test_load_by_catalog",
        "tests/unit/engine/test_catalog_writer")
CHOICE = ("tests/unit/test_lineage", "tests/unit/engine/test_select_step",
          "tests/unit/engine/test_passed", "tests/unit/engine/test_scan",
          "tests/unit/engine/test_open", "tests/unit/engine/test_quarantine",
          "tests/unit/engine/test_claim", "tests/unit/engine/test_gc",
          "tests/unit/engine/test_reading", "tests/unit/engine/test_restore",
          "tests/unit/engine/test_restoring")
HANDLE = ("tests/unit/engine/test_findings", "tests/unit/engine/test_handle",
          "tests/unit/engine/test_reading",
          "tests/unit/engine/test_select_step", "tests/unit/engine/test_verify",
          "tests/unit/engine/test_no_memory", "tests/unit/engine/test_restore",
          "tests/unit/engine/test_restoring", "tests/unit/engine/test_shard_location",
          "tests/unit/engine/test_ending", "tests/api/test_roundtrip",
          "tests/unit/engine/test_load_by_catalog", "tests/unit/engine/test_catalog_writer")


@dataclass(frozen=True)
class Scope:
    """One file."""

    file: str
    why: str
    tests: tuple[str, ...] = ()


SCOPE = [
    Scope("libckpt/engine/save/save.c", "the order of a commit and its acknowledgement", SAVE),
    Scope("libckpt/engine/save/publish.c", "the fence of a commit, and its manifest", SAVE),
    Scope("libckpt/engine/save/cleanup.c", "what is left of a save that failed", SAVE),
    Scope("libckpt/engine/lineage/claim.c", "who may write", STORE),
    Scope("libckpt/engine/gc/retention.c", "which steps stay", STORE),
    Scope("libckpt/engine/gc/gc.c", "when steps go, and what dead processes left", STORE),
    Scope("libckpt/engine/gc/delete_step.c", "the order of a removal, and who may not be removed", STORE),
    Scope("libckpt/engine/gc/delete_command.c", "what a user may remove", STORE),
    Scope("libckpt/engine/runtime/commands.c", "resuming from an older step, pins, and the end of a core",
          ("tests/unit/engine/test_commands", "tests/unit/engine/test_claim",
           "tests/unit/engine/test_gc", "tests/unit/engine/test_saving",
           "tests/unit/engine/test_leaving", "tests/api/test_policy")),
    Scope("libckpt/engine/reshard/blocks.c", "which bytes of a block are whose",
          ("tests/unit/test_blocks",)),
    Scope("libckpt/store/store_file_small.c", "when a small file is there, and whole", VERBS),
    Scope("libckpt/store/store_file_shard.c", "when a shard is there, and whole", VERBS),
    Scope("libckpt/store/store_file_names.c", "names, their syncs and locks", VERBS),
    Scope("libckpt/store/store_file.c", "what all verbs of the directory store are made of", VERBS),
    Scope("libckpt/store/store_file_error.c", "what is said of a failure, and when nothing is", VERBS),
    Scope("libckpt/store/store.c", "the only calls of a store's table",
          ("tests/unit/store/test_store_table", *VERBS)),
    Scope("libckpt/engine/shard/read.c", "what is read of a shard, and which failure is told", READ),
    Scope("libckpt/engine/shard/read_block.c", "what is compared with its digest, and let out", READ),
    Scope("libckpt/engine/shard/shard.c", "an index, a size, a header that are not the step's", READ),
    Scope("libckpt/engine/shard/search.c", "which of a rank's files is read",
          ("tests/unit/engine/test_repaired_files", *READ)),
    Scope("libckpt/engine/shard/claim.c", "who sends a shard into a bucket",
          ("tests/unit/engine/test_sending",)),
    Scope("libckpt/engine/restore/sink.c", "what becomes of a step that is read", READ),
    Scope("libckpt/engine/restore/sink_export.c", "what becomes of a step that goes into another store", READ),
    Scope("libckpt/engine/restore/fsm.c", "when a restore ends, and what is told of it", READ),
    Scope("libckpt/engine/restore/attempt.c", "which step a restore comes to, and when to another", READ),
    Scope("libckpt/engine/ranks/round.c", "what the outcome of all ranks is, and when a rank ends without it",
          ("tests/unit/engine/test_round", "tests/unit/engine/test_restoring")),
    Scope("libckpt/engine/lineage/step_exists.c", "whether a step is damaged or gone",
          ("tests/unit/engine/test_step_exists",)),
    Scope("libckpt/engine/save/pipeline.c", "what is copied, written and digested of a save", LANE),
    Scope("libckpt/engine/lineage/lineage.c", "which steps a restore may choose", CHOICE),
    Scope("libckpt/engine/lineage/select_step.c", "which step is restored, and what is said of others", CHOICE),
    Scope("libckpt/engine/lineage/scanner.c", "what is there, and what of it verifies", CHOICE),
    Scope("libckpt/engine/lineage/scan.c", "what is known to be there", CHOICE),
    Scope("libckpt/engine/lineage/open.c", "what a store is, and whether there is one", CHOICE),
    Scope("libckpt/engine/lineage/opener.c", "whose store it is", CHOICE),
    Scope("libckpt/engine/lineage/quarantine.c", "what is known to be bad", CHOICE),
    Scope("libckpt/engine/shard/findings.c", "what a verification has found", HANDLE),
    Scope("libckpt/engine/restore/restore.c", "what a restore is told, and tells", HANDLE),
]
