"""The errors a user can meet, each with the exit code of its kind.

Messages are one clear paragraph: what is wrong, where (file, line or key) and the way out. The command line
prints the message alone; `--debug` adds the traceback. An empty message says that another rank of the run told it.
"""


class NmtError(Exception):
    """Base of all errors with a message meant for the user."""

    exit_code = 1


class ConfigError(NmtError):
    """A wrong option, key or value; a run folder that cannot be used as asked."""

    exit_code = 2


class DataError(NmtError):
    """Text that cannot be used: missing corpus, unequal line counts, nothing left after cleaning."""

    exit_code = 3


class StorageError(NmtError):
    """Reading or writing failed: disk full, permission denied."""

    exit_code = 4


class BundleError(NmtError):
    """A model that is missing, damaged, or not what its config says."""

    exit_code = 5


class DivergedError(NmtError):
    """Training produced NaN or infinity, a hopeless loss, or ranks whose weights differ."""

    exit_code = 6


class RankError(NmtError):
    """Another process of the run ended, hangs or cannot be reached."""


class Interrupted(BaseException):
    """A signal asked the program to stop, and all that was to be saved is saved. Exit code 128 + signal."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
