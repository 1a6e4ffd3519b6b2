# SPDX-License-Identifier: Apache-2.0
"""Bugs in what copies a rank's files, or looks for them where a rank has several. Tests find them, see planted.py."""
from bug import Planted

# Several files of one rank, some of them bad: nothing that the simulated programs do leaves such.
REPAIRED = "tests/unit/engine/test_repaired_files"
# Uploads that fail into a directory: the simulated training has a bucket.
SENDING = "tests/unit/engine/test_sending"
# What is there already, under the name of a file that is to be sent.
UPLOAD = "tests/unit/engine/test_upload"
# Two tiers that are both damaged.
MENDING = "tests/unit/engine/test_repair"
# Steps that are stored in another form, where they are and in the remote store.
RECODE = "tests/unit/engine/test_recode"
ENCODING = "tests/unit/engine/test_remote_encoding"
CHECKSUM = "tests/unit/store/test_store_s3_checksum"

COPIES = [
    Planted(
        "upload-leaves-what-it-began", "libckpt/engine/copy/upload.c",
        "\tif (u->copy.made && (u->copy.resumes || !u->copy.index_tried)) {\n",
        "\tif (false) {\n",
        "an upload into a directory that fails removes the shard that it has begun", SENDING),
    Planted(
        "upload-takes-its-index-back", "libckpt/engine/copy/upload.c",
        "\tif (u->copy.made && (u->copy.resumes || !u->copy.index_tried)) {\n",
        "\tif (u->copy.made) {\n",
        "an index that rank 0 may have listed stays in a directory", SENDING),
    Planted(
        "upload-beside-an-export", "libckpt/engine/copy/upload_probe.c",
        "\tckpt_store_lock(u->dest, &u->op, path, true, &u->lock);\n",
        "\tckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);\n",
        "no upload into a directory works beside an export", SENDING),
    Planted(
        "upload-leaves-what-was-begun", "libckpt/engine/copy/upload.c",
        "\t\tif (!has_part(u, u->rank))\n\t\t\tcontinue;\n",
        "\t\tif (true)\n\t\t\tcontinue;\n",
        "what a killed upload has begun goes when the step is there", SENDING),
    Planted(
        "upload-leaves-one-form", "libckpt/engine/lineage/rank_files.c",
        "\twhile (ckpt_rank_files_next_file(files, rank, CKPT_RANK_SHARD, name))\n",
        "\twhile (ckpt_rank_files_next(files, rank, CKPT_RANK_SHARD, name->attempt))\n",
        "what a killed upload has begun goes in either form", SENDING),
    Planted(
        "upload-takes-another-index", "libckpt/engine/copy/upload.c",
        "\tif (same)\n\t\treturn *u->stop;\n",
        "\tif (same || r == 0)\n\t\treturn *u->stop;\n",
        "an index that is there and differs is not taken for the rank's own", UPLOAD),
    Planted(
        "upload-counts-what-it-sends", "libckpt/engine/copy/shard_copy.c",
        "\t\tc->read.counts = c->shard->index->layout->bytes;\n",
        "\t\tc->read.counts = c->view->layout->bytes;\n",
        "an upload counts the bytes of shards", UPLOAD),
    Planted(
        "upload-stops-at-a-bad-header", "libckpt/engine/copy/upload.c",
        "\tif (ckpt_shard_is_bad_copy(r) && !*u->stop)\n",
        "\tif (false)\n",
        "an upload goes on with the rank's next file when a header is bad", SENDING),
    Planted(
        "upload-stops-at-a-bad-file", "libckpt/engine/copy/shard_copy.c",
        "\treturn bad && (bad == &copy->shard->file ||",
        "\treturn false && (bad == &copy->shard->file ||",
        "an upload goes on with the rank's next file when a chunk is bad", SENDING),
    Planted(
        "export-stops-at-a-bad-file", "libckpt/engine/copy/shard_copy.c",
        "\treturn bad && (bad == &copy->shard->file ||",
        "\treturn false && (bad == &copy->shard->file ||",
        "an export goes on with the rank's next file when a chunk is bad", REPAIRED),
    Planted(
        "export-stops-at-a-bad-header", "libckpt/engine/restore/sink_export.c",
        "\tif (ckpt_shard_is_bad_copy(r->shard.task.result) && !r->stop)\n",
        "\tif (false)\n",
        "an export goes on with the rank's next file when a header is bad", REPAIRED),
    Planted(
        "export-finds-no-room", "libckpt/engine/copy/step_copy.c",
        "!e->copy.made && !e->full &&",
        "!e->copy.made && e->left.file.fd >= 0 && !e->full &&",
        "a leftover without a good chunk does not take the room of its shard", REPAIRED),
    Planted(
        "export-leaves-each-leftover", "libckpt/engine/copy/step_copy.c",
        "!e->adds && next_unfinished(e, path)",
        "false && next_unfinished(e, path)",
        "of the shards that killed exports have begun one stays beside the new one", REPAIRED),
    Planted(
        "export-uses-a-name-again", "libckpt/engine/copy/step_copy.c",
        "\t\t.fresh = taken && (!e->place.bucket || e->adds),\n",
        "\t\t.fresh = taken && !e->full && (!e->place.bucket || e->adds),\n",
        "no name of a rank's file is used twice", REPAIRED),
    Planted(
        "search-goes-on-in-a-new-list", "libckpt/engine/shard/search.c",
        "\tif (s->listed_in != l->lists)\n",
        "\tif (s->listed_in == 0)\n",
        "a new file that comes before the last one that was tried is found", REPAIRED),
    Planted(
        "search-reads-by-each-list", "libckpt/engine/shard/search.c",
        "\treturn s->missing && s->lister->lists <= s->missing_after &&\n",
        "\treturn s->missing &&\n",
        "a step is listed anew only if it was listed before the miss", REPAIRED),
    Planted(
        "search-tells-damage-first", "libckpt/engine/shard/search.c",
        "\tif (ckpt_store_is_unreadable(code) && !ckpt_store_is_unreadable(first))\n",
        "\tif (!s->first_open && open)\n",
        "a step is not quarantined while one of its files may be good", REPAIRED),
    Planted(
        "search-told-is-not-the-code", "libckpt/engine/shard/load.c",
        "-ENOENT ? w->err.code",
        "-ENOENT ? w->code",
        "the code of several bad files is that of the one that is told", REPAIRED),
    Planted(
        "search-tries-a-file-again", "libckpt/engine/shard/search.c",
        "\t\tif (ckpt_rank_file_name_equal(&s->tried[i], name))\n",
        "\t\tif (false)\n",
        "a bad file is not read again when the step is listed anew", REPAIRED),
    Planted(
        "repair-takes-the-first-here", "libckpt/engine/copy/repair.c",
        "\t\treturn ckpt_task_continue(task, next_here_body);\n",
        "\t\treturn ckpt_task_continue(task, source_body);\n",
        "a rank that has a whole file here needs nothing from there", MENDING),
    Planted(
        "repair-takes-the-last-here", "libckpt/engine/copy/repair.c",
        "m->best_bad.room > 0 && m->best_bad.count <= m->bad.count",
        "false",
        "of several bad files here the one with the fewest bad chunks is used", MENDING),
    Planted(
        "repair-takes-the-first-there", "libckpt/engine/copy/repair.c",
        "\tif (there && ckpt_shard_is_bad_copy(code) && !*m->stop)\n"
        "\t\treturn ckpt_task_continue(&m->task, other_body);\n",
        "\tif (there && ckpt_code_is_damage(code))\n\t\treturn end_without(m, code);\n",
        "one bad file in the remote store is not the loss of the rank", MENDING),
    Planted(
        "repair-removes-what-came-since", "libckpt/engine/copy/repair.c",
        "\tif (may_clean(m)) {\n",
        "\t(void)ckpt_rank_lister_want_again(&m->elsewhere.lister, &m->wait, task);\n"
        "\tCKPT_AWAIT(task, m->wait.done);\n"
        "\tif (may_clean(m)) {\n",
        "of two repairs at once the files of one stay", MENDING),
    Planted(
        "repair-removes-after-a-claim", "libckpt/engine/copy/repair.c",
        "\treturn r == 0 && newest <= known;\n",
        "\treturn r == 0;\n",
        "a job that was taken over removes no files", MENDING),
    Planted(
        "recode-does-not-read-back", "libckpt/engine/copy/recode.c",
        "\tif (c->bad.count > 0)\n",
        "\tif (false)\n",
        "the only good file of a rank goes when the new one has been read back", RECODE),
    Planted(
        "recode-removes-before-it-publishes", "libckpt/engine/copy/recode.c",
        "\treturn ckpt_task_continue(task, c->kept ? index_body : publish_body);\n",
        "\tckpt_shard_copy_start_clean(&c->copy, &c->elsewhere->lister.files);\n"
        "\tCKPT_AWAIT(task, c->copy.task.finished);\n"
        "\treturn ckpt_task_continue(task, c->kept ? index_body : publish_body);\n",
        "a rank has an index and a shard at every moment", RECODE),
    Planted(
        "recode-does-not-read-the-index", "libckpt/engine/copy/recode.c",
        "\tr = c->op.result < 0 || c->job.result < 0 ? fail_index(c) : 0;\n",
        "\tr = 0;\n",
        "the only good index of a rank goes when the new one has been read back", RECODE),
    Planted(
        "recode-makes-room-unseen", "libckpt/engine/copy/recode.c",
        "\tr = c->bad.count > 0 ? fail_bad(c, &c->shard) : 0;\n",
        "\tr = 0;\n",
        "a shard without an index may be the only good one of a rank", RECODE),
    Planted(
        "upload-does-not-decode", "libckpt/engine/copy/shard_encode.c",
        "\tif (!comes_back(e))\n",
        "\tif (false)\n",
        "what is encoded on its way is decoded before it is sent", ENCODING),
    Planted(
        "upload-encodes-what-is-bad", "libckpt/engine/copy/shard_encode.c",
        "\tif (!ckpt_digest_equal(&digest, &c->digest))\n",
        "\tif (false)\n",
        "a chunk is compared with its digest before it is encoded", ENCODING),
    Planted(
        "upload-mixes-contents", "libckpt/store/store_s3_file.c",
        "\tif (part->crc32c == work->crc32c)\n",
        "\tif (true)\n",
        "a part of another content becomes no part of an object", CHECKSUM),
]
