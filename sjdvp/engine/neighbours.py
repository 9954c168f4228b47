"""The table of nearest tokens that `lantern` needs: computed once for a codebook, kept on disk under its digest."""

import hashlib
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sjdvp.decode.relaxed import nearest


def cached_neighbours(codebook_VE: Tensor, k: int) -> Tensor:
    """Return the k nearest tokens of each code [V, K], from the cache folder or computed (and then kept there).

    A cache folder that cannot be written costs the computation again next time, nothing else.
    """
    vectors = codebook_VE.float().cpu().contiguous()
    digest = hashlib.sha256(
        vectors.numpy().tobytes() + f"/{tuple(vectors.shape)}/{k}".encode()
    ).hexdigest()[:24]
    path = cache_folder() / f"neighbours-{digest}.safetensors"
    if path.is_file():
        return load_file(path)["near"].long().to(codebook_VE.device)
    near_VK = nearest(codebook_VE.float(), k)
    _keep(path, near_VK)
    return near_VK


def cache_folder() -> Path:
    """Return where sjdvp keeps what it can compute again."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (Path.home() fails without HOME)
    return Path(root) / "sjdvp"


def _keep(path: Path, near_VK: Tensor) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            partial = Path(file.name)
        save_file({"near": near_VK.to(torch.int32).cpu().contiguous()}, partial)
        partial.replace(path)
    except OSError:
        return
