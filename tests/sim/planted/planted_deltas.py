# SPDX-License-Identifier: Apache-2.0
"""Bugs in steps that are stored as the difference to the last one."""
from bug import Planted

# Seeds of the world with such steps; see world_plan.c.
DELTA = 75_000_001
# Memory that changes, and moments that the world hardly ever meets.
BASES = "tests/unit/engine/test_delta"
RANKS = "tests/unit/engine/test_delta_ranks"

DELTAS = [
    Planted(
        "needed-step-expires", "libckpt/engine/gc/retention.c",
        "\tif (s->needed)\n",
        "\tif (false)\n",
        "retention does not even try to take what a step is decoded with", first=DELTA, rare=True),
    Planted(
        "bases-not-in-the-manifest", "libckpt/engine/save/publish.c",
        "\tmanifest.base_count = save->run.count;\n",
        "\tmanifest.base_count = 0;\n",
        "whoever removes steps later knows what the others need", first=DELTA),
    Planted(
        "bases-not-in-the-scan", "libckpt/engine/save/cleanup.c",
        "\tfound.base_count = save->run.count;\n",
        "\tfound.base_count = 0;\n",
        "the process that has saved a step knows what it needs", first=DELTA),
    Planted(
        "base-may-be-removed", "libckpt/engine/gc/delete_command.c",
        "\tif (core->hooks->needs(core, found->generation, found->step))\n",
        "\tif (false)\n",
        "nobody removes a step while the difference to it is being saved", BASES),
    Planted(
        "base-not-compared", "libckpt/engine/save/staged_base.c",
        "\treturn ckpt_digest_equal(&digest, &base->digests[chunk])\n",
        "\treturn ckpt_digest_equal(&digest, &digest) && base->digests\n",
        "what is predicted from memory that has changed cannot be decoded", BASES),
    Planted(
        "same-of-the-last-one", "libckpt/engine/save/staged_base.c",
        "(c->kind == CKPT_ENCODED_SAME ? c->base - 1u :",
        "(c->kind == CKPT_ENCODED_KIND_END ? c->base - 1u :",
        "a chunk that has not changed is that of the step which has its bytes", BASES),
    Planted(
        "base-not-judged", "libckpt/engine/save/delta.c",
        "\tif (based && !may_be_based(save))\n",
        "\tif (based && !may_be_based(save) && !core->saver->run.open)\n",
        "no step is committed that needs one which rank 0 knows to be gone", RANKS),
    Planted(
        "base-of-the-base-not-judged", "libckpt/engine/save/delta.c",
        "\t\tgood = good && is_good(core, &run->steps[i]);\n",
        "\t\tgood = good && run;\n",
        "nothing is predicted from a step that needs a damaged one", BASES),
    Planted(
        "failed-step-ends-the-chain", "libckpt/engine/save/delta.c",
        "\tif (!save->committed) {\n",
        "\tif (!save->committed) {\n\t\tsaver->run = (struct ckpt_delta_run){0};\n",
        "a step that one rank did not begin does not fail the next one", RANKS),
    Planted(
        "unknown-step-loses-its-bases", "libckpt/engine/save/cleanup.c",
        "\t\tckpt_save_note_unknown(save);\n",
        "",
        "what a step needs for which memory was short is not removed", BASES),
]
