# SPDX-License-Identifier: Apache-2.0
"""Processes: kill -9, fork, signals, two jobs on one store, the end of a program."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import own_threads, run, start
from waiting import ended, until

import libckpt

#: A run that saves every third step and says its losses; big enough for a save to take a while. It
#: stays where it is when it has begun to save step STOP.
RUN = """
    torch.set_num_threads(1)
    training = Training()
    ballast = torch.nn.Linear(1500, 1500)
    training.model.ballast = ballast
    training.optimizer.add_param_group({"params": ballast.parameters()})
    training.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 50)
    training.state["scheduler"] = training.scheduler
    with libckpt.Checkpointer(store, training.state, every=3, pool_bytes=1 << 18) as ckpt:
        first = ckpt.resume()
        print("resumed", first, flush=True)
        for step in range(first, 12):
            for parameter in ballast.parameters():
                parameter.grad = torch.full_like(parameter, step + 1.0)
            print("loss", step, training.step().hex(), flush=True)
            ckpt.step(step + 1)
            while step + 1 == STOP:
                signal.pause()
    print("sum", ballast.weight.double().sum().item().hex(), flush=True)
"""


def losses(out: str) -> dict[int, str]:
    """Of whole lines: a killed program may leave the beginning of one."""
    lines = [line.split() for line in out.splitlines(keepends=True) if line.endswith("\n")]
    return {int(line[1]): line[2] for line in lines if line[0] == "loss"}


def test_kill_9_in_the_middle_of_a_save(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", RUN.replace("STOP", "0"))
    assert whole.returncode == 0, whole.stderr
    store = tmp_path / "store"
    process = start(store, RUN.replace("STOP", "6"))
    until(lambda: process.poll() is not None or any(store.glob("g*/step-0000000006/rank-*")))
    process.send_signal(signal.SIGKILL)
    before, said = process.communicate()
    assert "loss 5" in before, said
    # It may have published the step by then: tests/kill kills at every moment.
    half = not any(store.glob("g*/step-0000000006/manifest.json"))
    resumed = run(store, RUN.replace("STOP", "0"))
    assert resumed.returncode == 0, resumed.stderr
    first = int(resumed.stdout.split()[1])
    assert first == (3 if half else 6)
    # Every loss, before and after, is that of the run that was never killed.
    want = losses(whole.stdout)
    assert len(want) == 12
    for got in (losses(before), losses(resumed.stdout)):
        assert all(want[step] == loss for step, loss in got.items())
    assert losses(resumed.stdout).keys() == set(range(first, 12))
    assert resumed.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert [info.step for info in libckpt.list_steps(store)] == [12, 9, 6, 3]
    held = libckpt.load(store)
    assert held["model"]["ballast.weight"].double().sum().item().hex() == whole.stdout.split()[-1]


def test_two_jobs_on_one_store(store: Path) -> None:
    process = start(
        store,
        """
        ckpt = libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20)
        ckpt.save(1).wait()
        print("saved", flush=True)
        while True:  # a signal just before one long wait would be slept over
            threading.Event().wait(0.1)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "saved\n"
    with pytest.raises(libckpt.InUseError) as caught:
        libckpt.Checkpointer(store, {"x": 2}, pool_bytes=1 << 20).save(2)
    assert str(store) in str(caught.value)
    assert libckpt.load(store) == {"x": 1}  # reading is allowed
    process.kill()
    process.communicate()
    # A dead holder is succeeded.
    with libckpt.Checkpointer(store, {"x": 3}, pool_bytes=1 << 20) as ckpt:
        assert ckpt.resume() == 1
        ckpt.save(2).wait()
        assert ckpt.stats()["generation"] == 2


def test_one_process_has_a_store_once(store: Path) -> None:
    with libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
        with pytest.raises(libckpt.InUseError):
            libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20).save(2)
        ckpt.save(2).wait()


