"""Fused norms: bit for bit those of transformers, and no other norm is touched."""

import pytest
import torch
from torch import nn
from transformers.models.chameleon.modeling_chameleon import ChameleonRMSNorm
from transformers.models.emu3.modeling_emu3 import Emu3RMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from sjdvp.models.norms import RmsNorm, with_fused_norms


@pytest.mark.parametrize("norm", [LlamaRMSNorm, Qwen3RMSNorm, ChameleonRMSNorm, Emu3RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 64, 1024])
def test_the_same_bits(norm, dtype, size):
    theirs = norm(size, eps=1e-5)
    theirs.weight.data.normal_(1, 0.3)
    theirs = theirs.to(dtype)
    part = with_fused_norms(nn.Sequential(nn.Sequential(theirs)))
    x = (10 * torch.randn(3, 5, size)).to(dtype)
    assert isinstance(part[0][0], RmsNorm)
    assert torch.equal(part(x), theirs(x))


def test_other_norms_stay():
    """Olmo's, for one, looks alike and multiplies by the weights before it rounds."""
    norms = [Olmo2RMSNorm(8), GemmaRMSNorm(8), nn.LayerNorm(8), nn.RMSNorm(8)]
    assert [type(norm) for norm in with_fused_norms(nn.Sequential(*norms))] == [
        type(norm) for norm in norms
    ]
