# SPDX-License-Identifier: Apache-2.0
"""What a planted bug is."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One bug: where it goes, and which promise it breaks."""

    name: str
    file: str
    old: str
    new: str
    why: str
    world: str = "tests/sim/sim"  # the program that must find it
    first: int = 0  # the seed from which on it is looked for, if not from the first
    rare: bool = False  # it takes thousands of seeds, and a change of the engine may double them
