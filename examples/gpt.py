#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on text found on this machine, and resumes by itself.

    python examples/gpt.py --store runs/gpt

Kill it whenever you like and run the same command again: it goes on from the last step that was
saved, and every loss equals, bit for bit, that of a run that was never killed. Everything that can
make a difference is in the state: weights, AdamW's moments, the learning rate's schedule, the
position in the shuffled text, and (without being asked) the random numbers that dropout draws.

The lines about checkpoints are marked with `# <- libckpt`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import statistics
import sys
import sysconfig
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libckpt import Checkpointer  # <- libckpt

VOCABULARY = 256  # one token is one byte


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    """A decoder-only transformer over bytes; the embedding and the head are one tensor."""

    def __init__(self, width: int, depth: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._start)
        self.head.weight = self.token.weight

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        x = self.drop(self.token(tokens) + self.position(positions))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def find_text(limit: int) -> bytes:
    """Up to `limit` bytes of real text: the licences that Debian ships, then Python's library."""
    places = [
        (Path("/usr/share/common-licenses"), "*"),
        (Path(sysconfig.get_paths()["stdlib"]), "*.py"),
    ]
    text = bytearray()
    for folder, pattern in places:
        for path in sorted(folder.glob(pattern)):
            if len(text) >= limit:
                break
            if path.is_file() and not path.is_symlink():
                text += path.read_bytes()
    if len(text) < 100_000:
        sys.exit(
            "gpt.py: found less than 100 kB of text on this machine; give some with --text FILE"
        )
    return bytes(text[:limit])


class Loader:
    """Windows of the text in an order shuffled anew in every epoch. Knows where it is."""

    def __init__(self, text: bytes, context: int, batch: int, seed: int) -> None:
        self.data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.digest = hashlib.sha256(text).hexdigest()
        self.context, self.batch, self.seed = context, batch, seed
        self.windows = (len(text) - 1) // context
        self._begin(epoch=0, position=0)

    def _begin(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position
        generator = torch.Generator().manual_seed(self.seed + epoch)
        self.order = torch.randperm(self.windows, generator=generator)

    def next(self) -> tuple[Tensor, Tensor]:
        if self.position + self.batch > self.windows:
            self._begin(self.epoch + 1, 0)
        chosen = self.order[self.position : self.position + self.batch]
        self.position += self.batch
        at = chosen[:, None] * self.context + torch.arange(self.context + 1)
        window = self.data[at]
        return window[:, :-1], window[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, "text": self.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["text"] != self.digest:
            raise ValueError("the text is not the one that this run was trained on")
        self._begin(state["epoch"], state["position"])


class Meter:
    """What each save took from the loop: the steps beside which it ran, less as many quiet ones."""

    def __init__(self) -> None:
        self.quiet: deque[float] = deque(maxlen=8)
        self.under: list[float] = []
        self.save: Any = None

    def step(self, seconds: float, save: Any) -> None:
        """Called after every step, with its time and the save that it started, if any."""
        if save is not None:
            self.report()
            self.save, self.under = save, []
        if self.save is None:
            self.quiet.append(seconds)
            return
        self.under.append(seconds)
        if self.save.done("local"):
            self.report()

    def report(self) -> None:
        """Says how the last save went, unless it has been said."""
        save, self.save = self.save, None
        if save is None:
            return
        if save.error is not None:
            print(f"  step {save.step} was not saved: {save.error}", flush=True)
            return
        info = save.info
        line = (
            f"  saved step {info.step}: {info.bytes / 1e6:.1f} MB, durable after"
            f" {info.local_time * 1e3:.0f} ms; the loop waited {info.loop_time * 1e3:.1f} ms"
        )
        if len(self.quiet) >= 3 and self.under:
            lost = sum(self.under) - len(self.under) * statistics.median(self.quiet)
            line += f" and lost {lost * 1e3:+.0f} ms in all"
        print(line, flush=True)


def train(args: argparse.Namespace) -> None:
    random.seed(args.seed)
    numpy.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)  # another number of threads adds up in another order

    text = Path(args.text).read_bytes() if args.text else find_text(args.text_bytes)
    loader = Loader(text, args.context, args.batch, args.seed)
    model = GPT(args.width, args.depth, args.heads, args.context, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"GPT of {parameters / 1e6:.1f} M parameters on {len(text) / 1e6:.1f} MB of text")

    def train_one_step() -> float:
        tokens, targets = loader.next()
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return float(loss.detach())

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    log = os.open(args.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if args.log else None
    meter = Meter()
    with Checkpointer(
        args.store, state=state, every=args.every, keep_last=args.keep, remote=args.remote
    ) as ckpt:  # <- libckpt
        start = ckpt.resume()  # <- libckpt
        print(f"resumed at step {start}" if start else "starting at step 0", flush=True)
        for step in range(start, args.steps):
            began = time.perf_counter()
            loss = train_one_step()
            if log is not None:
                os.write(log, f"{step + 1} {loss.hex()}\n".encode())
            save = ckpt.step(step + 1)  # <- libckpt
            ended = time.perf_counter()
            meter.step(ended - began, save)
            if (step + 1) % args.every == 0 or step + 1 == args.steps:
                print(
                    f"step {step + 1}: loss {loss:.4f}, {(ended - began) * 1e3:.0f} ms", flush=True
                )
    meter.under = []  # the loop has ended: the last save took nothing more from it
    meter.report()
    if log is not None:
        os.close(log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True, help="directory of the checkpoints")
    parser.add_argument("--remote", help="where they go to from there: s3://BUCKET/PREFIX")
    parser.add_argument("--steps", type=int, default=200, help="train up to this step")
    parser.add_argument("--every", type=int, default=10, help="save every so many steps")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument(
        "--log", help="append each step and its loss (hexadecimal float) to this file"
    )
    parser.add_argument("--text", help="a file to train on, instead of what is found")
    parser.add_argument("--text-bytes", type=int, default=4_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
