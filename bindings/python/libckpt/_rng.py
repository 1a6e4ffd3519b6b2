# SPDX-License-Identifier: Apache-2.0
"""
The global random number generators: those of Python, NumPy and torch.

    {"python": state, "numpy": {...}, "torch": tensor, "cuda": [tensor, ...]}

Each is there if the program has imported its module when it saves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ._decoder import Decoder, decode_legacy, decode_random
from ._into import is_tensor
from ._json_nodes import Json, Path
from ._json_values import Encoder, encode_legacy, encode_random
from ._log import logger

#: Prefix of the names of their tensors. Keys of the state cannot clash, because names that are in
#: use get a number.
_PATH: Path = (None, "rng")


def capture(encoder: Encoder) -> Json:
    """The state of every generator."""
    import random

    node: dict[str, Json] = {"python": encode_random(random.getstate())}
    if "numpy" in sys.modules:
        import numpy as np

        node["numpy"] = encode_legacy(np.random.get_state(legacy=False))
    if "torch" in sys.modules:
        import torch

        node["torch"] = encoder.put_tensor(torch.get_rng_state(), (_PATH, "torch"), own=True)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            node["cuda"] = [
                encoder.put_tensor(state, ((_PATH, "cuda"), index), own=True)
                for index, state in enumerate(torch.cuda.get_rng_state_all())
            ]
    return node


def restore(node: Json, decoder: Decoder) -> None:
    """Restores every generator whose module can be imported."""
    if "python" in node:
        import random

        random.setstate(decode_random(node["python"]))
    if "numpy" in node:
        _restore_numpy(node["numpy"])
    if "torch" in node:
        import torch

        torch.set_rng_state(decoder.decode(node["torch"]))
        _restore_cuda([decoder.decode(state) for state in node.get("cuda", ())])


def keep() -> Callable[[], None]:
    """Returns a function that restores the present state of all generators."""
    kept = [(get, put, get()) for get, put in _accesses()]

    def put_back() -> None:
        for get, put, then in kept:
            if not _is_same(get(), then):
                put(then)

    return put_back


def _accesses() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Functions that get and set the state of each generator."""
    import random

    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    yield random.getstate, random.setstate
    if numpy is not None:
        yield functools.partial(numpy.random.get_state, legacy=False), numpy.random.set_state
    if torch is not None:
        yield torch.get_rng_state, torch.set_rng_state
        if torch.cuda.is_initialized():
            for generator in torch.cuda.default_generators:
                yield generator.get_state, generator.set_state


def _is_same(now: Any, then: Any) -> bool:
    if is_tensor(now):
        import torch

        return torch.equal(now, then)
    if isinstance(now, dict):  # NumPy's, with an array in it
        return bool(encode_legacy(now) == encode_legacy(then))
    return bool(now == then)


def seed_all(number: int) -> None:
    """Seeds every generator whose module is imported."""
    import random

    random.seed(number)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(number & 0xFFFFFFFF)
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(number)


def _restore_numpy(node: Json) -> None:
    try:
        import numpy as np
    except ImportError:
        logger.warning("the checkpoint holds the state of NumPy's generator, and NumPy is not here")
        return
    np.random.set_state(decode_legacy(node))


def _restore_cuda(states: list[Any]) -> None:
    import torch

    if not states:
        return
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if here < len(states):
        logger.warning(
            "the checkpoint holds generators of %d CUDA devices, and %d are here; the state of the "
            "others is not restored",
            len(states),
            here,
        )
    for index, state in enumerate(states[:here]):
        torch.cuda.set_rng_state(state, index)
