#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants bugs in the device for GPUs, which the simulated world does not have, and runs the test on the
fake CUDA runtime that is to find each.

    device_bugs.py --build BUILD [--ninja NINJA] [--only NAME ... | --sample N]
    device_bugs.py --check

The build directory must hold the tests of the device. A bug that its test lets pass fails; so does one
whose text is not there any more. The tree itself is not touched.
"""
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

from builder import Builder, check, options, plant, sampled

DEVICE = "tests/unit/device/"
#: Seconds. What waits for ever is found, too.
PATIENCE = 60
#: What comes of a bug may be a matter of which thread comes first.
TRIES = 4


@dataclasses.dataclass
class Bug:
    name: str
    file: str
    old: str
    new: str
    program: str
    test: str  # or one of several: what comes first ends the program


BUGS = [
    Bug("fence-removed", "libckpt/device/device_cuda.c",
        "\tif (which == CKPT_HOLD_ALL)\n\t\treturn make_wait(d, user, d->stream, d->held, err);\n",
        "\tif (which == CKPT_HOLD_ALL)\n\t\treturn 0;\n",
        "test_device_cuda", "a_stream_that_is_held_does_not_overtake_the_copies"),
    Bug("fence-of-the-eager-removed", "libckpt/device/device_cuda.c",
        "\tint e = d->api.stream_wait_event(user, d->eager, 0);\n",
        "\tint e = CKPT_CUDA_SUCCESS;\n",
        "test_device_cuda", "a_stream_can_be_held_for_the_eager_copies_alone"),
    Bug("event-waited-before-recorded", "libckpt/device/device_cuda.c",
        "\t\tr = wait_until_fed(d, which, timeout_ms, err, &wanted);\n",
        "\t\twanted = 1;\n",
        "test_device_cuda", "a_hold_waits_until_the_copies_are_enqueued"),
    Bug("wait-before-record", "libckpt/device/device_cuda.c",
        "\te = d->api.event_record(event, ahead);\n\tif (e == CKPT_CUDA_SUCCESS) {\n"
        "\t\twhat = \"cudaStreamWaitEvent\";\n"
        "\t\te = d->api.stream_wait_event(behind, event, 0);\n\t}\n",
        "\te = d->api.stream_wait_event(behind, event, 0);\n\tif (e == CKPT_CUDA_SUCCESS) {\n"
        "\t\twhat = \"cudaStreamWaitEvent\";\n"
        "\t\te = d->api.event_record(event, ahead);\n\t}\n",
        "test_device_cuda", "a_stream_that_is_held_does_not_overtake_the_copies"),
    Bug("not-followed", "libckpt/device/device_cuda.c",
        "\t\tr = make_wait(d, d->stream, user, d->followed, err);\n",
        "\t\tr = 0;\n",
        "test_device_cuda", "streams_without_a_handle_are_of_the_tensors_gpu"),
    Bug("slot-reused-early", "libckpt/device/cuda_threads.c",
        "\t\te = d->api.event_synchronize(last->event);\n",
        "\t\te = CKPT_CUDA_SUCCESS;\n",
        "test_device_cuda", "every_byte_goes_to_staging_and_back"),
    Bug("event-before-the-last-copy", "libckpt/device/cuda_batch.c",
        "\tflush(d);\n\t/* Rows and launches have other rates, so they are not measured. */\n"
        "\tg->last->bytes = g->runs == g->entries ? g->bytes : 0;\n"
        "\te = d->api.event_record(g->last->event, d->stream);\n",
        "\te = d->api.event_record(g->last->event, d->stream);\n\tflush(d);\n",
        "test_device_cuda", "rows_apart_go_both_ways"),
    Bug("one-that-is-lost-given-back-at-once", "libckpt/device/cuda_threads.c",
        "\tif (last->recorded) {\n\t\t*ret_waited =",
        "\tif (r < 0)\n\t\treturn r;\n\tif (last->recorded) {\n\t\t*ret_waited =",
        "test_device_cuda_faults",
        "a_lost_device_keeps_what_it_may_still_write_to a_query_that_fails_after_a_failure_means_lost"),
    Bug("capture-not-asked-about", "libckpt/device/device_cuda.c",
        "\tif (status == CKPT_CUDA_CAPTURE_NONE)\n\t\treturn 0;\n",
        "\treturn 0;\n",
        "test_device_cuda", "a_capture_is_left_alone_and_copies_go_on_beside_it"),
    Bug("capture-of-others-spoilt", "libckpt/device/cuda_threads.c",
        "\tint mode = CKPT_CUDA_MODE_RELAXED;\n",
        "\tint mode = CKPT_CUDA_MODE_GLOBAL;\n",
        "test_device_cuda", "a_capture_is_left_alone_and_copies_go_on_beside_it"),
    Bug("child-calls-cuda", "libckpt/device/device_cuda.c",
        "\tif (d->forks == ckpt_fork_count())\n\t\treturn 0;\n",
        "\tif (d->forks <= ckpt_fork_count())\n\t\treturn 0;\n",
        "test_device_cuda", "a_forks_child_calls_nothing"),
    Bug("table-shared-by-two-launches", "libckpt/device/cuda_threads.c",
        "\tflight->next = NULL;\n\tflight->copy = copy;\n",
        "\tpthread_mutex_lock(&d->lock);\n\tif (d->flights)\n"
        "\t\tflight->table = d->flights->table;\n\tpthread_mutex_unlock(&d->lock);\n"
        "\tflight->next = NULL;\n\tflight->copy = copy;\n",
        "test_device_kernels", "copies_under_way_share_no_table"),
    Bug("lost-one-used-again", "libckpt/device/cuda_threads.c",
        "\td->lost = true;\n",
        "\td->lost = false;\n",
        "test_device_cuda_faults", "a_lost_device_fails_what_is_under_way_and_all_that_comes"),
    Bug("relay-over-what-is-under-way", "libckpt/device/cuda_submit.c",
        "\t\t\tr = scatter ? feed_relayed(d, copy, &piece, relayed) : 0;\n"
        "\t\t\tif (r == 0)\n\t\t\t\tr = launch_grid(d, copy, &grid);\n",
        "\t\t\tr = launch_grid(d, copy, &grid);\n"
        "\t\t\tif (r == 0 && scatter)\n\t\t\t\tr = feed_relayed(d, copy, &piece, relayed);\n",
        "test_device_grids", "scattered_elements_are_those_of_the_cpu"),
    Bug("kernel-at-what-is-not-pinned", "libckpt/device/cuda_submit.c",
        "\tif (!seen)\n\t\treturn relay_grid(d, copy, segment);\n",
        "\tif (!seen)\n\t\tseen = (uintptr_t)segment->staged;\n",
        "test_device_grids", "gathered_bytes_are_those_of_the_cpu"),
]


def fails(program, test):
    """Whether this test fails, does not end or ends the program; and all that do so."""
    try:
        # Line by line: what it has said is lost otherwise when it is ended.
        done = subprocess.run(["stdbuf", "-oL", program], check=False, capture_output=True,
                              text=True, errors="replace", timeout=PATIENCE)
        said, bad = done.stdout + done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired as late:
        said, bad = late.stdout or b"", True
        said = said if isinstance(said, str) else said.decode(errors="replace")
    begun = list(re.finditer(r"^\[ RUN +\] (\w+)", said, re.MULTILINE))
    failed = set(re.findall(r"^\[ +(?:FAILED|ERROR) +\] ([a-z]\w+)", said, re.MULTILINE))
    # A test may be there twice.
    if bad and begun and not re.search(r"^\[ +OK +\]", said[begun[-1].end():], re.MULTILINE):
        failed.add(begun[-1][1])
    return bool(failed & set(test.split())), failed


def try_bug(builder, bug):
    """None: it was found; else why not."""
    try:
        changed = builder.make_object(bug.file, plant(bug), bug.name)
    except LookupError as error:
        return f"CANNOT BE PLANTED: {error}"
    program = builder.link(changed, DEVICE + bug.program)
    for _ in range(TRIES):
        found, failed = fails(program, bug.test)
        if found:
            break
    others = f"found by {', '.join(sorted(failed))}" if failed else "SURVIVED"
    return None if found else f"{others}, and not by {bug.test}"


def main():
    parser = options(__doc__)
    args = parser.parse_args()
    if args.check:
        return check(BUGS)
    if not args.build:
        parser.error("--build or --check")
    bugs = [bug for bug in BUGS if not args.only or bug.name in args.only]
    if args.sample is not None:
        bugs = sampled(bugs, args.sample)
    found = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        builder = Builder(args.ninja, args.build.resolve(), pathlib.Path(scratch))
        for program in {bug.program for bug in bugs}:
            builder.link_of(DEVICE + program)
        for bug in bugs:
            why_not = try_bug(builder, bug)
            print(f"{bug.name:36} {why_not or 'found by ' + bug.test}", flush=True)
            found += why_not is None
    print(f"{found} of {len(bugs)} planted bugs found")
    return 0 if bugs and found == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
