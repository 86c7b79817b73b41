"""Compare ways to exchange the gradients of a DDP network that is not ours, in one run.

    torchrun --standalone --nproc-per-node 2 compare_hooks.py OUTPUT.md [--steps 300] [--only GTC]

A torchaudio Conformer learns the state of each frame, by plain DDP, by torch's allreduce, fp16 and
PowerSGD hooks, by 1-bit SGD and by GTC; and without DDP, by torch's post-local SGD and by block
momentum. Each begins with the same weights and sees the same minibatches. Writes OUTPUT.md and
OUTPUT.json: loss, bytes that a process writes to its sockets, bytes that it receives, time per
step. What a script of your own needs is in the functions named `by_`, and `loss.backward()` stays
as it is.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchaudio.models import Conformer

from asr_train.comm.block_optimizer import BlockMomentum
from asr_train.comm.ddp_hook import GtcHook, OneBitHook, ReducerHook
from asr_train.files import write_json, write_text
from asr_train.provenance import machine
from asr_train.report import exchange
from asr_train.report.tables import as_markdown
from asr_train.schema import AdaptiveSettings, Capacity, Codec, GtcSettings

NUM_MELS, NUM_STATES = 40, 120
UTTERANCES, FRAMES = 4, 160  # a rank's minibatch
WARM_UP = 20  # steps that times and bytes leave out: PowerSGD's first are dense
IO = Path("/proc/self/io")  # Linux: bytes that this process gave to write, sockets included


# --- the hooks ------------------------------------------------------------------------------------


def by_gtc(ddp: DistributedDataParallel, density: float) -> GtcHook:
    """Each step, the elements beyond a threshold, which follows the density; the rest is kept."""
    settings = GtcSettings(
        threshold=1e-3,  # to begin with; in units of a rank's own gradient
        codec=Codec.rice,
        capacity=Capacity.exact,
        adaptive=AdaptiveSettings(density=density, band=1.25, factor=1.1),
    )
    gtc = GtcHook(ddp.module, settings)
    ddp.register_comm_hook(gtc, GtcHook.hook)
    return gtc


def by_one_bit(ddp: DistributedDataParallel) -> OneBitHook:
    """One bit per element and two values per column; what quantisation loses is kept."""
    one_bit = OneBitHook(ddp.module)
    ddp.register_comm_hook(one_bit, OneBitHook.hook)
    return one_bit


def by_power_sgd(ddp: DistributedDataParallel, rank: int) -> powerSGD_hook.PowerSGDState:
    """Matrices of that rank in place of gradients."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=10,
        min_compression_rate=2,
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return state


# torch 2.11's PowerSGD hook starts a bucket's later collectives when its earlier ones have ended;
# with several buckets, ranks may do so in different orders, and gloo aborts: it gets a single one.
ONE_BUCKET_MB = 1000
METHODS: dict[str, Callable[[DistributedDataParallel], Any]] = {
    "plain DDP": lambda ddp: None,
    "allreduce hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16 hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "PowerSGD hook, rank 4": lambda ddp: by_power_sgd(ddp, 4),
    "PowerSGD hook, rank 1": lambda ddp: by_power_sgd(ddp, 1),
    "1-bit hook": by_one_bit,
    "GTC hook, density 0.01": lambda ddp: by_gtc(ddp, 0.01),
    "GTC hook, density 0.001": lambda ddp: by_gtc(ddp, 0.001),
}
BLOCK_STEPS = 10


