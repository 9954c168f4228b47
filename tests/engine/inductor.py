"""What torch.compile writes for a GPU that is not here: Triton source, and its compiled kernels."""

import re
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, cpu_vec_isa
from torch._inductor.graph import GraphLowering

_H100 = SimpleNamespace(
    name="H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    total_memory=80 * 10**9,
    gcnArchName="",
)
_LAUNCH = re.compile(r"(triton_\w+)\.run\(|= (torch\.ops\.[\w.]+)\(|(extern_kernels\.\w+)\(")
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)


# Folding constants computes on the GPU; what the cache holds is not written again.
_SETTINGS = {"joint_graph_constant_folding": False, "force_disable_caches": True}


class _Written(Exception):
    """torch.compile has written its source: nothing is compiled and nothing runs."""


def source_of(monkeypatch: Any, function: Callable[..., Any], *args: Any) -> str:
    """Return the source that torch.compile writes for a call."""
    sources: list[str] = []

    def keep(graph: GraphLowering) -> None:
        sources.append(graph.codegen()[0].value)
        raise _Written

    monkeypatch.setattr(GraphLowering, "compile_to_module", keep)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)  # it tries them out with g++
    torch.compiler.reset()
    try:
        with config.patch(_SETTINGS):
            torch.compile(function, dynamic=False, fullgraph=True)(*args)
    except Exception as error:
        if not sources:
            raise error
    (source,) = sources
    return source


def launches(source: str) -> list[str]:
    """Return the kernels that a call launches, in their order."""
    call = source[source.index("def call(") :]
    return ["".join(names) for names in _LAUNCH.findall(call)]


def pretend_to_have_an_h100(monkeypatch: Any) -> None:
    """Tell torch.compile and Triton of a GPU of sm_90."""
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    for part, answers in (
        (torch.cuda, {"get_device_properties": _H100, "get_device_capability": (9, 0)}),
        (torch.cuda, {"current_device": 0, "device_count": 1}),
        (CudaInterface.Worker, {"get_device_properties": _H100, "current_device": 0}),
        (CudaInterface, {"get_device_properties": _H100, "get_compute_capability": 90}),
        (CudaInterface, {"is_available": True, "is_triton_capable": True}),
        (CudaInterface, {"is_bf16_supported": True, "raise_if_triton_unavailable": None}),
        (triton_helpers, {"set_driver_to_gpu": None}),
    ):
        for name, answer in answers.items():
            monkeypatch.setattr(part, name, lambda *args, answer=answer, **kwargs: answer)
    target = GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: target))


def compile_kernels(source: str, folder: Path) -> int:
    """Compile all Triton kernels of a source for the GPU; return how many there are."""
    kernels = _KERNEL.findall(source)
    for name, text in kernels:
        path = folder / f"{name}.py"  # Triton reads the source of a function from its file
        path.write_text(text)
        spec = spec_from_file_location(name, path)
        assert spec and spec.loader
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, name)
        kernel._precompile_config(kernel.configs[0])
    return len(kernels)
