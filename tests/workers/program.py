"""`sjdvp` with a painter that needs no model, in worker processes too: `python -m tests.workers.program`."""

import sjdvp_cli.generate
from sjdvp_cli.app import main
from tests.workers.painters import open_quick

if __name__ == "__main__":
    sjdvp_cli.generate.open_painter = open_quick
    main()