def by_post_local_sgd(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """Each rank on its own; every few steps the mean of their models."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # takes 5 s, twice as long as torch

    return PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=BLOCK_STEPS))


def by_block_momentum(model: nn.Module, optimizer: Optimizer) -> BlockMomentum:
    """The same, and the mean moves a common model, with momentum."""
    return BlockMomentum(model, optimizer, block_steps=BLOCK_STEPS)


# Without DDP: ranks exchange models
AVERAGING: dict[str, Callable[[nn.Module, Optimizer], Optimizer]] = {
    f"post-local SGD, every {BLOCK_STEPS} steps": by_post_local_sgd,
    f"block momentum, every {BLOCK_STEPS} steps": by_block_momentum,
}


# --- what arrives ---------------------------------------------------------------------------------


def received_bytes(label: str, method: Any, steps: int, parameters: int) -> float:
    """Return what this rank received from others in all steps so far.

    Ours count it. torch's all-reduces are counted as rings, of the vectors that they add up. Not
    counted: protocol, and DDP's broadcasts of buffers.

    Args:
        method: the state of the hook, or the optimizer that exchanges models.
    """
    if isinstance(method, ReducerHook):
        return method.sent.received_bits / 8
    if isinstance(method, BlockMomentum):
        return method.received_bytes
    elements, element_bytes = steps * parameters, 2 if label == "fp16 hook" else 4
    if isinstance(method, powerSGD_hook.PowerSGDState):  # dense at first; then P, Q and the rest
        dense = min(steps, method.start_powerSGD_iter)
        elements = dense * parameters + method.total_numel_after_compression
    elif label in AVERAGING:  # post-local SGD: models of steps 1, 11, ...
        elements = -(-steps // method.averager.period) * parameters
    return exchange.ring_bytes(element_bytes * elements, dist.get_world_size())


# --- network and speech ---------------------------------------------------------------------------


class Recogniser(nn.Module):
    """A Conformer between two linear layers: feats_BTF -> logits_BTS."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.into = nn.Linear(NUM_MELS, width)
        self.conformer = Conformer(width, 4, 4 * width, layers, depthwise_conv_kernel_size=15)
        self.out = nn.Linear(width, NUM_STATES)

    def forward(self, feats_BTF: Tensor) -> Tensor:
        lengths_B = torch.full((len(feats_BTF),), feats_BTF.shape[1])
        hidden_BTF, _ = self.conformer(self.into(feats_BTF), lengths_B)
        return self.out(hidden_BTF)


class Speech:
    """Synthetic sequences of states; frames are Gaussian; the previous state shifts the mean."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        self.centre_SF = torch.randn(NUM_STATES, NUM_MELS, generator=rng)
        self.trace_SF = 0.7 * torch.randn(NUM_STATES, NUM_MELS, generator=rng)
        self.next_SS = torch.randint(NUM_STATES, (NUM_STATES, 4), generator=rng)

    def batch(self, seed: int, utterances: int = UTTERANCES) -> tuple[Tensor, Tensor]:
        """feats_BTF, states_BT; a state lasts 3 to 9 frames, and one of 4 comes after it."""
        rng = torch.Generator().manual_seed(seed)
        rows, before = [], []
        for _ in range(utterances):
            state = last = int(torch.randint(NUM_STATES, (), generator=rng))
            row: list[int] = []
            traces: list[int] = []
            while len(row) < FRAMES:
                count = int(torch.randint(3, 10, (), generator=rng))
                row += [state] * count
                traces += [last] * count
                last = state
                state = int(self.next_SS[state, torch.randint(4, (), generator=rng)])
            rows.append(row[:FRAMES])
            before.append(traces[:FRAMES])
        states_BT, before_BT = torch.tensor(rows), torch.tensor(before)
        noise_BTF = 2.0 * torch.randn(utterances, FRAMES, NUM_MELS, generator=rng)
        return self.centre_SF[states_BT] + self.trace_SF[before_BT] + noise_BTF, states_BT


# --- one training after the other -----------------------------------------------------------------


@dataclass
class Run:
    """The results of one training; lists have an entry per step."""

    loss: list[float] = field(default_factory=list)  # nats per frame, of this rank's minibatch
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # bytes
    received: list[float] = field(default_factory=list)  # bytes, of all steps so far
    dev_loss: float = 0.0
    dev_accuracy: float = 0.0


def train(label: str, speech: Speech, steps: int) -> Run:
    """A user's own loop: nothing in it but the first lines knows how ranks exchange what."""
    torch.manual_seed(0)
    model = Recogniser()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer: Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    net: nn.Module = model
    if label in AVERAGING:
        method: Any = AVERAGING[label](model, optimizer)
        optimizer = method
    else:
        one_bucket = {"bucket_cap_mb": ONE_BUCKET_MB} if label.startswith("PowerSGD") else {}
        net = DistributedDataParallel(model, **one_bucket)
        method = METHODS[label](net)
    run = Run()
    dist.barrier()
    for step, (feats_BTF, states_BT) in enumerate(minibatches(speech, steps)):
        began, written = time.perf_counter(), bytes_written()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (step + 1) / 50)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(feats_BTF).flatten(0, 1), states_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.sent.append(bytes_written() - written)
        run.seconds.append(time.perf_counter() - began)
        run.received.append(received_bytes(label, method, step + 1, parameters))
        run.loss.append(loss.item())
    if isinstance(optimizer, BlockMomentum):
        written = bytes_written()
        optimizer.end_block()  # the steps since the last block
        run.sent[-1] += bytes_written() - written
        run.received[-1] = optimizer.received_bytes
    with optimizer.exported() if isinstance(optimizer, BlockMomentum) else nullcontext():
        run.dev_loss, run.dev_accuracy = evaluate(model, speech)
    return run


