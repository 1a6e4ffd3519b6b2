# SPDX-License-Identifier: Apache-2.0
"""
A small GPT, the ways to train it, and a convnet, each deterministic, and a program that trains one:

    python gpu_training.py KIND DEVICE STORE [--resume] [--die]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from gpu_rig import digest
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 256
#: width, depth, context, batch: 5 million parameters on a GPU
SHAPES = {"cuda": (320, 4, 64, 16), "cpu": (32, 2, 16, 4)}


def prepare() -> None:
    """Bits are compared: nothing may depend on the order in which a GPU adds."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # not every dtype can be filled
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).unbind(2)
        # Written out, because the fused kernels' backward pass is not deterministic.
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / (width // 4) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = F.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1), 0.1)
        y = (weights @ v.transpose(1, 2)).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Over bytes; the embedding and the head are one tensor. It counts what it has seen, in a buffer."""

    def __init__(self, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("seen", torch.zeros(VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens, targets = tokens[:, :-1], tokens[:, 1:]
        with torch.no_grad():
            letters = torch.arange(VOCABULARY, device=tokens.device)
            self.seen += (tokens.flatten()[:, None] == letters).sum(0)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.token(tokens) + self.position(positions))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Loader:
    """Knows where it is."""

    def __init__(self, batch: int, context: int) -> None:
        self.size, self.position = (batch, context + 1), 0

    def next(self) -> Tensor:
        self.position += 1
        generator = torch.Generator().manual_seed(self.position)
        return torch.randint(VOCABULARY, self.size, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Training:
    """AdamW by its options. `step()` trains and gives the loss, for which nobody has waited."""

    options: dict[str, Any] = {}

    def __init__(self, device: str, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.device = device
        width, depth, context, batch = SHAPES[device]
        self.loader = Loader(batch, context)
        self.model: Any = GPT(width, depth, context).to(device)
        self.state: dict[str, Any] = {"model": self.model, "loader": self.loader}
        self.build()

    def build(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **self.options)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.state |= {"optimizer": self.optimizer, "scheduler": self.scheduler}

    def loss(self) -> Tensor:
        return self.model(self.loader.next().to(self.device))

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def digest(self) -> str:
        """Of all that a checkpoint must bring back."""
        parts = [
            value.state_dict() if hasattr(value, "state_dict") else value
            for value in self.state.values()
        ]
        if self.device == "cuda":
            parts.append(torch.cuda.get_rng_state())
        return digest([*parts, torch.get_rng_state()])


class Fused(Training):
    options = {"fused": True}


class Foreach(Training):
    options = {"foreach": True}


class Plain(Training):
    options = {"foreach": False, "amsgrad": True}


class Capturable(Training):
    """Its step counts are on the GPU."""

    def build(self) -> None:
        self.options = {"capturable": self.device == "cuda"}
        super().build()


class Autocast(Fused):
    """Weights in fp32, arithmetic in bf16."""

    def loss(self) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            return super().loss()


class Scaler(Foreach):
    """fp16 where there is a GPU. The scale begins so high that first steps are left out."""

    def build(self) -> None:
        super().build()
        self.scaler = torch.amp.GradScaler(
            self.device, init_scale=2.0**40, backoff_factor=2.0**-8, growth_interval=2
        )
        self.state["scaler"] = self.scaler

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        kind = torch.float16 if self.device == "cuda" else torch.bfloat16
        with torch.autocast(self.device, kind):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


class Master(Training):
    """A model in bf16, which is copied from the fp32 weights that are trained."""

    def build(self) -> None:
        self.model.to(torch.bfloat16)
        self.masters = {
            name: value.detach().float().clone().requires_grad_()
            for name, value in self.model.named_parameters()
        }
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=1e-3, fused=True)
        self.state |= {"masters": self.masters, "optimizer": self.optimizer}

    def step(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        weights = dict(self.model.named_parameters())
        for name, master in self.masters.items():
            master.grad, weights[name].grad = weights[name].grad.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for name, master in self.masters.items():
                weights[name].copy_(master)
        return loss.detach()


class InBackward(Training):
    """Every parameter has an optimizer, which steps in the backward pass, in autograd's thread."""

    def build(self) -> None:
        self.optimizers = {}
        for name, parameter in self.model.named_parameters():
            self.optimizers[name] = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
            parameter.register_post_accumulate_grad_hook(self._hook(self.optimizers[name]))
        self.state["optimizers"] = self.optimizers

    @staticmethod
    def _hook(optimizer: Any) -> Any:
        def step(_parameter: Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        return step

    def step(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        return loss.detach()


class Mixed(Training):
    """The embedding of positions stays on the CPU, where its optimizer works beside the GPU's."""

    options = {"foreach": True}

    def build(self) -> None:
        self.model.position.to("cpu")
        self.model.position.forward = self._positions
        super().build()

    def _positions(self, positions: Tensor) -> Tensor:
        weight = self.model.position.weight
        return F.embedding(positions.to("cpu"), weight).to(self.device)


class ChannelsLast(Training):
    """A convnet whose weights, and so their moments, lie with their channels last."""

    def build(self) -> None:
        width = SHAPES[self.device][0]
        self.model = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 7, 3),
        ).to(self.device, memory_format=torch.channels_last)
        self.state["model"] = self.model
        super().build()

    def loss(self) -> Tensor:
        tokens = self.loader.next()[:, :16].to(self.device)
        images = (tokens.float() / VOCABULARY).view(-1, 1, 4, 4).repeat(1, 3, 2, 2)
        out: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return out.square().mean()


class Sharded(Training):
    """FSDP2 on one rank."""

    backends = {"cuda": "nccl", "cpu": "gloo"}

    def wrapping(self) -> dict[str, Any]:
        return {}

    def build(self) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
        dist.init_process_group(
            self.backends[self.device], store=dist.HashStore(), rank=0, world_size=1
        )
        if self.device == "cuda":
            torch.cuda.set_device(0)
        mesh = init_device_mesh(self.device, (1,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, **self.wrapping())
        fully_shard(self.model, mesh=mesh, **self.wrapping())
        super().build()


class Offloaded(Sharded):
    """Parameters and moments are on the host, pinned; the GPU has copies of them while it computes."""

    backends = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}

    def wrapping(self) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy

        return {"offload_policy": CPUOffloadPolicy(pin_memory=self.device == "cuda")}


#: FSDP's group wants a process of its own.
ALONE: dict[str, type[Training]] = {"sharded": Sharded, "offloaded": Offloaded}
#: What one process can train after another.
KINDS: dict[str, type[Training]] = {
    "fused": Fused,
    "foreach": Foreach,
    "plain": Plain,
    "capturable": Capturable,
    "autocast": Autocast,
    "scaler": Scaler,
    "master": Master,
    "in-backward": InBackward,
    "mixed": Mixed,
    "channels-last": ChannelsLast,
}
SAVED, UNDER_WAY, END = 4, 7, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*KINDS, *ALONE])
    parser.add_argument("device", choices=list(SHAPES))
    parser.add_argument("store")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die", action="store_true")
    args = parser.parse_args()
    import libckpt

    prepare()
    kind = (KINDS | ALONE)[args.kind]
    training = kind(args.device, seed=9 if args.resume else 1)
    ckpt = libckpt.Checkpointer(args.store, training.state, pool_bytes=64 << 20, eager=False)
    first = ckpt.resume()
    losses = []
    for step in range(first, END):
        losses.append(training.step().item().hex())
        if step + 1 == SAVED:
            ckpt.save(SAVED).wait()
        elif step + 1 == UNDER_WAY and not args.resume:
            ckpt.save(UNDER_WAY)
    print(json.dumps({"first": first, "losses": losses, "digest": training.digest()}), flush=True)
    if args.die:
        os.kill(os.getpid(), signal.SIGKILL)
    ckpt.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
