import torch

from asr_train import schema
from asr_train.comm.method import Method, Sent, Sgd, build_method

SGD = schema.CommSettings(method=schema.Method.sgd)


def test_one_worker_changes_neither_gradient_nor_weights_and_sends_nothing():
    method = build_method(SGD, num_parameters=9)
    assert isinstance(method, Sgd)
    vector_P = torch.arange(9.0)
    grad_P, frames = method.reduce_gradient(vector_P, 7)
    method.after_update(vector_P)
    assert torch.equal(grad_P, torch.arange(9.0))
    assert torch.equal(vector_P, torch.arange(9.0))
    assert frames == 7
    assert method.take_sent() == Sent(bits=0, elements=0)


def test_every_named_method_can_be_built():
    for name in schema.Method:
        assert isinstance(build_method(schema.CommSettings(method=name), 9), Method)


class Chatty(Method):
    def reduce_gradient(self, grad_P, frames):
        self.sent.bits += 32 * grad_P.numel()
        self.sent.elements += grad_P.numel()
        return grad_P, frames


def test_what_was_sent_is_counted_once_and_survives_a_checkpoint():
    method = Chatty()
    method.reduce_gradient(torch.zeros(9), 1)
    restored = Chatty()
    restored.load_state_dict(method.state_dict())
    for m in (method, restored):
        m.reduce_gradient(torch.zeros(9), 1)
        assert m.take_sent() == Sent(bits=2 * 32 * 9, elements=18)
        assert m.take_sent() == Sent()
