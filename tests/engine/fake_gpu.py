"""A GPU that is not here: tensors of `cuda` that know shape, dtype and device, and no values."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
_CPU, _CUDA = 0, 1  # c10::DeviceType


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Make all tensors fake inside the block.

    An operation on tensors of two devices raises, and so does one whose result the host must know:
    `.item()`, `bool()`, `nonzero()`.
    """
    with _cuda_is_known(), FakeTensorMode():
        yield


class Transfers(TorchDispatchMode):
    """Records the operations that copy between devices: those with tensors of more than one."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "aten":  # in inference mode, operations made of others arrive whole
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
        name = func.overloadpacket.__name__
        if len({x.device for x in tensors}) > 1 and name != "fill_":  # which reads it on the host
            self.found.append(name)
        return result


@contextmanager
def _cuda_is_known() -> Iterator[None]:
    """Let a torch that was built without CUDA switch to its devices, which does nothing.

    FakeTensorMode itself takes care of a torch with CUDA on a machine without.
    """
    if torch.backends.cuda.is_built():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    symbol = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * 2).in_dll(library, symbol)
    guards[_CUDA] = guards[_CPU]
    try:
        yield
    finally:
        guards[_CUDA] = None
