# SPDX-License-Identifier: Apache-2.0
"""Bugs to plant in a copy of the product, each of which the simulated world must find.

`old` is the exact text, which must be there once: a bug that can no longer be planted fails the test.
"""
from bug import Planted
from planted_copies import COPIES
from planted_deltas import DELTAS

CROWD = "tests/sim/crowd"
# Seeds of it whose jobs have nodes with a store each, all of them; see crowd_nodes.c.
NODES = 77_000_001
# A training and its bucket.
REMOTE = "tests/sim/remote"
# Seeds of it in which the training is a job of several ranks, all of them; see remote_ranks.c.
RANKS = 78_000_001
# Not a world, but a test with random cuts and boxes: no simulated program asks for a part of a tensor.
GATHER = "tests/unit/engine/test_shard_load"
# Ranks that mean different things by one name: those of the crowd do not.
AGREE = "tests/api/test_agree"
# Moments that the crowd hardly ever meets: one rank writes for long, or closes, and nothing else is slow.
TELLING = "tests/unit/engine/test_notify"
# What a restore has told does not stay, so that the next one has to come soon after.
TOGETHER = "tests/api/test_together"
# A removal that meets a reader on another machine, at every moment of it: one world in ten thousand.
PRESENCE = "tests/unit/engine/test_step_exists"
# Two tiers that are both damaged, chunk by chunk: the bucket of the simulated training is exact.
MENDING = "tests/unit/engine/test_repair"
MENDING_RANKS = "tests/unit/engine/test_repair_ranks"
# A rank that changes its mind, or dies, between two messages: after each of them in turn.
ROUND = "tests/unit/engine/test_round"

