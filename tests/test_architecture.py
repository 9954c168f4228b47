"""Which way imports run: rooms may look down, never up, and two siblings never meet."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sjdvp

LIBRARY = Path(sjdvp.__file__).parent
FOUNDATIONS = {"__init__", "errors", "config", "presets", "events", "jobs", "text", "strict_yaml"}
ON_DISK = FOUNDATIONS | {"profiles", "runs", "weights"}
LOW = ON_DISK | {"rng", "sampling", "cache"}
MIDDLE = LOW | {"interfaces"}

# room: the rooms it may import besides itself
MAY_IMPORT = {
    **dict.fromkeys(FOUNDATIONS, FOUNDATIONS),
    **dict.fromkeys(LOW - FOUNDATIONS, LOW),
    "interfaces": LOW,
    "decode": MIDDLE,
    "backbones": MIDDLE,
    "engine": MIDDLE | {"decode", "backbones"},
    "generate": MIDDLE | {"engine"},
    "compare": MIDDLE | {"engine", "generate", "report"},
    "diagnose": MIDDLE | {"decode", "engine", "report", "compare"},
    "bench": MIDDLE | {"decode", "engine"},
    "calibrate": MIDDLE | {"bench", "engine"},
    "quality": ON_DISK | {"report"},
    "report": ON_DISK,
    "slurm": ON_DISK,
    "workers": ON_DISK,
}
NO_TORCH = ON_DISK | {"report", "slurm", "workers", "generate"}
FILES = sorted(LIBRARY.rglob("*.py"))


def room(file: Path) -> str:
    return file.relative_to(LIBRARY).parts[0].removesuffix(".py")


class Runtime(ast.NodeTransformer):
    """Drop what only a type checker sees: a name in an annotation ties no rooms together."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else self.generic_visit(node)


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(Runtime().visit(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(file: Path) -> set[str]:
    parts = [name.split(".") for name in imports(file)]
    known = {room(f) for f in FILES}
    return {p[1] if len(p) > 1 and p[1] in known else "__init__" for p in parts if p[0] == "sjdvp"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(LIBRARY)))
def test_rooms_look_down_only(file: Path) -> None:
    assert room(file) in MAY_IMPORT, "a new room: say here what it may import"
    assert rooms_imported(file) <= MAY_IMPORT[room(file)] | {room(file), "__init__"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(LIBRARY)))
def test_library_knows_no_terminal(file: Path) -> None:
    assert not {name.split(".")[0] for name in imports(file)} & {"typer", "rich", "click", "sjdvp_cli"}


@pytest.mark.parametrize("file", [f for f in FILES if room(f) in NO_TORCH], ids=lambda f: str(f.relative_to(LIBRARY)))
def test_rooms_without_torch(file: Path) -> None:
    assert not {name.split(".")[0] for name in imports(file)} & {"torch", "transformers", "safetensors", "tokenizers"}


def test_only_backbones_and_the_cache_know_transformers() -> None:
    rooms = {room(file) for file in FILES if "transformers" in {name.split(".")[0] for name in imports(file)}}
    assert rooms <= {"backbones", "cache", "quality"}  # the last: CLIP, as a measure


def test_standard_library_is_not_shadowed() -> None:
    assert not {room(f) for f in FILES} & set(sys.stdlib_module_names)


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py is found in a checkout and is missing in the wheel."""
    assert not {file.parent for file in FILES if not (file.parent / "__init__.py").exists()}


def test_drawing_imports_no_torch_before_it_opens_a_model() -> None:
    code = "import sys, sjdvp.generate, sjdvp.runs.export; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(LIBRARY.parent)})
