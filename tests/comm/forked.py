"""Several processes on this machine, as torchrun would start them."""

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
from ports import free_port

from asr_train.comm.exchange import Exchange
from asr_train.comm.processes import close_exchange, open_exchange
from asr_train.comm.stripes import Stripes, open_stripes

CPU = torch.device("cpu")
PATIENCE_SECONDS = 300  # for what takes a second on an idle machine


def run(
    function: Callable[[Exchange], Any] | Callable[[Stripes], Any],
    workers: int,
    processes: int,
    timeout_seconds: float = PATIENCE_SECONDS,
    stripes: int = 1,
) -> list[Any]:
    """Call `function(exchange)` in each process; return the results, or the exceptions raised.

    With more than one stripe, call `function(stripes)`.

    A process that died gives its exit code. Results are plain data or NumPy arrays.
    """
    context = multiprocessing.get_context("fork")
    port = free_port()
    pipes, children = [], []
    for rank in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (function, workers, processes, rank, port, timeout_seconds, stripes, theirs)
        child = context.Process(target=_child, args=arguments)
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    results = []
    for pipe, child in zip(pipes, children, strict=True):
        try:
            results.append(pipe.recv())
        except EOFError:
            child.join()
            results.append(child.exitcode)
    for child in children:  # after all results: processes wait for each other at the end
        child.join(PATIENCE_SECONDS)
    return results


def _child(function, workers, processes, rank, port, timeout_seconds, stripes, pipe) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    )
    try:
        if stripes > 1:
            opened = open_stripes(workers, stripes, CPU, timeout_seconds)
            everyone = opened.everyone
        else:
            opened = everyone = open_exchange(workers, CPU, timeout_seconds)
        pipe.send(function(opened))
        everyone.barrier()  # the first one holds the store
        close_exchange()
    except Exception as error:
        traceback.print_exc()
        with contextlib.suppress(BrokenPipeError):
            pipe.send(error)
