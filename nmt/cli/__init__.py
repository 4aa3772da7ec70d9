"""The command line: parse, call, report. One file a command; torch is imported by the commands that use it."""

import os
import sys
import traceback
from contextlib import suppress
from typing import Any

import typer

from nmt.cli.app import app
from nmt.errors import Interrupted, NmtError

# click's class: the package's own, or the copy that newer versions of typer carry.
_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_LONGEST_MESSAGE = 10_000


def main() -> None:
    """Run the command line and exit with the documented code.

    0 done, 1 unexpected, 2 usage or config, 3 data, 4 I/O, 5 model, 6 diverged, 129, 130 and 143 signals.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us, who wants nothing of it
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    debug = "--debug" in sys.argv
    sys.exit(_run([argument for argument in sys.argv[1:] if argument != "--debug"], debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = app(arguments, prog_name="nmt", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):  # typer turns the first into the second
        # The reader has seen enough. Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _ClickException as error:
        error.show()
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (NmtError, Interrupted) as error:
        return _report(str(error), error.exit_code, debug)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _report(f"Reading or writing failed: {error.strerror or error}{where}.", 4, debug)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        return _report(
            f"The package {package} is missing in this Python; pip install . brings all there are.", 2, debug
        )
    except Exception as error:
        name = type(error).__name__
        return _report(f"Unexpected {name}: {error}\nThis is a fault of nmt; --debug shows where it is.", 1, debug)


def _report(message: str, code: int, debug: bool) -> int:
    if not message:  # another rank of the run told it
        return code
    with suppress(OSError):  # a full or closed stderr must not change the exit code
        if debug:
            traceback.print_exc()
        print(f"nmt: {_printable(message[:_LONGEST_MESSAGE])}", file=sys.stderr, flush=True)
    return code


def _printable(text: str) -> str:
    """A name that a file chose must not drive the terminal: what is no printable character is shown as its escape."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
