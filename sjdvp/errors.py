"""The errors a user can meet: one sentence on what is wrong, and a hint on what to do.

The command line prints a `SjdvpError` on stderr and returns its `exit_code`. Any other exception is
a bug and keeps its traceback.
"""


class SjdvpError(Exception):
    """Base of every error that a user can meet; `hint` is printed after the message."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SjdvpError):
    """A value of a flag, profile or variable is wrong; `key` is the dotted setting, if any."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", key: str = "") -> None:
        super().__init__(message, hint)
        self.key = key


class PromptError(SjdvpError):
    """A prompt file cannot be read; the message lists its problems with their lines."""

    exit_code = 2


class FolderError(SjdvpError):
    """A run folder does not fit the request: other settings or prompts, or it is in use."""

    exit_code = 2


class BusyError(FolderError):
    """Another process is generating the same images into the folder."""


class WeightsError(SjdvpError):
    """Weights are missing, of another model family, or of another shape."""

    exit_code = 2


class NotCachedError(WeightsError):
    """Weights are on the hub, and only the local cache was searched."""


class DeviceError(SjdvpError):
    """A device does not exist or lacks what the run needs."""

    exit_code = 2


class SlurmError(SjdvpError):
    """SLURM is missing, does not answer or refuses, or its scripts cannot be used."""

    exit_code = 2


class StorageError(SjdvpError):
    """The disk refused a write: no file is half-written, and the run can be resumed."""

    exit_code = 1


class ImageError(SjdvpError):
    """One image failed, such as by non-finite logits; the others are still generated."""

    exit_code = 1


class Interrupted(SjdvpError):
    """A signal stopped the run; its state is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted", "run the same command to resume")
        self.signum = signum
        self.exit_code = 128 + signum
