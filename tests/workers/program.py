"""`sjdvp` with a generator that needs no model, in worker processes too: `python -m
tests.workers.program`.
"""

import sjdvp_cli.generate
from sjdvp_cli.app import main
from tests.workers.generators import open_quick

if __name__ == "__main__":
    sjdvp_cli.generate.open_generator = open_quick
    sjdvp_cli.generate.check_model = lambda config: None
    main()