def minibatches(speech: Speech, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's minibatches."""
    for step in range(steps):
        yield speech.batch(1 + step * dist.get_world_size() + dist.get_rank())


@torch.inference_mode()
def evaluate(model: nn.Module, speech: Speech) -> tuple[float, float]:
    """Return nats per frame and frame accuracy on held-out speech."""
    model.eval()
    feats_BTF, states_BT = speech.batch(-1, utterances=24)
    logits = model(feats_BTF).flatten(0, 1)
    right = (logits.argmax(-1) == states_BT.flatten()).float().mean().item()
    return nn.functional.cross_entropy(logits, states_BT.flatten()).item(), right


def bytes_written() -> int:
    """Return the bytes that this process wrote so far; 0 if the system does not report them."""
    if not IO.exists():
        return 0
    return int(IO.read_text().split("wchar:")[1].split()[0])


def mean_over_ranks(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# --- the table ------------------------------------------------------------------------------------

RECEIVED: dict[str, tuple[str, Callable[[Any], str]]] = {  # as in the table of exchanges, but small
    **{name: exchange.NUMBERS[name] for name in ("KB received per step", "bf16 / received")},
    "MB received, all ranks": ("received_bytes_all_workers", lambda x: exchange.digits(x / 1e6)),
    "seconds at 1 / 10 Gb/s": (
        "minutes_at_1_gbps",
        lambda x: f"{exchange.digits(60 * x)} / {exchange.digits(6 * x)}",
    ),
}
COLUMNS = (
    *("exchange", "train loss, last steps", "dev loss", "dev frame accuracy %"),
    *("KB sent per step", "dense / sent", *RECEIVED, "ms per step"),
)


def row_of(label: str, run: Run, parameters: int) -> dict[str, Any]:
    """Means over ranks; bytes and times of the steps after WARM_UP, totals of all steps."""
    sent = mean_over_ranks(statistics.fmean(run.sent[WARM_UP:]))
    steps, ranks = len(run.received), dist.get_world_size()
    total = mean_over_ranks(run.received[-1])
    warm_up = mean_over_ranks(run.received[WARM_UP - 1])

    def received(received_bytes: float, steps: int) -> dict[str, Any]:
        dense = exchange.in_bf16(parameters, [ranks], [steps])
        return exchange.received(received_bytes, steps, dense, ranks)

    later = received(total - warm_up, steps - WARM_UP)
    per_step = {key: later[key] for key in ("received_bytes_a_minibatch", "bf16_over_received")}
    ours = {
        "loss": mean_over_ranks(statistics.fmean(run.loss[-len(run.loss) // 10 :])),
        "dev_loss": run.dev_loss,
        "dev_accuracy": run.dev_accuracy,
        "sent_bytes": sent or None,
        "compression_ratio": 4 * parameters / sent if sent else None,
        **received(total, steps),
        **per_step,
        "step_seconds": mean_over_ranks(statistics.median(run.seconds[WARM_UP:])),
        "losses": run.loss,
    }
    return {"label": label, "paper": {}, "ours": ours, "measured": True}


def cells(row: dict[str, Any]) -> list[str]:
    ours = row["ours"]
    sent, ratio = ours["sent_bytes"], ours["compression_ratio"]
    return [
        row["label"],
        *(f"{ours[key]:.3f}" for key in ("loss", "dev_loss")),
        f"{100 * ours['dev_accuracy']:.1f}",
        exchange.text(sent, lambda x: f"{x / 1e3:,.1f}"),
        exchange.text(ratio, lambda x: f"{x:.1f}"),
        *(exchange.text(ours[key], spell) for key, spell in RECEIVED.values()),
        f"{1e3 * ours['step_seconds']:.1f}",
    ]


def markdown(table: dict[str, Any]) -> str:
    return as_markdown("", COLUMNS, map(cells, table["rows"]), (), names=1) + (
        f"After {table['steps']} steps of {table['ranks']} processes, "
        f"{table['parameters']:,} parameters, {table['frames']} frames per process and step. Sent: "
        "what a process writes to its sockets per step, on average, protocol and DDP's broadcasts "
        "of buffers included. Received: what a process gets from all others, without these: W - 1 "
        "messages of an all-gather, with padding and lengths, and 2 (W - 1) / W of a vector that "
        "is added up. bf16 / received: ring all-reduce of bf16 gradients receives so many times as "
        f"much. Times are medians. All these without the first {WARM_UP} steps. MB and seconds: of "
        "all steps; seconds in which a process receives its share at that rate, without latency. "
        f"Gloo on one machine: {table['machine']}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "output", type=Path, help="path of the table, .md; .json is written beside it"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only methods whose names contain one of these"
    )
    parser.add_argument("--check", action="store_true", help="only check these arguments")
    parser.add_argument("--ranks", default="1", help="processes to come, for --check")
    given = parser.parse_args()
    known = [*METHODS, *AVERAGING]
    labels = [label for label in known if any(word in label for word in given.only)]
    if not labels:
        sys.exit(f"--only {' '.join(given.only)} is in none of the names {', '.join(known)}")
    if given.steps <= WARM_UP:
        sys.exit(f"--steps is {given.steps}; it must be more than the {WARM_UP} of the warm-up")
    if not given.ranks.isdecimal() or int(given.ranks) < 1:
        sys.exit(f"RANKS is {given.ranks!r}; it must be a number of processes")
    if given.check:
        return
    dist.init_process_group("gloo")
    speech = Speech()
    size = sum(p.numel() for p in Recogniser().parameters())
    rows = []
    for label in labels:
        rows.append(row_of(label, train(label, speech, given.steps), size))
        if dist.get_rank() == 0:
            said = zip(COLUMNS[1:], cells(rows[-1])[1:], strict=True)
            print(f"{label}: " + ", ".join(map(" ".join, said)), flush=True)
    if dist.get_rank() == 0:
        table = {
            "paper": None,
            "table": "ddp_hook",
            "columns": list(COLUMNS),
            "rows": rows,
            "steps": given.steps,
            "ranks": dist.get_world_size(),
            "parameters": size,
            "frames": UTTERANCES * FRAMES,
            "machine": machine(),
        }
        write_json(given.output.with_suffix(".json"), table)
        write_text(given.output, markdown(table))
        print(markdown(table), end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
