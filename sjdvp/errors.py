"""The errors a user can meet. Each says what was asked, what was found, and (as `hint`) what to do.

The command line turns a `SjdvpError` into one line on stderr and `exit_code`; anything else is a bug and keeps its traceback.
"""


class SjdvpError(Exception):
    """Base of every error that is the user's business; `hint` is the advice printed after the message."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SjdvpError):
    """A flag, profile or environment value that cannot be used; `key` is the dotted setting at fault, where there is one."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", key: str = "") -> None:
        super().__init__(message, hint)
        self.key = key


class PromptError(SjdvpError):
    """A prompt file that cannot be read as it is; the message lists its problems, each with its line."""

    exit_code = 2


class FolderError(SjdvpError):
    """A run folder that does not fit the request (other settings, changed prompts, locked by another process)."""

    exit_code = 2


class BusyError(FolderError):
    """Another process draws into the folder what was asked of this one."""


class WeightsError(SjdvpError):
    """Weights that are absent, of another family, or not of the expected shape."""

    exit_code = 2


class DeviceError(SjdvpError):
    """A device that does not exist or does not have what the run needs."""

    exit_code = 2


class SlurmError(SjdvpError):
    """SLURM's commands are not there, do not answer, or refuse; or its scripts in the run folder cannot be used."""

    exit_code = 2


class StorageError(SjdvpError):
    """The disk refused a write during the run: nothing half-written is left, the run can be resumed."""

    exit_code = 1


class ImageError(SjdvpError):
    """One image that failed (non-finite logits or pixels, out of memory at batch 1); the others go on."""

    exit_code = 1


class Interrupted(SjdvpError):
    """The run was asked to stop by a signal; its state is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted", "run the same command to resume")
        self.signum = signum
        self.exit_code = 128 + signum
