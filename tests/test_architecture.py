"""Which way imports run: a package may import what is below it, and siblings never meet."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sjdvp

LIBRARY = Path(sjdvp.__file__).parent
FOUNDATIONS = {
    *("__init__", "errors", "config", "value_types", "presets"),
    *("events", "jobs", "text", "strict_yaml"),
}
ON_DISK = FOUNDATIONS | {"profiles", "runs", "weights"}
LOW = ON_DISK | {"rng", "sampling", "kv_cache"}
MIDDLE = LOW | {"interfaces"}

# part of the library: the parts it may import besides itself
MAY_IMPORT = {
    **dict.fromkeys(FOUNDATIONS, FOUNDATIONS),
    **dict.fromkeys(LOW - FOUNDATIONS, LOW),
    "interfaces": LOW,
    "decode": MIDDLE,
    "models": MIDDLE,
    "engine": MIDDLE | {"decode", "models"},
    "generate": MIDDLE | {"engine"},
    "pixels": ON_DISK,
    "compare": MIDDLE | {"engine", "generate", "report"},
    "analysis": MIDDLE | {"decode", "engine", "models", "report", "compare"},
    "bench": MIDDLE | {"decode", "engine", "models"},
    "quality": ON_DISK | {"report"},
    "report": ON_DISK,
    "slurm": ON_DISK,
    "workers": ON_DISK,
}
NO_TORCH = ON_DISK | {"report", "slurm", "workers", "generate", "pixels"}
TORCH = {"torch", "transformers", "safetensors", "tokenizers"}
KNOWS_TRANSFORMERS = {"models", "kv_cache", "quality"}  # the last: CLIP, as a measure
COMMAND_LINE = {"typer", "rich", "click", "sjdvp_cli"}
FILES = sorted(LIBRARY.rglob("*.py"))


def part(file: Path) -> str:
    return file.relative_to(LIBRARY).parts[0].removesuffix(".py")


class Runtime(ast.NodeTransformer):
    """Drop what only a type checker sees: a name in an annotation is no dependency."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        type_checking = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if type_checking else self.generic_visit(node)


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(Runtime().visit(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def broken_rules(file: Path) -> list[str]:
    """Return each import of a file that the rules forbid."""
    mine, names = part(file), imports(file)
    if mine not in MAY_IMPORT:
        return [f"{file}: a new part of the library; say in MAY_IMPORT what it may import"]
    known = {part(f) for f in FILES}
    ours = [name.split(".") for name in names if name.split(".")[0] == "sjdvp"]
    inside = {p[1] if len(p) > 1 and p[1] in known else "__init__" for p in ours}
    forbidden = inside - MAY_IMPORT[mine] - {mine, "__init__"}
    outside = {name.split(".")[0] for name in names}
    forbidden |= outside & COMMAND_LINE
    if mine in NO_TORCH:
        forbidden |= outside & TORCH
    if mine not in KNOWS_TRANSFORMERS:
        forbidden |= outside & {"transformers"}
    return [f"{file.relative_to(LIBRARY)} must not import {name}" for name in sorted(forbidden)]


def test_imports_run_downwards() -> None:
    assert [rule for file in FILES for rule in broken_rules(file)] == []


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py is found in a checkout and is missing in the wheel."""
    assert not {file.parent for file in FILES if not (file.parent / "__init__.py").exists()}
    assert not {part(f) for f in FILES} & set(sys.stdlib_module_names), "shadows a module"


@pytest.mark.process
def test_generate_imports_no_torch_before_it_opens_a_model() -> None:
    code = "import sys, sjdvp.generate, sjdvp.runs.export; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
