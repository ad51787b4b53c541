"""The command `regard`, and python -m regard."""

import signal
import sys


def main() -> int:
    """Run the command line and return its exit code. Ctrl-C while its modules are imported ends the process without a traceback."""
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