def test_a_forked_child_is_refused_and_harms_nothing(store: Path) -> None:
    done = run(
        store,
        """
        training = Training()
        ckpt = libckpt.Checkpointer(store, training.state, pool_bytes=1 << 18)
        training.step()
        big = torch.zeros(6_000_000)
        save = ckpt.save(1, {**training.state, "big": big})
        child = os.fork()
        if child == 0:
            code = 0
            uses = [lambda: ckpt.save(2), lambda: ckpt.step(2), ckpt.resume, ckpt.close, ckpt.stats,
                    ckpt.wait_staged, save.wait, save.done, lambda: save.error, lambda: save.info]
            for n, use in enumerate(uses):
                try:
                    use()
                    code = 100 + n
                except libckpt.ForkedError as error:
                    assert "parent" in str(error) or "child" in str(error)
            training.step()  # the hook is inert
            del save, ckpt, uses, use
            import gc
            gc.collect()
            sys.exit(code)  # and so is what runs at the end
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        save.wait()
        ckpt.save(2).wait()
        ckpt.close()
        print("steps", [info.step for info in libckpt.list_steps(store)])
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 0", "steps [2, 1]"]
    assert "Warning" not in done.stderr


def test_workers_of_a_data_loader_may_fork(store: Path) -> None:
    done = run(
        store,
        """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, n): return torch.tensor(float(n))
        state = {"x": torch.zeros(1_000_000)}
        with libckpt.Checkpointer(store, state, every=1, pool_bytes=1 << 18) as ckpt:
            loader = torch.utils.data.DataLoader(
                Data(), batch_size=4, num_workers=2, multiprocessing_context="fork")
            for step, batch in enumerate(loader, 1):
                state["x"] += batch.sum()
                ckpt.step(step)
        print(float(libckpt.load(store)["x"][0]), len(libckpt.list_steps(store)))
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["780.0", "10"]


def test_handles_do_not_go_to_other_processes(store: Path) -> None:
    done = run(
        store,
        """
        import multiprocessing
        ckpt = libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20)
        try:
            multiprocessing.get_context("spawn").Process(target=print, args=(ckpt,)).start()
        except TypeError as error:
            print(error)
        ckpt.close()
        """,
    )
    assert "cannot be pickled" in done.stdout


def test_the_end_of_a_program_drains(store: Path) -> None:
    body = """
        ckpt = libckpt.Checkpointer(store, {"x": torch.zeros(8_000_000)}, pool_bytes=1 << 18)
        ckpt.save(ckpt.resume() + 1)
    """
    for step, (ending, code) in enumerate([("pass", 0), ("sys.exit(3)", 3), ("1 / 0", 1)], 1):
        done = run(store, body + f"    {ending}\n", destructors=True)
        assert done.returncode == code, done.stderr
        assert libckpt.list_steps(store)[0].step == step


#: A save that takes a while.
SLOW = """
    state = {"x": torch.zeros(20_000_000)}
    ckpt = libckpt.Checkpointer(store, state, pool_bytes=1 << 18)
"""


