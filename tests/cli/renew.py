"""Write the help texts again; read the difference before committing it.

Run: COLUMNS=100 python -m tests.cli.renew
"""

import subprocess
import sys

from sjdvp_cli.app import COMMANDS
from tests.cli.conftest import GOLDEN, own_help, settings_of

if __name__ == "__main__":
    for name in ("sjdvp", *COMMANDS):
        words = [] if name == "sjdvp" else [name]
        line = [sys.executable, "-m", "sjdvp_cli", *words, "--help"]
        text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        (GOLDEN / f"{name}.txt").write_text(own_help(text), encoding="utf-8")
        if name == "generate":
            (GOLDEN / "settings.txt").write_text(settings_of(text), encoding="utf-8")
