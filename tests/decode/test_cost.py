"""What a step costs outside the forward pass: operations, bytes of noise, sums before sampling."""

from dataclasses import dataclass, field

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sjdvp import rng
from sjdvp.config import DecoderConfig, SamplingConfig, from_table
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.step import admit, decode_step
from sjdvp.interfaces import ImageLayout
from sjdvp.presets import PRESETS
from sjdvp.rng import Noise


@dataclass
class Writes(TorchDispatchMode):
    """Records the operations that write a tensor, which are kernels on a GPU, and their bytes."""

    names: list = field(default_factory=list)
    n_bytes: int = 0
    float_sums_of_one_line: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        storages = {x.untyped_storage()._cdata for x in given}
        if func._schema.is_mutable or any(x.untyped_storage()._cdata not in storages for x in made):
            self.names.append(func.overloadpacket.__name__)
            sizes = [min(x.nbytes, x.untyped_storage().nbytes()) for x in given + made]
            self.n_bytes += sum(sizes)
        is_sum = func.overloadpacket.__name__ == "cumsum" and made[0].is_floating_point()
        if is_sum and given[0].numel() == given[0].shape[-1]:
            self.float_sums_of_one_line.append(tuple(given[0].shape))
        return out


def started(name, vocab_size, window, **sampling):
    """A decoder, its state with one image begun, and logits for the next step."""
    table = {**PRESETS[name], "preset": name} | ({} if name == "ar" else {"window": window})
    layout = ImageLayout(48, 48, vocab_size, row_end=True)
    config = from_table(DecoderConfig, table)
    decoder = make_decoder(
        config,
        SamplingConfig(**sampling),
        layout,
        lambda: torch.zeros(vocab_size, 2),
        lambda codebook, k: torch.zeros(len(codebook), k, dtype=torch.int64),
    )
    state = decoder.idle_state(1, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    logits_1WV = torch.randn(1, decoder.window, vocab_size, generator=generator)
    admit(decoder, state, [0], logits_1WV[:, 0], rng.keys([1]))
    return decoder, state, logits_1WV


@pytest.mark.parametrize(("name", "at_most"), [("best", 160), ("sjd", 100)])
@torch.inference_mode()
def test_a_step_is_few_operations(name, at_most):
    decoder, state, logits_1WV = started(name, 8192, 32, top_k=2000)
    with Writes() as writes:
        decode_step(decoder, state, logits_1WV)
    assert len(writes.names) <= at_most, writes.names


@torch.inference_mode()
def test_noise_for_the_support_alone_is_a_tenth_of_the_bytes():
    V, K = 65_536, 2000
    decoder, state, _ = started("same-noise", V, 32, top_k=K)
    noise = Noise(state.position_key_BS[:, 1:33], state.nfe_B)
    with Writes() as whole:
        noise.exponential_BWT(rng.counters(0, V, torch.device("cpu")).expand(1, 32, -1))
    with Writes() as support:
        noise.exponential_BWT(torch.arange(decoder.form.n_support).expand(1, 32, -1))
    assert 10 * support.n_bytes < whole.n_bytes


@pytest.mark.parametrize("name", PRESETS)
@torch.inference_mode()
def test_no_draw_sums_a_single_line_in_floating_point(name):
    """On a GPU such a sum differs from run to run, and may fall: zero would not stay zero."""
    with Writes() as writes:
        decoder, state, logits_1WV = started(name, 512, 8, top_k=100, top_p=0.9)
        decode_step(decoder, state, logits_1WV)
    assert not writes.float_sums_of_one_line
