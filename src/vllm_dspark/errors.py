"""The exceptions this package raises; all derive from :class:`DSparkError`.

Each class also derives from the builtin that a caller would expect, so that
``except ValueError`` keeps working.  Messages are one sentence that says what
is wrong and, where known, what to do.
"""


class DSparkError(Exception):
    """Base class of every error that this package raises on purpose."""


class SettingsError(DSparkError, ValueError):
    """A setting or an environment variable has a value that cannot be used."""


class UnsupportedError(DSparkError, ValueError):
    """A model, request or vLLM option asks for something not implemented."""


class CheckpointError(DSparkError, ValueError):
    """A checkpoint is missing, incomplete, damaged or of the wrong kind."""


class ShapeError(DSparkError, ValueError):
    """An array has another shape or dtype than the function takes."""


class MemoryBudgetError(DSparkError, ValueError):
    """What was asked for does not fit in the memory that may be used."""


class StateError(DSparkError, RuntimeError):
    """An object was used in an order that it does not allow."""


class SetupError(DSparkError, RuntimeError):
    """The installation or the machine lacks something that is needed."""
