# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Tenon's own. Elsewhere it raises what Python users expect: ValueError, TypeError,
BufferError, IndexError, MemoryError, TimeoutError."""


class TenonError(Exception):
    """Base class of the exceptions that only Tenon has."""


class OpError(TenonError):
    """Code of the user failed: a native function, a generator.

    Attributes
    ----------
    code : int
        What the function returned; 0 when it failed in another way.
    op : str or None
        The name of the function.
    """

    op: str | None = None

    def __init__(self, message: str = "", code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
