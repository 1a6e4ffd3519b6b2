# SPDX-License-Identifier: Apache-2.0
"""A save in the two parts of torch.distributed.checkpoint: write_data() and finish()."""

from __future__ import annotations

from .. import _errors as errors
from .._calls import check, last_error, new_struct
from .._engine import Engine
from .._log import logger
from .._native import ffi, lib
from .._save import Save
from .._snapshot import Snapshot


class Attempt(Save):
    """A save that is not committed before commit(), if it is `held`."""

    _held: Snapshot | None = None

    def __init__(self, engine: Engine, step: int) -> None:
        super().__init__(engine, step)
        self._fenced = True  # the tensors are copied when dcp.save() returns

    @property
    def is_held(self) -> bool:
        """True until commit() or give_up()."""
        return self._held is not None

    def stage(self, snapshot: Snapshot, deadline: float, *, held: bool, where: str) -> None:
        """
        Gives the snapshot to the library, and waits until its tensors are copied. `where`: key of
        the save, the same on all ranks.
        """
        ret = ffi.new("struct ckpt_save **")
        opts = new_struct("ckpt_save_opts")
        opts.flags = lib.CKPT_SAVE_FENCED if held else 0
        check(self._begin(opts, ret))
        self._ptr = ret[0]
        try:
            self._describe(snapshot)
            self._compare(snapshot, where)
        except BaseException as error:
            self._refuse(error)
            raise
        try:
            self._set_streams(self._gpus)
            check(self._engine.work(lib.ckpt_save_start, self._ptr))
            self._engine.read = snapshot if self._gpus else None
            if held:
                self._held = snapshot
            self.wait("staged", deadline)
        except BaseException:
            self._held = None
            self._give_up(snapshot)
            raise

    def refuse(self, error: BaseException) -> None:
        """The state cannot be described. Tells the other ranks."""
        self._refuse(error)

    def commit(self, deadline: float) -> int:
        """
        Commits the step when all ranks have written their parts, and returns its generation. Raises
        if it is not committed.
        """
        code = self._ask(lib.ckpt_save_fence, lib.CKPT_FOREVER)
        found = None if code == 0 else last_error(code, self._step)
        self._held = None
        if found is not None:
            raise self._explained(self._read_error() or found)
        self.wait("local", deadline)
        info = self.info
        logger.info(
            "step %d: %.1f MiB on this rank, staged in %.3f s, durable in %.3f s",
            info.step,
            info.bytes / 2**20,
            info.stage_time,
            info.local_time,
        )
        return info.generation

    def give_up(self) -> None:
        """Cancels: dcp.save() has failed for another reason."""
        held, self._held = self._held, None
        if held is not None:
            self._give_up(held)

    def outcome(self, deadline: float) -> int | None:
        """Waits for the outcome. Returns the generation; None: it was not committed."""
        if self._ptr is None or self._failure is not None:
            return None
        try:
            self.wait("local", deadline)
        except errors.CheckpointError as error:
            logger.info("step %d was not saved: %s", self._step, error)
            return None
        return self.info.generation
