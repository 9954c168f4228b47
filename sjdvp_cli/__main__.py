"""The program `sjdvp`, also as `python -m sjdvp_cli`."""

import signal


def start() -> None:
    """Run the process's own command line; Ctrl-C ends it at once, and without a traceback, while its modules are read."""
    answer = signal.getsignal(signal.SIGINT)
    if answer is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sjdvp_cli.app import main

    signal.signal(signal.SIGINT, answer)
    main()


if __name__ == "__main__":
    start()
