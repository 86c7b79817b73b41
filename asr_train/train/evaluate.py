"""Evaluation on DEV: **loss and frame accuracy** over all frames, a share of them per worker."""

from collections.abc import Iterator

import torch

from asr_train.comm.exchange import Exchange
from asr_train.model.store import Model
from asr_train.shards.batch import Batch, Cut, Piece, context_padded, stacked
from asr_train.shards.reader import Shards
from asr_train.shards.sample import Sample
from asr_train.train.objective import CROSS_ENTROPY, Objective

DEV_FRAMES = 4096  # evaluated at once; one utterance if that is longer


@torch.inference_mode()
def evaluate(
    model: Model, shards: Shards, exchange: Exchange, objective: Objective = CROSS_ENTROPY
) -> tuple[float, float]:
    """Return the mean loss per frame (cross-entropy: nats), and the frame accuracy.

    Over all frames, so that networks trained on all frames or on fewer can be compared. Each worker
    evaluates a part; if there are fewer utterances than workers, some have none.
    """
    was_training = model.training
    model.eval()
    parts = min(len(exchange), shards.num_samples)
    rows = []
    for worker in exchange.local:
        loss, correct = 0.0, 0
        rowwise = model.is_recurrent or objective.whole
        for batch in whole_utterances(shards, model, exchange.device, worker, parts, rowwise):
            batch_loss, batch_correct = objective(model.every_frame(batch.feats_BTF), batch)
            loss += batch_loss.item()
            correct += int(batch_correct.item())
        rows.append([loss, correct])
    model.train(was_training)
    total_loss, total_correct = (sum(n) for n in zip(*exchange.numbers(rows), strict=True))
    return total_loss / shards.num_frames, total_correct / shards.num_frames


def whole_utterances(
    shards: Shards, model: Model, device: torch.device, worker: int, workers: int, rowwise: bool
) -> Iterator[Batch]:
    """Yield a worker's utterances, about DEV_FRAMES at once; see `side_by_side` and `end_to_end`.

    Workers from `workers` on have none.

    Args:
        rowwise: side by side: a recurrent network must not carry its state from one utterance to
            the next, and a lattice is of one row.
    """
    join = side_by_side if rowwise else end_to_end
    left, right = model.context_left, model.context_right
    held: list[Sample] = []
    for sample in shards.samples(None, worker, workers, epoch=0) if worker < workers else ():
        held.append(sample)
        if sum(len(s.ali_T) for s in held) >= DEV_FRAMES:
            yield join(held, left, right, device)
            held = []
    if held:
        yield join(held, left, right, device)


def end_to_end(samples: list[Sample], left: int, right: int, device: torch.device) -> Batch:
    """Join utterances in a row [1, T, F] without padding; windows that straddle two are masked."""
    gap_T = torch.zeros(left + right, dtype=torch.int64)
    feats, alis, masks = [], [], []
    for sample in samples:
        ali_T = torch.from_numpy(sample.ali_T).to(torch.int64)
        feats.append(context_padded(sample.feats_TF, left, right))
        alis.append(torch.cat([ali_T, gap_T]))
        masks.append(torch.arange(len(alis[-1])) < len(ali_T))
    last = sum(map(len, alis)) - len(gap_T)  # after which no window is whole
    return Batch(
        torch.cat(feats, dim=1).to(device),
        torch.cat(alis)[None, :last].to(device),
        torch.cat(masks)[None, :last].to(device),
        sum(len(sample.ali_T) for sample in samples),
    )


def side_by_side(samples: list[Sample], left: int, right: int, device: torch.device) -> Batch:
    """Put each utterance in a row, padded to the longest; edges repeat the first and last frame."""
    pieces = [Piece(n, phase=0, first=0, last=len(s.ali_T)) for n, s in enumerate(samples)]
    return stacked(pieces, samples, Cut(left, right), device)
