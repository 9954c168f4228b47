"""From image codes to pixels: two VQ decoder families cover all models. Always float32; grids need not be square."""

from sjdvp.backbones.pixels.movq import MovqDecoder as MovqDecoder
from sjdvp.backbones.pixels.taming import TamingDecoder as TamingDecoder
from sjdvp.backbones.pixels.values import to_uint8 as to_uint8
