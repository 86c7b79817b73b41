"""Threshold compression in the words of Strom (2015), section 2.6, which kernels must equal."""

import torch


def encode_reference(grad_P, residual_P, threshold):
    """Return int8 [P] in {-1, 0, 1} and the new residual; bounds are strict."""
    owed_P = residual_P + grad_P
    code_P = (owed_P > threshold).to(torch.int8) - (owed_P < -threshold).to(torch.int8)
    return code_P, owed_P - threshold * code_P


def decode_reference(messages, size):
    """Return each parameter's positive less negative elements, int64 [size], one by one."""
    counts = [0] * size
    for words_K in messages:
        for word in words_K.tolist():
            counts[word & (2**31 - 1)] += -1 if word < 0 else 1
    return torch.tensor(counts)
