"""`sjdvp` with a generator that needs no model, and that pauses after each image while the file
HOLD exists.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import sjdvp_cli.generate
from sjdvp.jobs import ImageResult, JobQueue
from sjdvp_cli.app import main
from tests.fake_generator import FakeGenerator


class Held(FakeGenerator):
    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        for image in super().generate(source):
            yield image
            while Path(os.environ["HOLD"]).exists():
                time.sleep(0.05)


if __name__ == "__main__":
    sjdvp_cli.generate.open_generator = Held(batch=1).open
    sjdvp_cli.generate.check_model = lambda config: None
    main()