PLANTED = [
    Planted(
        "repaired-files-not-looked-for", "libckpt/engine/shard/shard.c",
        "\treturn code < 0 && s->lister &&",
        "\treturn false && s->lister &&",
        "a repaired rank has files of another attempt than the manifest names"),
    Planted(
        "own-claim-not-known", "libckpt/engine/lineage/claim.c",
        "\tif (c->newest != core->lineage->tried_generation)\n",
        "\tif (true)\n",
        "a claim that failed, but is there, is taken for another process's"),
    Planted(
        "shard-not-synced", "libckpt/store/store_file_shard.c",
        "\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->object->fd);\n",
        "\t\top->req.result = 0;\n",
        "a commit whose shard is in the cache only is torn by a power cut"),
    Planted(
        "manifest-not-synced", "libckpt/store/store_file_small.c",
        "\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->temp.fd);\n",
        "\top->req.result = 0;\n\tif (op->verb == CKPT_STORE_PUT)\n"
        "\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->temp.fd);\n",
        "the name of the manifest may be durable before its bytes are"),
    Planted(
        "index-not-synced", "libckpt/store/store_file_small.c",
        "\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->temp.fd);\n",
        "\top->req.result = 0;\n\tif (op->verb == CKPT_STORE_PUBLISH)\n"
        "\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->temp.fd);\n",
        "a manifest is published before the index that it names is durable"),
    Planted(
        "step-directory-not-synced", "libckpt/engine/save/save.c",
        "\tckpt_store_sync(store, &save->op, save->path);\n\tCKPT_AWAIT(task, save->op.done);\n",
        "",
        "the names of shard and index may be lost behind a durable manifest"),
    Planted(
        "publish-not-synced", "libckpt/store/store_file_small.c",
        "\tckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->parent);\n"
        "\tCKPT_AWAIT(task, !op->asked);\n\tif (op->req.result >= 0) {\n",
        "\top->req.result = 0;\n\tif (op->req.result >= 0) {\n",
        "the rename of an acknowledged manifest may be lost"),
    Planted(
        "new-directory-not-synced", "libckpt/store/store_file_names.c",
        "\tckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->parent);\n",
        "\top->req.result = 0;\n",
        "a step's directory may be lost with all that is durable in it"),
    Planted(
        "existing-directory-not-synced", "libckpt/store/store_file_names.c",
        "\tckpt_file_set_parent(op, op->path);\n",
        "\tif (r == -EEXIST)\n\t\treturn 0;\n\tckpt_file_set_parent(op, op->path);\n",
        "whoever made the directory may have died before syncing its parent"),
    Planted(
        "acknowledged-early", "libckpt/engine/save/publish.c",
        "\tsave->publishing = true;\n",
        "\tsave->publishing = true;\n\tsave->ended = true;\n"
        "\tckpt_core_timer_clear(save->core, &save->timer);\n"
        "\tckpt_core_answer(save->core, &save->latch, CKPT_DONE_LOCAL | CKPT_DONE_END);\n",
        "LOCAL is told before the manifest is durable"),
    Planted(
        "acknowledged-before-sync", "libckpt/store/store_file_small.c",
        "\treturn ckpt_task_continue(task, publish_sync_body);\n",
        "\tckpt_file_set_parent(op, op->path);\n\tif (!op->locked)\n\t\treturn 0;\n"
        "\treturn ckpt_task_continue(task, publish_sync_body);\n",
        "the rename is taken for the commit"),
    Planted(
        "name-used-again", "libckpt/store/store_file_small.c",
        "\t\t\top->path, (unsigned long long)ckpt_env_random(op->store->env));\n",
        "\t\t\top->path, 1ULL);\n",
        "what a dead process has left does not stand in the way of the next one"),
    Planted(
        "short-write-taken-for-whole", "libckpt/store/store_file_shard.c",
        "\top->progress = align_down(op->progress + (uint64_t)moved, unit(op));\n",
        "\top->progress = op->length;\n",
        "the rest of a short write is never written"),
    Planted(
        "write-error-ignored", "libckpt/store/store_file_shard.c",
        "\tif (moved < 0)\n\t\treturn (int)moved;\n",
        "\tif (moved < 0)\n\t\tmoved = (int64_t)(op->length - before);\n",
        "a block that was not written is committed"),
    Planted(
        "fsync-tried-again", "libckpt/store/store_file_shard.c",
        "\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->object->fd);\n"
        "\t\tCKPT_AWAIT(task, !op->asked);\n",
        "\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->object->fd);\n"
        "\t\tCKPT_AWAIT(task, !op->asked);\n"
        "\t\tif (op->req.result < 0) {\n"
        "\t\t\tckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->object->fd);\n"
        "\t\t\tCKPT_AWAIT(task, !op->asked);\n\t\t}\n",
        "the second fsync succeeds, and the bytes are not there"),
    Planted(
        "manifest-fsync-error-ignored", "libckpt/store/store_file_small.c",
        "\tif (r < 0)\n\t\treturn ckpt_file_discard(op, ckpt_file_fail(op, r, \"sync %s\", "
        "op->temp.path));\n",
        "",
        "a manifest or index whose sync failed is used all the same"),
    Planted(
        "removal-not-synced", "libckpt/engine/gc/delete_step.c",
        "\tckpt_store_sync(store, &r->op, r->path);\n\tCKPT_AWAIT(task, r->op.done);\n",
        "",
        "shards are unlinked before the unlinked manifest is durably gone"),
    Planted(
        "retention-keeps-one-too-few", "libckpt/engine/gc/retention.c",
        "(kept < keep->keep_last) {\n",
        "(kept + 1 < keep->keep_last) {\n",
        "keep_last steps stay"),
    Planted(
        "retention-forgets-pins", "libckpt/engine/gc/retention.c",
        "\t\tif (keep->pins[i] == s->step)\n",
        "\t\tif (keep->pins[i] == s->step + 1)\n",
        "a pinned step stays"),
    Planted(
        "retention-forgets-every", "libckpt/engine/gc/retention.c",
        "keep->keep_every && s->step % keep->keep_every == 0",
        "keep->keep_every && s->step % keep->keep_every == 1",
        "every n-th step stays"),
    Planted(
        "reader-takes-no-lock", "libckpt/store/store_file_names.c",
        "\tckpt_file_ask_lock(op, op->temp.fd);\n",
        "\top->req.result = 0;\n\tif (!op->shared)\n"
        "\t\tckpt_file_ask_lock(op, op->temp.fd);\n",
        "a step that is being read is not removed"),
    Planted(
        "removes-though-fenced", "libckpt/engine/gc/delete_step.c",
        "\tif (newest <= own)\n",
        "\tif (newest <= own || newest > 0)\n",
        "a process that was succeeded removes nothing that its successor needs"),
    Planted(
        "publishes-though-fenced", "libckpt/engine/save/publish.c",
        "\tif (newest <= core->lineage->generation)\n",
        "\tif (newest <= core->lineage->generation || newest > 0)\n",
        "a process that was succeeded is not told that its step is durable"),
    Planted(
        "digest-not-compared", "libckpt/engine/shard/read_block.c",
        "\tif (!ckpt_digest_equal(&digest, &c->layout->chunks[chunk].digest))\n",
        "\tif (c->findings && !ckpt_digest_equal(&digest, &c->layout->chunks[chunk].digest))\n",
        "damaged bytes are given to the user"),
    Planted(
        "gate-ignored", "libckpt/engine/save/save.c",
        "\tCKPT_AWAIT(task, save->code || !save->fenced || (save->gate && !save->looking));\n",
        "\tCKPT_AWAIT(task, true);\n",
        "a step is published before its fence has found it unchanged"),
    Planted(
        "samples-not-compared", "libckpt/engine/save/tear_check.c",
        "\t\tif (s->view.device == 0 && !s->eager && sample(save, i) != s->sample)\n",
        "\t\tif (false)\n",
        "a change before the fence is noticed"),
    Planted(
        "lineage-without-limit", "libckpt/engine/lineage/lineage.c",
        "\t\tif (s->generation == generation && s->step <= limit && may_restore(s))\n",
        "\t\tif (s->generation == generation && may_restore(s))\n",
        "a branch that was rolled back is never chosen"),
    Planted(
        "parent-forgotten", "libckpt/engine/lineage/claim.c",
        "\t\t.parent_step = core->lineage->adopted ? core->lineage->parent_step : 0,\n",
        "\t\t.parent_step = 0,\n",
        "the lineage goes back to what was resumed from"),
    Planted(
        "quarantine-forgotten", "libckpt/engine/lineage/lineage.c",
        "\t\tif (s->state == CKPT_STEP_QUARANTINED)\n\t\t\t(*passed)++;\n",
        "\t\tif (s->state == CKPT_STEP_BROKEN)\n\t\t\t(*passed)++;\n",
        "a step that failed verification does not stand before a good one"),
    Planted(
        "files-removed-after-publish", "libckpt/engine/save/cleanup.c",
        "\t} else if (save->shard_attempt[0] && !save->publish_tried) {\n",
        "\t} else if (save->shard_attempt[0]) {\n",
        "a publication that failed may have taken place: its shard stays"),
    Planted(
        "claim-not-locked", "libckpt/store/store_file_small.c",
        "\tif (op->locked)\n\t\tckpt_file_ask_lock(op, op->temp.fd);\n",
        "\tif (op->locked)\n\t\top->req.result = 0;\n",
        "a live holder keeps others on its machine away"),
    Planted(
        "deadline-not-set", "libckpt/engine/save/save.c",
        "\tckpt_core_timer_set(core, &save->timer, save->start_ns + save->timeout_ns);\n",
        "",
        "a save that the disk does not answer ends by its deadline"),
    Planted(
        "given-up-and-answered", "libckpt/engine/save/cleanup.c",
        "\tif (save->ended) {\n",
        "\tif (save->ended && !save->committed) {\n",
        "a step that was given up does not become good afterwards"),
    Planted(
        "deadline-waits-for-manifest", "libckpt/engine/save/save.c",
        "\t\tckpt_save_answer_end(save);\n\t\treturn;\n",
        "\t\treturn;\n",
        "a save ends by its deadline, whatever becomes of its manifest"),
    Planted(
        "stream-not-held", "libckpt/engine/save/stream_fence.c",
        "\t\t\tr = ckpt_device_hold(device, save->streams[i].handle, which,\n",
        "\t\t\tr = ckpt_device_hold(device, save->streams[i].handle, CKPT_HOLD_EAGER,\n",
        "what a GPU computes behind the fence comes after the copies"),
    Planted(
        "stream-not-followed", "libckpt/engine/save/builder.c",
        "\treturn ckpt_save_follow(save, err);\n",
        "\treturn 0;\n",
        "what a GPU has computed before the save is in it"),
    Planted(
        "fed-by-the-first-block", "libckpt/engine/save/pipeline.c",
        "\tif (save->fed_count == save->plan->block_count)\n",
        "\tif (save->fed_count > 0)\n",
        "a stream is held for copies that its GPU has been given, all of them"),
    Planted(
        "eager-told-at-once", "libckpt/engine/save/pipeline.c",
        "\tif (save->eager_left == 0)\n\t\tckpt_core_answer(",
        "\tif (true)\n\t\tckpt_core_answer(",
        "a stream is held for the eager copies when its GPU has been given them"),
    Planted(
        "staged-when-fed", "libckpt/engine/save/pipeline.c",
        "\tlane->fed = true;\n",
        "\tlane->fed = lane->copied = true;\n",
        "a slot is digested, written and given back when the GPU has filled it, and not before"),
    Planted(
        "look-of-the-gpu-ignored", "libckpt/engine/save/tear_check.c",
        "\telse if (batch->torn >= 0)\n",
        "\telse if (false)\n",
        "a change before the fence is noticed, whoever can see it"),
    Planted(
        "sampled-behind-the-copies", "libckpt/engine/save/tear_check.c",
        "int ckpt_samples_start(struct ckpt_save *save)\n{\n"
        "\tuint64_t devices = ckpt_save_lookers(save);\n\n\tif (!devices)\n\t\treturn 0;\n"
        "\tif (ckpt_copy_batch_reserve(&save->sampling, devices) < 0 ||\n"
        "\t\tckpt_copy_batch_reserve(&save->look, devices) < 0)\n"
        "\t\treturn ckpt_fail(&save->work, -ENOMEM, \"out of memory\");\n"
        "\tsave->sampling.done = sampled;\n\tsave->working++;\n"
        "\tstart(save, &save->sampling, CKPT_COPY_SAMPLE);\n",
        "static void late(struct ckpt_node *node)\n{\n"
        "\tstruct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, look_node);\n\n"
        "\tstart(save, &save->sampling, CKPT_COPY_SAMPLE);\n}\n\n"
        "int ckpt_samples_start(struct ckpt_save *save)\n{\n"
        "\tuint64_t devices = ckpt_save_lookers(save);\n\n\tif (!devices)\n\t\treturn 0;\n"
        "\tif (ckpt_copy_batch_reserve(&save->sampling, devices) < 0 ||\n"
        "\t\tckpt_copy_batch_reserve(&save->look, devices) < 0)\n"
        "\t\treturn ckpt_fail(&save->work, -ENOMEM, \"out of memory\");\n"
        "\tsave->sampling.done = sampled;\n\tsave->working++;\n\tsave->look_node.run = late;\n"
        "\tckpt_inbox_push(save->core->parts.env->inbox, &save->look_node);\n",
        "the samples are those of before the first copy"),
    Planted(
        "gate-does-not-wait-for-the-look", "libckpt/engine/save/save.c",
        "(save->gate && !save->looking));\n",
        "save->gate);\n",
        "a step is published when the GPUs have found it unchanged"),
    Planted(
        "look-without-streams-not-waited-for", "libckpt/engine/save/tear_check.c",
        "\t\tif (!save->look_waited)\n",
        "\t\tif (true)\n",
        "where no stream can be held back, the fence waits for the look itself"),
    Planted(
        "end-waits-for-the-gpu", "libckpt/engine/save/save.c",
        "\tif (save->ended || save->copying > 0 || save->halting)\n",
        "\tif (save->ended || save->copying > 0 || save->sampling.left > 0 || save->looking)\n",
        "a GPU that stands still does not keep a save from its deadline"),
    Planted(
        "samples-not-held-for", "libckpt/engine/save/tear_check.c",
        "\t\t.eager = true,\n",
        "\t\t.eager = false,\n",
        "what a user computes behind wait_eager comes after the samples"),
    Planted(
        "done-by-the-first-device", "libckpt/engine/core/copy_batch.c",
        "\tif (batch->left == 0)\n\t\tbatch->done(batch);\n",
        "\tif (batch->left == 0 || copy->device == 0)\n\t\tbatch->done(batch);\n",
        "a block is whole when every device has made its part"),
    Planted(
        "fed-before-the-cpu-is-done", "libckpt/engine/core/copy_batch.c",
        "\tif (!host)\n\t\tsay_fed(batch);\n",
        "\tsay_fed(batch);\n",
        "no copy of the CPU's is under way when the fence lets the training go on"),
    Planted(
        "slot-given-back-early", "libckpt/engine/save/pipeline.c",
        "\tif (!lane || save->hold || !lane->written || !lane->digested)\n",
        "\tif (!lane || save->hold || !lane->written)\n",
        "a slot is used again only when its bytes were digested and written"),
    Planted(
        "straddling-block-released", "libckpt/engine/save/pipeline.c",
        "\t\tif (block + 1 >= save->next || (after && !after->digested))\n",
        "\t\tif (after && !after->digested)\n",
        "a chunk that goes on in the next block needs this one too"),
    Planted(
        "steps-may-repeat", "libckpt/engine/save/save.c",
        "\tif (core->lineage->any_step && save->step <= core->lineage->last_step)\n",
        "\tif (core->lineage->any_step && save->step < core->lineage->last_step)\n",
        "a step is decided once in its generation"),
    Planted(
        "last-good-one-removed", "libckpt/engine/gc/delete_step.c",
        "\tif (is_last(r))\n",
        "\tif (!r->core && is_last(r))\n",
        "nobody removes the only good step"),
    Planted(
        "listing-leaks", "libckpt/engine/save/publish.c",
        "\tckpt_free(save->op.listing.names);\n",
        "",
        "a closed engine has given back all of its memory"),
    Planted(
        "lock-leaks", "libckpt/engine/gc/delete_step.c",
        "\tif (r->lock.fd < 0) {\n",
        "\tif (r->lock.fd < 0 || r->result < 0) {\n",
        "a closed engine has no file open"),
    Planted(
        "unreadable-taken-for-broken", "libckpt/engine/lineage/select_step.c",
        "\tbool in_the_way = bad && (!step || ckpt_select_may_be_good(bad));\n",
        "\tbool in_the_way = bad && !step;\n",
        "an error of reading does not roll an acknowledged step back"),
    Planted(
        "rank-counted-twice", "libckpt/engine/save/commit_leader.c",
        "\tx->heard += missing(save, record.rank.rank);\n",
        "\tx->heard += 2;\n",
        "a step is published when all ranks have said that they are durable", CROWD),
    Planted(
        "replicas-not-compared", "libckpt/engine/save/replicas.c",
        "\tif (found.groups == 0)\n",
        "\tif (true)\n",
        "what ranks hold alike is the same on all of them, or the step is of no rank", CROWD),
    Planted(
        "replicas-sampled-elsewhere", "libckpt/engine/save/replicas.c",
        "\tsave->alike_seed = ckpt_sample_mix(save->step);\n",
        "\tsave->alike_seed = ckpt_sample_mix(save->step + save->core->config.rank);\n",
        "ranks that hold the same are not told that they differ", CROWD),
    Planted(
        "failure-taken-for-part", "libckpt/engine/save/commit_leader.c",
        "\tif (record.verdict.code < 0)\n",
        "\tif (false)\n",
        "a rank that failed makes the step fail", CROWD),
    Planted(
        "gate-of-one-ignored", "libckpt/engine/save/save.c",
        "\tCKPT_AWAIT(task, save->code || !save->fenced || (save->gate && !save->looking));\n",
        "\tCKPT_AWAIT(task, save->code || !save->fenced || save->gate || save->core->config.rank);\n",
        "no rank is part of a step before its gate is open", CROWD),
    Planted(
        "register-not-synced", "libckpt/engine/save/commit_resolve.c",
        "\tckpt_store_sync(store, &save->op, save->path);\n",
        "\tsave->op.done = true;\n\tsave->op.result = 0;\n",
        "what another rank finds in the register is durable before it is acknowledged", CROWD, rare=True),
    Planted(
        "register-not-read", "libckpt/engine/save/commit_follower.c",
        "\tif (save->op.result == -EEXIST)\n"
        "\t\treturn ckpt_task_continue(task, ckpt_save_resolve_body);\n",
        "\tif (save->op.result == -EEXIST)\n"
        "\t\treturn give_up(task, ckpt_save_aborted(save, CKPT_EABORTED, \"?\"));\n",
        "who loses the register is told what won", CROWD),
    Planted(
        "outcome-not-heard", "libckpt/engine/save/commit_follower.c",
        "\tif (outcome.verdict.code < 0)\n",
        "\tif (false)\n",
        "an abort is an abort for all", CROWD),
    Planted(
        "failure-not-told", "libckpt/engine/save/commit_notify.c",
        "\treturn !save->committed && !save->ranks->told && !save->ranks->answered;\n",
        "\treturn false;\n",
        "the others hear of a failure before their deadline", CROWD),
    Planted(
        "told-although-unknown", "libckpt/engine/save/commit_notify.c",
        "\toutcome.open = !save->committed && !save->ranks->settled && !save->core->config.node_store;\n",
        "\toutcome.open = false;\n",
        "rank 0 does not say that a step failed which may be there", CROWD),
    Planted(
        "refusal-not-told", "libckpt/engine/save/commit_notify.c",
        "\treturn subject.generation > 0 && !core->closing &&",
        "\treturn subject.generation > 0 && false &&",
        "who cannot begin a step says so to the others", CROWD),
    Planted(
        "skip-forgotten", "libckpt/engine/save/commit_notify.c",
        "\tif (core->config.rank == 0)\n\t\treturn told->step < save->step;\n",
        "\tif (core->config.rank == 0)\n\t\treturn true;\n",
        "what was told of a later step stays when an earlier one has ended", CROWD),
    Planted(
        "failure-forgotten", "libckpt/engine/save/commit_notify.c",
        "(save->committed && told->step < save->step);\n",
        "told->step < save->step;\n",
        "a failure stays told while rank 0 only says that it skips other steps", TELLING),
    Planted(
        "skipped-by-itself", "libckpt/engine/save/skip.c",
        "\tr = s->call.task.result == 0 ? take(s) : 0;\n",
        "\tr = s->call.task.result == 0 ? take(s) : CKPT_ESKIPPED;\n",
        "rank 0 decides for all whether a step is skipped", CROWD),
    Planted(
        "register-not-looked-at", "libckpt/engine/save/commit_follower.c",
        "\t\tif (save->op.result == 0 && save->ranks->seen)\n",
        "\t\tif (false)\n",
        "a rank 0 that dies after its commit keeps nobody waiting", CROWD, rare=True),
    Planted(
        "deaf-while-it-writes", "libckpt/engine/save/save.c",
        "\t\tckpt_save_listen(save);\n",
        "\t\tsave->ranks->deaf = 0;\n",
        "a rank hears of a step that is over before its own part of it is done", TELLING),
    Planted(
        "not-told-while-closing", "libckpt/engine/ranks/exchange_call.c",
        "\tif (!tells || call->op.result == CKPT_ECLOSED)\n",
        "\tif (true)\n",
        "what the others wait for is told by an engine that closes, be it at the second try",
        TELLING),
    Planted(
        "deaf-before-the-gate", "libckpt/engine/save/save.c",
        "\tif (save->ranks && save->core->config.rank == 0 && !save->ranks->heard)\n"
        "\t\treturn",
        "\tCKPT_AWAIT(task, save->code || !save->fenced || save->gate);\n"
        "\tif (save->ranks && save->core->config.rank == 0 && !save->ranks->heard)\n"
        "\t\treturn",
        "rank 0 hears of a failure before its own gate is open", CROWD),
    Planted(
        "files-removed-unsettled", "libckpt/engine/save/cleanup.c",
        "\tif (save->publish_tried && save->ranks && save->ranks->settled)\n",
        "\tif (save->publish_tried && save->ranks)\n",
        "files that a manifest may name stay", CROWD),
    Planted(
        "parent-not-compared", "libckpt/engine/lineage/claim_join.c",
        "\tif (claim->parent_generation != parent || claim->parent_step != step)\n",
        "\tif (false)\n",
        "all ranks go on from one step", CROWD),
    Planted(
        "every-rank-keeps", "libckpt/engine/gc/gc.c",
        "\tif (core->closing || core->lineage->fenced || !ckpt_core_owns_store(core))\n",
        "\tif (core->closing || core->lineage->fenced)\n",
        "one rank keeps the store", CROWD),
    Planted(
        "every-rank-holds", "libckpt/engine/lineage/open.c",
        "\treturn ckpt_task_continue(task, core->config.rank == 0 ? ckpt_open_hold_body : scan_body);\n",
        "\treturn ckpt_task_continue(task, ckpt_open_hold_body);\n",
        "the ranks of a job do not shut each other out", CROWD),
    Planted(
        "talk-without-deadline", "libckpt/engine/ranks/exchange_call.c",
        "\treturn ckpt_env_now(call->core->parts.env) < call->deadline_ns ? 0 : late(call);\n",
        "\treturn 0;\n",
        "a rank that is not there keeps nobody past the deadline", CROWD),
    Planted(
        "talk-tried-once", "libckpt/engine/ranks/exchange_call.c",
        "\t\tif (call->op.result == 0 || call->op.result == -EEXIST)\n"
        "\t\t\treturn call->op.result;\n",
        "\t\treturn 0;\n",
        "what the exchange refuses is told again", CROWD),
    Planted(
        "stop-not-heeded", "libckpt/engine/ranks/exchange_call.c",
        "\tif (*call->stop)\n\t\treturn *call->stop;\n",
        "",
        "a save that is stopped ends, whoever it was waiting for", CROWD),
    Planted(
        "disagreement-committed", "libckpt/engine/save/rank_schema.c",
        "\tif (is_unreadable(r))\n",
        "\tif (false)\n",
        "a step in which ranks mean different tensors by one name is not committed", AGREE),
    Planted(
        "equal-boxes-not-compared", "libckpt/engine/save/rank_schema.c",
        "\tif (found->differing == 0) {\n",
        "\tif (true) {\n",
        "a step in which two ranks have written different bytes of one box is not committed", AGREE),
    Planted(
        "equal-boxes-compared-once", "libckpt/engine/save/rank_schema.c",
        "\tcore->saver->shared = found->held;\n",
        "\tckpt_free(found->held);\n\tcore->saver->shared = NULL;\n",
        "boxes that were the same at the first save are compared at every later one", AGREE),
    Planted(
        "bad-copy-is-the-end", "libckpt/engine/shard/load.c",
        "\tint r = find_spares(g, w->rank);\n",
        "\tint r = -ENODATA;\n",
        "what one rank has lost is had from another that holds the same", GATHER),
    Planted(
        "straddled-though-unwanted", "libckpt/engine/reshard/targets.c",
        "\t\tlo = seek(targets, b, &box, lo);\n",
        "",
        "a box may pass over the chunk that goes across the end of a block", GATHER),
    Planted(
        "follower-picks", "libckpt/engine/restore/sync.c",
        "\trestore->pick.named = x->chosen.attempt;\n",
        "\trestore->pick.chosen.generation = 0;\n",
        "all ranks restore what rank 0 has picked", CROWD),
    Planted(
        "verdicts-not-gathered", "libckpt/engine/ranks/round.c",
        "\treturn round->core->config.rank == 0 && round->ready && round->missing == 0;\n",
        "\treturn round->core->config.rank == 0 && round->ready;\n",
        "a step is restored when all ranks have said that it is", CROWD),
    Planted(
        "own-verdict-for-all", "libckpt/engine/ranks/round.c",
        "\t\t\tround->put = r == 0;\n",
        "\t\t\tround->put = r == 0;\n\t\t\tif (r == 0)\n"
        "\t\t\t\treceive(round, &round->call.items[0]);\n",
        "no rank goes on with a step that another one could not restore", CROWD),
    Planted(
        "verdict-of-another-restore", "libckpt/engine/restore/sync.c",
        "\tv->number = r->ranks->number;\n",
        "\tv->number = 1;\n",
        "what was told of one restore says nothing about the next", TOGETHER),
    Planted(
        "nothing-there-not-told", "libckpt/engine/restore/vote.c",
        "\treturn ckpt_restore_record_encode(&const_vote_of(round)->vote, key, out);\n",
        "\tif (const_vote_of(round)->vote.verdict.code == CKPT_ENOSTEP)\n\t\treturn -ENOMEM;\n"
        "\treturn ckpt_restore_record_encode(&const_vote_of(round)->vote, key, out);\n",
        "all ranks hear that there is nothing to go on from", CROWD),
    Planted(
        "damage-of-others-ignored", "libckpt/engine/restore/fsm.c",
        "\treturn ckpt_core_owns_store(r->core) && ckpt_code_is_damage(outcome->verdict.code) &&\n",
        "\treturn outcome->rank == 0 && ckpt_core_owns_store(r->core) &&\n"
        "\t       ckpt_code_is_damage(outcome->verdict.code) &&\n",
        "what is damaged for one rank is not given to any again", CROWD),
    Planted(
        "gone-is-damaged", "libckpt/engine/lineage/step_exists.c",
        "\tp->gone = p->op.result == -ENOENT || p->op.result == -ESTALE;\n",
        "\tp->gone = false;\n",
        "a step that is removed while it is read is not taken for a damaged one", PRESENCE),
    Planted(
        "gone-is-damaged-for-others", "libckpt/engine/restore/fsm.c",
        "\tif (r->ranks && must_quarantine(r)) {\n",
        "\tif (false) {\n",
        "what another rank calls damaged is looked for before that is noted", PRESENCE),
    Planted(
        "gone-is-no-step", "libckpt/engine/restore/attempt.c",
        "\treturn ckpt_fail_at(&r->why, latest ? -EBUSY : CKPT_ENOSTEP,\n",
        "\treturn ckpt_fail_at(&r->why, CKPT_ENOSTEP,\n",
        "who has met a removal of the latest does not hear that there is none", PRESENCE),
    Planted(
        "outcome-put-twice", "libckpt/exchange/exchange_dir.c",
        "\td->op.result = same ? 0 : -EEXIST;\n",
        "\td->op.result = same ? 0 : 0;\n",
        "there is one outcome of a restore, whoever comes first", CROWD),
    Planted(
        "newest-value-counts", "libckpt/engine/ranks/round.c",
        "\t\tif (r == 0)\n\t\t\treceive(round, &round->call.items[0]);\n",
        "\t\tif (r == 0 && round->failed)\n\t\t\tend_alone(round);\n\t\telse if (r == 0)\n"
        "\t\t\treceive(round, &round->call.items[0]);\n",
        "what a rank has put counts, and not what it has come to since", ROUND),
    Planted(
        "held-round-decided", "libckpt/engine/ranks/round.c",
        "\t\tif (round->failed || (has_all(round) && !round->held))\n",
        "\t\tif (round->failed || has_all(round))\n",
        "rank 0 works with the values of all ranks before any of them has the outcome", ROUND),
    Planted(
        "value-dropped-after-failure", "libckpt/engine/ranks/round.c",
        "\tif (round->put && round->well) {\n",
        "\tif (round->put) {\n",
        "rank 0 may ask for the value of a rank that has received a failure", ROUND),
    Planted(
        "vote-without-deadline", "libckpt/engine/ranks/round.c",
        "\t\tround->deadline_ns = ckpt_round_deadline(round->core);\n",
        "",
        "a rank that died while it read keeps nobody past the deadline", ROUND),
    Planted(
        "session-used-again", "libckpt/engine/lineage/opener.c",
        "\tif (o->used)\n",
        "\tif (o->used)\n\t\treturn 0;\n\tif (o->used)\n",
        "what an earlier start has said is not heard by a later one", CROWD),
    Planted(
        "node-acknowledged-before-install", "libckpt/engine/save/commit_nodes.c",
        "\tr = ckpt_save_check_manifest(save, save->manifest.data, save->manifest.len);\n",
        "\tsave->publishing = false;\n\tsave->committed = true;\n"
        "\treturn ckpt_task_continue(task, ckpt_save_end_body);\n"
        "\tr = ckpt_save_check_manifest(save, save->manifest.data, save->manifest.len);\n",
        "what a rank is told is durable is in the store of its node", CROWD, NODES),
    Planted(
        "node-manifest-seen-is-durable", "libckpt/engine/save/commit_nodes.c",
        "\t\tif (save->op.result == 0)\n"
        "\t\t\treturn ckpt_task_continue(task, ckpt_save_resolve_body);\n",
        "\t\tif (save->op.result == 0) {\n\t\t\tsave->publishing = false;\n"
        "\t\t\tsave->committed = true;\n"
        "\t\t\treturn ckpt_task_continue(task, ckpt_save_end_body);\n\t\t}\n",
        "a rank that finds the manifest which another is installing waits until it is durable", CROWD, NODES),
    Planted(
        "node-abort-overruled", "libckpt/engine/save/commit_nodes.c",
        "\tckpt_save_notify(save);\n\tCKPT_AWAIT(task, x->call.task.finished);\n"
        "\tif (x->call.task.result == -EEXIST)\n\t\treturn ckpt_task_continue(task, read_body);\n"
        "\tif (x->call.task.result < 0)\n\t\treturn undecided(task, x->call.task.result);\n"
        "\tx->decided = true;\n",
        "\tckpt_save_notify(save);\n\tCKPT_AWAIT(task, x->call.task.finished);\n"
        "\tif (x->call.task.result < 0 && x->call.task.result != -EEXIST)\n"
        "\t\treturn undecided(task, x->call.task.result);\n\tx->decided = true;\n",
        "of a commit and an abort the first that was put is the outcome", CROWD, NODES, rare=True),
    Planted(
        "node-commit-overruled", "libckpt/engine/save/commit_nodes.c",
        "\tif (x->call.task.result == -EEXIST)\n\t\treturn ckpt_task_continue(task, read_body);\n"
        "\tif (x->call.task.result < 0)\n\t\treturn undecided(task, x->call.task.result);\n"
        "\treturn give_up(",
        "\tif (x->call.task.result < 0 && x->call.task.result != -EEXIST)\n"
        "\t\treturn undecided(task, x->call.task.result);\n\treturn give_up(",
        "a rank that asks how a step ended hears that it was committed", CROWD, NODES),
    Planted(
        "node-installed-before-decided", "libckpt/engine/save/commit_nodes.c",
        "\tsave->publish_tried = true;\n\tsave->publishing = true;\n\tprepare_outcome(save);\n",
        "\tsave->publish_tried = true;\n\tsave->publishing = true;\n\tx->decided = true;\n"
        "\tif (x->decided)\n\t\treturn ckpt_task_continue(task, install_body);\n"
        "\tprepare_outcome(save);\n",
        "no store holds a manifest that the others may still vote down", CROWD, NODES),
    Planted(
        "node-claims-own-number", "libckpt/engine/lineage/open_sync.c",
        "\town->newest = ckpt_scan_newest_claim(scan);\n",
        "\tif (own->rank > 0)\n\t\treturn;\n\town->newest = ckpt_scan_newest_claim(scan);\n",
        "a generation is newer than those that any node has seen", CROWD, NODES),
    Planted(
        "node-commit-not-brought", "libckpt/engine/lineage/open_catchup.c",
        "\treturn is_new(n, at) || (!is_claim(n, at) && ckpt_node_item_among(item_at(n, at),\n",
        "\treturn is_claim(n, at) && (is_new(n, at) || ckpt_node_item_among(item_at(n, at),\n",
        "a node that did not live to see a commit has it after the next opening", CROWD, NODES),
    Planted(
        "node-hole-not-filled", "libckpt/engine/lineage/open_sync.c",
        "\t\telse if (step->state == CKPT_STEP_PENDING)\n",
        "\t\telse if (false)\n",
        "a node that missed one commit, and has newer ones, is brought it", CROWD, NODES),
    Planted(
        "node-removed-is-brought-back", "libckpt/engine/lineage/open_catchup.c",
        "\t*ret_whole = whole && own > 0;\n",
        "\t*ret_whole = true;\n",
        "a step of which files were removed does not come back", CROWD, NODES),
    Planted(
        "node-stopped-save-tells-its-part", "libckpt/engine/save/commit_follower.c",
        "\t\t/* It may have been stopped meanwhile, and its user told. */\n"
        "\t\tif (save->code)\n\t\t\treturn ckpt_task_continue(task, ckpt_save_end_body);\n",
        "",
        "a step that was given up on one rank is committed for none", CROWD, NODES),
    Planted(
        "node-run-told-before-it-is-durable", "libckpt/engine/lineage/open_sync.c",
        "\t\ttask, strcmp(n->own.run_id, CKPT_NODE_NO_RUN) == 0 ? name_run_body : release_body);\n",
        "\t\ttask, release_body);\n",
        "the stores of a job are of one run, whenever its first start ends", CROWD, NODES),
    Planted(
        "node-not-kept", "libckpt/engine/core/core.c",
        "\treturn core->config.rank == (core->config.node_store ? core->config.node_leader : 0);\n",
        "\treturn core->config.rank == 0;\n",
        "each node's store is kept within its bounds", CROWD, NODES),
    Planted(
        "node-held-by-nobody", "libckpt/engine/lineage/open_sync.c",
        "\tif (o->held || newest > o->newest)\n",
        "\tif (false)\n",
        "a start of the job does not take a node's store from one that lives", CROWD, NODES),
    Planted(
        "remote-manifest-before-shard", "libckpt/engine/copy/upload.c",
        "\tckpt_shard_copy_start_index(&u->copy);\n",
        "\tif (u->copy.made)\n\t\treturn ckpt_task_continue(task, publish_body);\n"
        "\tckpt_shard_copy_start_index(&u->copy);\n",
        "a manifest in the bucket names what is there", REMOTE),
    Planted(
        "remote-own-manifest-is-anothers", "libckpt/engine/copy/upload_probe.c",
        "\t\t    memcmp(u->op.data, u->pick.manifest_bytes, u->op.length) == 0;\n",
        "\t\t    false;\n",
        "a manifest whose answer was lost is this job's own, and no reason to give up", REMOTE),
    Planted(
        "remote-tombstone-not-heeded", "libckpt/engine/copy/upload_probe.c",
        "\tu->deleting = u->op.result >= 0;\n",
        "\tu->deleting = false;\n",
        "a step that is being removed from the bucket is not sent again", REMOTE),
    Planted(
        "remote-tombstone-not-looked-for", "libckpt/engine/copy/upload_probe.c",
        "\tif (r < 0 || (u->deleting && u->then != look_body))\n",
        "\tif (r < 0)\n",
        "what is listed under a tombstone is not taken for what stays", REMOTE),
    Planted(
        "remote-parts-sent-again", "libckpt/store/store_s3_file.c",
        "\t\tif (!file->varied)\n"
        "\t\t\treturn 0;\n",
        "",
        "a part that the server has told is not sent again", REMOTE),
    Planted(
        "remote-newest-first", "libckpt/engine/copy/upload_entries.c",
        "\treturn e->generation < generation || (e->generation == generation && e->step < step);\n",
        "\treturn e->generation > generation || (e->generation == generation && e->step > step);\n",
        "steps come into the bucket in their order", REMOTE),
    Planted(
        "remote-going-is-the-latest", "libckpt/engine/lineage/lineage.c",
        "\t\tif (!s->in_lineage || s->deleting != deleting)\n",
        "\t\tif (!s->in_lineage)\n",
        "a step with a tombstone is not brought while there is another", REMOTE),
    Planted(
        "remote-shards-buried-first", "libckpt/engine/gc/two_phase_delete.c",
        "\tb->then = manifest_body;\n",
        "\tb->then = indexes_body;\n",
        "a removal takes the manifest before what it names", REMOTE),
    Planted(
        "remote-confirmed-too-soon", "libckpt/engine/copy/upload.c",
        "\tu->committed = u->op.result == 0;\n",
        "\tu->committed = true;\n",
        "a step is told to be in the bucket when the server has said so", REMOTE),
    Planted(
        "remote-lost-answer-is-success", "libckpt/store/store_s3_small.c",
        "\t\treturn ckpt_task_continue(task, compare_body);\n\treturn ckpt_s3_tell(op);\n",
        "\t\treturn ckpt_task_continue(task, compare_body);\n\treturn put_done(op);\n",
        "a request without an answer may not have been done", REMOTE),
    Planted(
        "remote-one-failure-is-the-end", "libckpt/engine/copy/upload_outcome.c",
        "\tif (is_final(code) || held || (!lost && has_tried_enough(u)))\n",
        "\tif (is_final(code) || !lost)\n",
        "an upload is tried again for as long as the way there fails", REMOTE),
    Planted(
        "remote-older-not-sent", "libckpt/engine/copy/upload_queue.c",
        "\tfor (size_t i = 0; i < scan->step_count && ckpt_core_owns_store(core); i++) {\n",
        "\tfor (size_t i = 0; i < 0; i++) {\n",
        "what an earlier process has not sent the next one sends", REMOTE),
    Planted(
        "remote-removed-before-it-is-sent", "libckpt/engine/gc/retention.c",
        "\tif (keep->core && keep->core->hooks->keeps(keep->core, s->generation, s->step))\n",
        "\tif (false)\n",
        "retention keeps what is on its way to the bucket", REMOTE),
    Planted(
        "remote-claim-not-sent", "libckpt/engine/copy/upload_dest.c",
        "\t\tif (!gen->claimed || gen->broken)\n",
        "\t\tif (!gen->claimed || gen->broken || p->at > 0)\n",
        "the claim of a generation is in the bucket before its steps", REMOTE),
    Planted(
        "remote-marker-comes-between", "libckpt/engine/copy/upload_dest.c",
        "\tif (marked)\n",
        "\tif (false)\n",
        "a marker whose client is dead may arrive when its successor looks", REMOTE, rare=True),
    Planted(
        "remote-new-claim-not-noticed", "libckpt/engine/copy/upload_queue.c",
        "\treturn !u->placed ||\n"
        "\t       u->placed_generation != ckpt_scan_newest_claim(&u->core->lineage->scan);\n",
        "\treturn !u->placed;\n",
        "a claim that is made while the uploader runs goes there before its steps", REMOTE),
    Planted(
        "remote-claims-not-brought", "libckpt/engine/copy/step_copy_dest.c",
        "\tif (e->place.claims)\n\t\treturn ckpt_task_continue(task, claims_body);\n",
        "",
        "whoever goes on from the bucket claims a generation of its own", REMOTE),
    Planted(
        "remote-fence-not-looked-at", "libckpt/engine/copy/upload.c",
        "\tif (newest <= ckpt_scan_newest_claim(&u->core->lineage->scan))\n\t\treturn 0;\n",
        "\tif (true)\n\t\treturn 0;\n",
        "who has a successor in the bucket, and sees it, publishes nothing there", REMOTE),
    Planted(
        "remote-retention-without-grace", "libckpt/engine/copy/remote_gc.c",
        "\treturn (seconds ? seconds : CKPT_REMOTE_GC_GRACE_S) * SECOND_NS;\n",
        "\treturn (seconds ? seconds : CKPT_REMOTE_GC_GRACE_S) * (SECOND_NS / 1000);\n",
        "a step that is marked in the bucket stays for a grace", REMOTE),
    Planted(
        "remote-retention-takes-newest", "libckpt/engine/copy/remote_gc.c",
        "\t\tbool expired = u->expired[u->at];\n",
        "\t\tbool expired = u->at == 0 || u->expired[u->at];\n",
        "the newest steps stay in the bucket", REMOTE),
    Planted(
        "remote-retention-not-fenced", "libckpt/engine/gc/two_phase_delete.c",
        "\t\tckpt_store_list(b->store, &b->op, CKPT_NAME_GENS);\n"
        "\t\tCKPT_AWAIT(task, b->op.done);\n\t\tr = take_claims(b);\n\t\tif (r == 0)\n"
        "\t\t\tr = check_claims(b);\n\t} while",
        "\t} while",
        "who removes in the bucket looks for a later generation first", REMOTE),
    Planted(
        "remote-two-remove", "libckpt/engine/gc/two_phase_delete.c",
        "\treturn ckpt_task_continue(task, seen_tombstone_of(b)->mine ? reader_body : last_look_body);\n",
        "\treturn ckpt_task_continue(task, reader_body);\n",
        "a step is removed under a tombstone of whoever removes it", REMOTE),
    Planted(
        "remote-removal-made-again-is-sure", "libckpt/engine/gc/two_phase_delete.c",
        "\tif (((b->op.result < 0 && b->op.result != -ENOENT) || b->op.uncertain) && seen_tombstone)\n",
        "\tif (b->op.result < 0 && b->op.result != -ENOENT && seen_tombstone)\n",
        "the tombstone stays while a try of a removal may be under way", REMOTE, rare=True),
    Planted(
        "remote-removed-is-sent-again", "libckpt/engine/copy/upload_filter.c",
        "\treturn !(there && there->state == CKPT_STEP_COMMITTED) &&\n",
        "\treturn false && !(there && there->state == CKPT_STEP_COMMITTED) &&\n",
        "what retention has removed from the bucket is not sent again by a start", REMOTE),
    Planted(
        "remote-marks-forgotten", "libckpt/engine/copy/remote_gc.c",
        "\t\tif (!s->deleting && !expired)\n",
        "\t\tif (s->deleting || !expired)\n",
        "what an earlier job has marked in the bucket the next one removes", REMOTE),
    Planted(
        "remote-begun-anew-each-time", "libckpt/store/store_s3_resume.c",
        "\tif (work->call.result < 0 || !take_uploads(op))\n",
        "\tif (true)\n",
        "an upload that was begun is gone on with", REMOTE),
    Planted(
        "ranks-manifest-before-others-parts", "libckpt/engine/copy/upload.c",
        "\treturn ckpt_rank_files_has_both(&u->there, rank);\n",
        "\tif (rank != u->core->config.rank && !u->all)\n\t\treturn true;\n"
        "\treturn ckpt_rank_files_has_both(&u->there, rank);\n",
        "the manifest comes after the shards of every rank", REMOTE, RANKS),
    Planted(
        "ranks-own-part-is-all", "libckpt/engine/copy/upload_outcome.c",
        "\telse\n\t\ttake_part(u, e);\n",
        "\telse if (u->core->config.rank > 0)\n\t\ttake_success(u, e);\n"
        "\telse\n\t\ttake_part(u, e);\n",
        "a rank whose part is sent waits for the manifest", REMOTE, RANKS),
    Planted(
        "ranks-others-given-up-at-once", "libckpt/engine/copy/upload_outcome.c",
        "\treturn e->overtaken && now(u) - e->since_ns >= wait_ns;\n",
        "\treturn now(u) - e->since_ns >= wait_ns;\n",
        "rank 0 waits for the parts of the others", REMOTE, RANKS),
    Planted(
        "ranks-looked-at-once-only", "libckpt/engine/copy/upload_outcome.c",
        "\te->retry_ns = now(u) + ckpt_min_u64(ckpt_max_u64(LOOK_NS, (now(u) - *since_ns) / 4),\n"
        "\t\t\t\t       PAUSE_MAX_S * SECOND_NS);\n",
        "\te->retry_ns = UINT64_MAX;\n",
        "whoever has done its part looks again whether the others have", REMOTE, RANKS),
    Planted(
        "ranks-older-of-keeper-alone", "libckpt/engine/copy/upload.c",
        "\t\tbool mine = u->all ? !ckpt_shard_location_has(&u->elsewhere, u->rank)\n"
        "\t\t\t\t   : u->rank == u->core->config.rank;\n\t\tif (mine && !has_part(u, u->rank))\n",
        "\t\tbool mine = u->rank == u->core->config.rank;\n"
        "\t\tif (mine && !has_part(u, u->rank))\n",
        "what ranks that died have not sent whoever keeps the store sends", REMOTE, RANKS),
    Planted(
        "ranks-sent-though-elsewhere", "libckpt/engine/copy/upload.c",
        "\t\tbool mine = u->all ? !ckpt_shard_location_has(&u->elsewhere, u->rank)\n"
        "\t\t\t\t   : u->rank == u->core->config.rank;\n\t\tif (mine && !has_part(u, u->rank))\n",
        "\t\tbool mine = u->all || u->rank == u->core->config.rank;\n"
        "\t\tif (mine && !has_part(u, u->rank))\n",
        "files that are in the store of another node are not missing in this one", REMOTE, RANKS),
    Planted(
        "ranks-removed-here-when-own-part-is-there", "libckpt/engine/copy/upload_entries.c",
        "\t\tif (e->generation == generation && e->step == step)\n\t\t\treturn true;\n",
        "\t\tif (e->generation == generation && e->step == step && e->since_ns == 0)\n"
        "\t\t\treturn true;\n",
        "retention here keeps a step until all ranks' parts are in the bucket", REMOTE, RANKS),
    Planted(
        "ranks-gone-here-is-lost", "libckpt/engine/copy/upload_probe.c",
        "\tif (u->op.result == -ENOENT && !u->all)\n"
        "\t\treturn ckpt_task_continue(task, gone_body);\n"
        "\tif (u->op.result == -ENOENT)\n\t\treturn ckpt_upload_give_up(u, fail_gone(u, \"\"));\n",
        "\tif (u->op.result == -ENOENT)\n\t\treturn ckpt_upload_give_up(u, fail_gone(u, \"\"));\n",
        "a step that is in the bucket, and was removed here since, is told to be there by every rank",
        REMOTE, RANKS),
    Planted(
        "ranks-left-over-waited-for", "libckpt/engine/copy/upload_outcome.c",
        "\tif (is_left_over(u, e)) {\n",
        "\tif (false) {\n",
        "a node does not wait for ever for what rank 0 has let go", REMOTE, 78_005_401, rare=True),
    Planted(
        "ranks-told-of-a-step-is-having-it", "libckpt/engine/copy/step_copy_dest.c",
        "\te->partial = marker.partial || (e->place.claims && e->place.node);\n",
        "\te->partial = marker.partial;\n",
        "a node's store that has a manifest alone is given the files", REMOTE, 78_007_001, rare=True),
    Planted(
        "slot-used-again-lent", "libckpt/staging/pool.c",
        "\tif (slot->taken || slot->uses != uses)\n",
        "\tif (slot->taken)\n",
        "what the next save has put into a slot is not what the upload looks for", REMOTE),
    Planted(
        "use-not-counted", "libckpt/staging/pool.c",
        "\ttake(pool, slot);\n\tslot->uses++;\n",
        "\ttake(pool, slot);\n",
        "a slot that was got again is known by that", REMOTE),
    Planted(
        "lent-slot-kept", "libckpt/engine/shard/read_block.c",
        "\tckpt_staged_shard_give_back(c->left, c->core->parts.pool, first_left(b), count_left(b));\n",
        "",
        "a slot that was lent comes back", REMOTE),
    Planted(
        "lent-slots-not-counted", "libckpt/engine/save/pipeline.c",
        "\tsave->hold = ckpt_pool_free(pool) + ckpt_pool_lent(pool) >= count;\n",
        "\tsave->hold = ckpt_pool_free(pool) >= count;\n",
        "an upload takes no room from the next save", REMOTE),
    Planted(
        "repaired-from-there-alone", "libckpt/engine/copy/repair.c",
        "\treturn m->shard.file.fd < 0 || m->bad.count == m->bad.room;\n",
        "\treturn m->bad.count > 0;\n",
        "of a damaged shard only the chunks that are bad come from the remote store", MENDING),
    Planted(
        "repaired-bytes-overwritten", "libckpt/engine/shard/read_block.c",
        "\treturn b->patching ? 1 : b->fetch->config.store->align;\n",
        "\treturn b->fetch->config.store->align;\n",
        "what comes from one copy of a shard does not reach into what came from the other", MENDING),
    Planted(
        "repaired-one-removed-first", "libckpt/engine/copy/repair.c",
        "\tstart_copy(m);\n\tCKPT_AWAIT(task, m->copy.task.finished);\n",
        "\tstart_copy(m);\n\tCKPT_AWAIT(task, m->copy.task.finished);\n"
        "\tckpt_rank_lister_want(&m->elsewhere.lister, &m->wait, task);\n"
        "\tCKPT_AWAIT(task, m->wait.done);\n"
        "\tif (m->copy.task.result == 0) {\n"
        "\t\tckpt_shard_copy_start_clean(&m->copy, &m->elsewhere.lister.files);\n"
        "\t\tCKPT_AWAIT(task, m->copy.task.finished);\n\t}\n",
        "a damaged file is there until the new one has its name", MENDING),
    Planted(
        "repaired-is-good-everywhere", "libckpt/engine/restore/repair.c",
        "\tr->repaired = outcome->verdict.code == 0;\n",
        "\tr->repaired = r->repair_code == 0;\n",
        "with a store on every node a step is whole when it is whole on all", MENDING_RANKS),
    Planted(
        "lost-nodes-same-step-again", "libckpt/engine/restore/lost_nodes.c",
        "\treturn outcome->verdict.code == CKPT_EOTHERNODE && r->ranks->part == CKPT_RESTORE_OPENING &&\n",
        "\treturn outcome->verdict.code == CKPT_EOTHERNODE && outcome->rank == 0 &&\n",
        "a step that only a lost node had all of is not given again", REMOTE, first=78000001),
    *COPIES,
    *DELTAS,
]
