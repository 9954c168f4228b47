"""Write the reviewed files anew, from the same runs as the tests; check the difference before
committing it.
"""

import shutil
import tempfile
from pathlib import Path

from tests.report.synthetic import GOLDEN, HOSTILE, make_run, written_report

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        names = ("ar", "jacobi", "sjd", "same-noise")
        runs = [
            make_run(Path(folder) / n, n, 12, failed=(0,) if n == "sjd" else (), texts=HOSTILE)
            for n in names
        ]
        for path in written_report(runs, Path(folder) / "report.html"):
            if path.suffix != ".html":
                shutil.copy(path, GOLDEN / path.name)
