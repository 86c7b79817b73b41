"""K-hat: a machine, a network, a minibatch -> the **number of nodes that pays** (Seide, 2014).

A fixed minibatch is divided among K nodes, in two half batches, so that one travels while the other
is computed. More nodes pay as long as computing takes longer than the exchange; K-hat is where
T_calc(K) = T_comm(K) (equation 2 of the ICASSP paper). The closed forms of both papers come first,
then the same condition for any cluster and method. Speeds are estimated, not measured.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.cost.cluster import ClusterSettings, bytes_per_second
from asr_train.cost.plan import BYTES, Work
from asr_train.facts import MAX_ELEMENTS, Traffic

MOST = 2.0**20  # nodes beyond which K-hat is given as infinite


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Constants of the ICASSP paper, section 3.

    Attributes:
        parameters: M.
        flops: f, operations per second with large minibatches.
        fixed_seconds: M/f C eta_fix: C passes over all parameters per minibatch.
        passes: C.
        bytes_per_second: b, from peer to peer.
        activations: A_fr, values per frame that cross between layers.
    """

    parameters: float
    flops: float
    fixed_seconds: float
    passes: int
    bytes_per_second: float
    activations: float

    @property
    def frame_seconds(self) -> float:
        """3 M/f: forward, backward and gradient."""
        return 3 * self.parameters / self.flops

    @property
    def update_seconds(self) -> float:
        """(C + 1) M/f eta_fix: so many passes over all parameters."""
        return (self.passes + 1) * (self.fixed_seconds / self.passes)


def printed_node(paper: Mapping[str, Any]) -> Node:
    """Return the constants that the ICASSP paper prints; C = 4 is that of its fixed cost."""
    hardware, model = paper["hardware"], paper["model"]
    return Node(
        parameters=1e6 * model["parameters_millions"],
        flops=hardware["flops_f"],
        fixed_seconds=1e-3 * hardware["fixed_cost_ms"],
        passes=4,
        bytes_per_second=1e9 * hardware["peer_bandwidth_gb_per_s_blocks_of_1024_frames"],
        activations=model["activations_passed_per_frame"],
    )


# --- the papers' closed forms -------------------------------------------------------------------


def alone_seconds(node: Node, frames: float) -> float:
    """Return T_calc(1): equation 3 with eta_mbs = 1."""
    return frames * node.frame_seconds + node.fixed_seconds


def data_parallel(
    node: Node, frames: float, value_bytes: float, lambda_conn: float = 1.0, eta: float = 1.0
) -> float:
    """Return K-hat of data parallelism, where the exchange takes longer than the update.

    Args:
        frames: N, of a minibatch of all nodes.
        value_bytes: w_M, of a gradient value: 4, or 1 with 8 bits.
        lambda_conn: times that an exchange of all nodes takes longer than one from peer to peer.
        eta: eta_mbs(N/2K), loss by small half batches.
    """
    exchange = 2 * _exchange(node, value_bytes, lambda_conn)
    return one_bit(frames, node.frame_seconds * eta, exchange, node.update_seconds)


def one_bit(
    frames: float,
    frame_seconds: float,
    exchange_seconds: float,
    update_seconds: float,
    post_seconds: float = 0.0,
    passes: int = 3,
) -> float:
    """Return K-hat of the 1-bit paper, whose nodes own 1/K of the parameters each (equation 4).

        N/2K T_frm + C/K T_post + T_upd = T_float/Z

    Infinite if the update alone hides the exchange.

    Args:
        frames: N, of a minibatch of all nodes.
        frame_seconds: T_frm.
        exchange_seconds: T_float/Z; Z is 32 with 1 bit.
        update_seconds: T_upd, of each node.
        post_seconds: T_post, divided among the nodes; the ICASSP paper has none.
        passes: C.
    """
    if exchange_seconds <= update_seconds:
        return math.inf
    divided = frames / 2 * frame_seconds + passes * post_seconds
    return divided / (exchange_seconds - update_seconds)


def data_parallel_speedup(
    node: Node, nodes: float, frames: float, value_bytes: float, lambda_conn: float
) -> float:
    """Return T_calc(1) / max(T_calc(K), T_comm(K)) of data parallelism."""
    calc = 2 * (frames / 2 / nodes * node.frame_seconds + node.update_seconds)
    comm = 4 * _exchange(node, value_bytes, lambda_conn)
    return alone_seconds(node, frames) / max(calc, comm)


def lambda_conn_for(node: Node, nodes: float, frames: float, value_bytes: float) -> float:
    """Return the lambda_conn with which `nodes` is K-hat of data parallelism."""
    wanted = frames / 2 * node.frame_seconds / nodes + node.update_seconds
    return wanted / (2 * _exchange(node, value_bytes, 1.0))


def _exchange(node: Node, value_bytes: float, lambda_conn: float) -> float:
    """Return the seconds in which one copy of the gradient crosses a link."""
    return node.parameters * value_bytes / node.bytes_per_second * lambda_conn


def model_parallel(node: Node, lambda_conn: float) -> float:
    """Return K-hat of layers cut into stripes, for any minibatch; activations have 4 bytes."""
    ratio = node.parameters / (node.activations * BYTES)
    return 1 + ratio * node.bytes_per_second / node.flops / lambda_conn


