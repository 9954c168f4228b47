"""From image codes to pixels: two VQ decoder families cover all models. Always float32; grids need not be square."""

from sjdvp.models.vq.movq import MovqDecoder as MovqDecoder
from sjdvp.models.vq.taming import TamingDecoder as TamingDecoder
from sjdvp.models.vq.values import to_uint8 as to_uint8
