"""Stands for torch in a rehearsal of the pack: what `torch_baseline.py` asks of it, with shapes that are checked and nothing computed."""

from types import SimpleNamespace

__version__ = "0.0, a stand-in"
bfloat16 = "bfloat16"


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def repeat_interleave(self, n_times, dim):
        shape = list(self.shape)
        shape[dim] *= n_times
        return Tensor(*shape)


def randn(*shape, dtype, device):
    assert (dtype, device) == (bfloat16, "cuda")
    return Tensor(*shape)


class Event:
    def __init__(self, enable_timing):
        assert enable_timing
        self.is_recorded = False

    def record(self):
        self.is_recorded = True

    def synchronize(self):
        assert self.is_recorded

    def elapsed_time(self, ended):
        assert self.is_recorded and ended.is_recorded
        return 1.0


def linear(rows, weights):
    assert rows.shape[-1] == weights.shape[-1]
    return Tensor(*rows.shape[:-1], weights.shape[0])


def scaled_dot_product_attention(queries, keys, values, is_causal):
    assert is_causal and queries.shape == keys.shape == values.shape
    return queries


cuda = SimpleNamespace(Event=Event, is_available=lambda: True)
nn = SimpleNamespace(functional=SimpleNamespace(linear=linear, scaled_dot_product_attention=scaled_dot_product_attention))
