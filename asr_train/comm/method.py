"""The **hooks of every method**: what happens to gradients before an update, to weights after it.

A method is a class with the two hooks and its state; `build_method` is the one place that knows
them all. Knows nothing of networks, shards or how weights are updated.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from asr_train import schema


@dataclass(slots=True)
class Sent:
    """What this worker sent to others."""

    bits: int = 0  # headers included
    elements: int = 0  # gradient or weight values


class Method:
    """One worker's side of an exchange; this one has nobody to exchange with.

    A method for several workers overrides the hooks, adds to `sent` what it sends, and puts all
    that the next step depends on into its state. All workers call the hooks equally often.
    """

    def __init__(self) -> None:
        self.sent = Sent()

    def reduce_gradient(self, grad_P: Tensor, frames: int) -> tuple[Tensor, int]:
        """This worker's summed gradient and its frames -> those to update the weights with.

        May change `grad_P` in place and return it. Both are sums over workers, for rates are per
        frame. The loop has checked that `grad_P` is finite.
        """
        return grad_P, frames

    def after_update(self, weights_P: Tensor) -> None:
        """May change the weights in place, once they are updated."""

    def take_sent(self) -> Sent:
        """What was sent since the last call."""
        sent, self.sent = self.sent, Sent()
        return sent

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data for a checkpoint: goes on exactly from here."""
        return {"sent_bits": self.sent.bits, "elements_sent": self.sent.elements}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        self.sent = Sent(state["sent_bits"], state["elements_sent"])


class Sgd(Method):
    """One worker, plain SGD: gradients and weights stay as they are, nothing is sent."""


def build_method(settings: schema.CommSettings, num_parameters: int) -> Method:
    """The method that the settings name, for flat vectors of `num_parameters` elements."""
    match settings.method:
        case schema.Method.sgd:
            return Sgd()
