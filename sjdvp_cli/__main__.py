"""The program `sjdvp`, also as `python -m sjdvp_cli`."""

import signal


def start() -> None:
    """Run the command line; during the imports, Ctrl-C ends the process without a traceback."""
    answer = signal.getsignal(signal.SIGINT)
    if answer is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sjdvp_cli.app import main

    signal.signal(signal.SIGINT, answer)
    main()


if __name__ == "__main__":
    start()