def test_ctrl_c_goes_through_every_wait(store: Path) -> None:
    done = run(
        store,
        SLOW
        + """
    waiting, over = threading.Event(), threading.Event()
    def interrupt():
        waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)
        # Python drops an interrupt that falls into a destructor: a person would press it again.
        while not over.wait(2):
            os.kill(os.getpid(), signal.SIGINT)
    for name, wait in (("wait", lambda: save.wait()), ("save", lambda: ckpt.save(2)),
                       ("save again", lambda: ckpt.save(3))):
        if name == "wait":
            threading.Thread(target=interrupt).start()
            try:
                save = ckpt.save(1)
                while True:
                    waiting.set()
                    wait()
            except KeyboardInterrupt:
                over.set()
                print(name)
    ckpt.close()
    print("steps", len(libckpt.list_steps(store)) <= 1)
    """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["wait", "steps True"]


def test_ctrl_c_once_drains_and_twice_ends_at_once(store: Path) -> None:
    body = (
        SLOW
        + """
    with ckpt:
        ckpt.resume()
        ckpt.state = {"x": torch.zeros(20_000_000) + 1}
        print("saving", flush=True)
        save = ckpt.save(2)
        print("started", flush=True)
        while True:  # a signal just before one long wait would be slept over
            threading.Event().wait(0.1)
    """
    )
    process = start(store, body)
    assert process.stdout is not None
    for line in ("saving\n", "started\n"):
        assert process.stdout.readline() == line
    process.send_signal(signal.SIGINT)
    _, err = ended(process)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert libckpt.list_steps(store)[0].step == 2

    stuck = start(
        store.parent / "stuck",
        """
        import libckpt._engine
        ckpt = libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20)
        with ckpt:
            # A drain that takes for ever, as over a disk that does not answer.
            real = libckpt._engine.lib
            class Stuck:
                def __getattr__(self, name): return getattr(real, name)
                def ckpt_engine_drain(self, engine, ms):
                    threading.Event().wait(ms / 1000)
                    return -110
            libckpt._engine.lib = Stuck()
            try:
                print("started", flush=True)
                while True:  # a signal just before one long wait would be slept over
                    threading.Event().wait(0.1)
            finally:
                print("interrupted", flush=True)
        """,
    )
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "started\n"
    stuck.send_signal(signal.SIGINT)
    assert stuck.stdout.readline() == "interrupted\n"
    with pytest.raises(subprocess.TimeoutExpired):
        stuck.wait(0.3)  # the drain waits
    stuck.send_signal(signal.SIGINT)
    ended(stuck)  # the drain has five minutes
    assert stuck.returncode == -signal.SIGINT


def test_sigterm_is_left_to_the_program(store: Path) -> None:
    process = start(
        store,
        """
        class Stop(Exception): pass
        def stop(*_): raise Stop
        signal.signal(signal.SIGTERM, stop)
        try:
            state = {"x": torch.zeros(6_000_000)}
            with libckpt.Checkpointer(store, state, pool_bytes=1 << 18) as ckpt:
                ckpt.save(1)
                print("started", flush=True)
                while True:  # a signal just before one long wait would be slept over
                    threading.Event().wait(0.1)
        except Stop:
            assert signal.getsignal(signal.SIGTERM) is stop
            print("stopped", flush=True)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    out, err = ended(process)
    assert process.returncode == 0, err
    assert out == "stopped\n"
    assert libckpt.list_steps(store)[0].step == 1

    default = start(
        store,
        """
        ckpt = libckpt.Checkpointer(store, {"x": torch.zeros(6_000_000)}, pool_bytes=1 << 18)
        ckpt.resume()
        print("started", flush=True)
        while True:  # a signal just before one long wait would be slept over
            threading.Event().wait(0.1)
        """,
    )
    assert default.stdout is not None
    assert default.stdout.readline() == "started\n"
    default.send_signal(signal.SIGTERM)
    ended(default)
    assert default.returncode == -signal.SIGTERM
    assert os.path.isdir(store)


@pytest.mark.no_oracle
@pytest.mark.parametrize("saves", [200, pytest.param(1000, marks=pytest.mark.full)])
def test_saves_leave_nothing_behind(store: Path, saves: int) -> None:
    done = run(
        store,
        """
        import gc, resource
        training = Training()
        def now():
            gc.collect()
            rss = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
            tasks = own_threads()
            return rss, len(os.listdir("/proc/self/fd")), len(tasks), tasks
        with libckpt.Checkpointer(store, training.state, keep_last=2, pool_bytes=1 << 20) as ckpt:
            for step in range(1, SAVES + 1):
                training.step()
                save = ckpt.save(step)
                if step % 10 == 0:
                    save.wait()
                if step == 60:
                    ckpt.wait_staged()
                    before = now()
            save.wait()
            # What removes old steps may have a file open at any one moment.
            seen = []
            until(lambda: seen.append(now()) or seen[-1][1] <= before[1], "the files to be closed")
            after = seen[-1]
            pool = ckpt.stats()["pool_bytes"]
        print((after[0] - before[0]) >> 10, after[1] - before[1], after[2] - before[2], pool)
        print(before, after, file=sys.stderr)
        """.replace("SAVES", str(saves)),
    )
    assert done.returncode == 0, done.stderr
    rss_kib, files, threads, pool = map(int, done.stdout.split())
    assert rss_kib < 4096, done.stderr
    assert files <= 0, done.stderr
    assert threads <= 0, done.stderr
    assert pool <= 4 << 23
    assert len(libckpt.list_steps(store)) == 2


def test_threads_and_files_go_with_close(store: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(own_threads())

    libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20).close()
    before = held()
    for _ in range(5):
        with libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20) as ckpt:
            ckpt.save(ckpt.resume() + 1)
    until(lambda: held() == before)
