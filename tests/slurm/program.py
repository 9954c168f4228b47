"""`sjdvp` with a painter that needs no model, and that pauses after each image while the file HOLD exists."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import sjdvp_cli.generate
from sjdvp.jobs import JobSource, Picture
from sjdvp_cli.app import main
from tests.fake_painter import FakePainter


class Held(FakePainter):
    def paint(self, source: JobSource) -> Iterator[Picture]:
        for picture in super().paint(source):
            yield picture
            while Path(os.environ["HOLD"]).exists():
                time.sleep(0.05)


if __name__ == "__main__":
    sjdvp_cli.generate.open_painter = Held(batch=1).open
    main()
