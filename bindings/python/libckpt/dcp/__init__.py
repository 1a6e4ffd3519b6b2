# SPDX-License-Identifier: Apache-2.0
"""
torch.distributed.checkpoint on libckpt's engine.

    import torch.distributed.checkpoint as dcp
    from libckpt.dcp import Stager, StorageReader, StorageWriter

    dcp.save(state, checkpoint_id="step-100", storage_writer=StorageWriter("/shared/run42"))
    dcp.load(state, storage_reader=StorageReader("/shared/run42"))

A checkpoint is a step of a libckpt store. It is verified, and committed for all ranks or for none.
The reader also loads steps of `libckpt.Checkpointer`.
"""

from ._convert import convert
from ._engine_cache import close
from ._stager import Stager
from ._storage_reader import StorageReader
from ._storage_writer import StorageWriter

__all__ = ["Stager", "StorageReader", "StorageWriter", "close", "convert"]

for _thing in (Stager, StorageReader, StorageWriter, close, convert):
    _thing.__module__ = "libckpt.dcp"
del _thing