def model_parallel_speedup(node: Node, nodes: float, frames: float, lambda_conn: float) -> float:
    """Return T_calc(1) over the seconds of three propagations and of the fixed part, not split.

    Each propagation takes max(T_calc(K), T_comm(K)); the gradient needs no exchange.
    """
    calc = frames * node.frame_seconds / 3 / nodes
    share = (nodes - 1) / nodes * lambda_conn
    comm = node.activations * BYTES / node.bytes_per_second * frames * share
    seconds = 2 * max(calc, comm) + calc + node.fixed_seconds
    return alone_seconds(node, frames) / seconds


# --- any cluster and method ---------------------------------------------------------------------


def crossing(calc: Callable[[float], float], comm: Callable[[float], float]) -> float:
    """Return the K from 1 on at which comm(K) reaches calc(K); infinite beyond MOST.

    Args:
        calc, comm: seconds by number of nodes; calc - comm must not grow with it.
    """
    low, high = 1.0, 2.0
    while calc(high) > comm(high):
        low, high = high, 2 * high
        if low >= MOST:
            return math.inf
    while high - low > 1e-6 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if calc(middle) > comm(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Optimum:
    """K-hat by kind of traffic, for a minibatch of all workers; `stripes`: of model parallelism.

    Infinite: an exchange is hidden with any number of workers.
    """

    frames: float
    nodes: Mapping[Traffic, float]
    stripes: float | None


def optimum(cluster: ClusterSettings, work: Work, frames: float, block_steps: int) -> Optimum:
    """Return K-hat of each method on this cluster: K workers, one GPU each.

    Args:
        work: a worker's step; its network, speed and messages count, not its frames.
        frames: of a minibatch, divided among the workers.
        block_steps: of bmuf, whose exchange must be hidden by the steps of a block.
    """
    gpu, dense = cluster.gpu, work.dense_bytes
    size = float(np.mean([message.size for message in work.messages]))
    elements = float(np.mean([message.elements for message in work.messages]))
    encode = 1e-9 * gpu.encode_ns * work.parameters
    decode = 1e-9 * gpu.decode_ns * elements

    def half(nodes: float, extra: float = 0.0) -> float:
        return work.seconds(frames / (2 * nodes * work.frames)) + extra

    def summed(nodes: float) -> float:
        return 2 * (nodes - 1) / nodes * dense / ring_rate(cluster, nodes)

    def parts(nodes: float) -> float:
        sent = (nodes - 1) / nodes * dense / 32 / peer_rate(cluster, nodes)
        return 2 * sent + 1e-3 * gpu.exchange_ms

    def gathered(nodes: float) -> float:
        return (nodes - 1) * (size / ring_rate(cluster, nodes) + decode)

    def striped(nodes: float) -> float:
        share = (nodes - 1) / nodes * cluster.lambda_conn
        return frames * work.activations * BYTES * share / peer_rate(cluster, nodes)

    whole = frames / work.frames
    stripes = crossing(lambda k: frames * work.frame_seconds / 3 / k, striped)
    nodes = {
        Traffic.allreduce: crossing(half, summed),
        Traffic.onebit: crossing(lambda k: half(k, 2 * encode), parts),
        Traffic.gtc: crossing(lambda k: half(k, encode), gathered),
        Traffic.bmuf: crossing(lambda k: block_steps * work.seconds(whole / k), summed),
    }
    if work.parameters > MAX_ELEMENTS:
        del nodes[Traffic.gtc]
    return Optimum(frames, nodes, stripes if work.activations else None)


def ring_rate(cluster: ClusterSettings, nodes: float) -> float:
    """Return bytes per second of each hop of a ring: one flow enters and leaves each node.

    More workers than the cluster has: as if it had more nodes; a single node: more GPUs.
    """
    if nodes <= cluster.gpus_per_node or cluster.between is None:
        return _inside(cluster, nodes)
    gpus = cluster.gpus_per_node
    fabric = bytes_per_second(cluster.fabric_gbit_per_s) * gpus / nodes
    near = _inside(cluster, gpus - 1) if gpus > 1 else math.inf
    return min(cluster.between.bytes_per_second, near, fabric)


def peer_rate(cluster: ClusterSettings, nodes: float) -> float:
    """Return bytes per second of a worker that sends to all others, as all others do.

    Of more workers than the cluster has as in `ring_rate`.
    """
    gpus = cluster.gpus_per_node
    if nodes <= gpus or cluster.between is None:
        return _inside(cluster, nodes)
    leaving = (nodes - gpus) / (nodes - 1)
    fabric = bytes_per_second(cluster.fabric_gbit_per_s) / nodes / leaving
    near = _inside(cluster, gpus) / (1 - leaving) if gpus > 1 else math.inf
    return min(cluster.between.bytes_per_second / gpus / leaving, near, fabric)


def _inside(cluster: ClusterSettings, gpus: float) -> float:
    assert cluster.inside is not None
    return min(cluster.inside.bytes_per_second, bytes_per_second(cluster.bus_gbit_per_s) / gpus)
