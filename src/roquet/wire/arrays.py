"""numpy, loaded when it is first used: a server answers its first sends before it needs any, and is up sooner by that much.

    from roquet.wire.arrays import np

Types of arrays are written as texts (`Longs: TypeAlias = "npt.NDArray[np.int64]"`), layouts as `layout([...])`: both ask nothing of
numpy. After the first use everything is found where it would be in numpy itself, so that it costs nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

__all__ = ["layout", "load", "no_rows", "np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            self.__dict__.update(vars(numpy))
            return getattr(numpy, name)

    np = _Numpy()


def load() -> None:
    """For a thread of its own, so that nobody has to wait for numpy at its first use. Modules load once, whoever asks for them."""
    np.dtype  # noqa: B018 - to ask is to load


class _Layout:
    """Numpy takes what has a `dtype` for one."""

    def __init__(self, fields: Any) -> None:
        self.fields_given = fields

    @functools.cached_property
    def dtype(self) -> Any:
        return np.dtype(self.fields_given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dtype, name)


def layout(fields: Any) -> np.dtype[np.void]:
    """np.dtype(fields), made at its first use."""
    return cast("np.dtype[np.void]", _Layout(fields))


class _NoRows:
    def __init__(self, columns: int) -> None:
        self.columns = columns

    @functools.cached_property
    def real(self) -> Any:
        return np.zeros((0, self.columns), np.int64)

    def __len__(self) -> int:
        return 0

    def __getitem__(self, place: Any) -> Any:
        return self if isinstance(place, slice) else self.real[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self.real[place] = value

    def tolist(self) -> list[Any]:
        return []

    def __array__(self, *how: Any, **named: Any) -> Any:
        return self.real.__array__(*how, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def no_rows(columns: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A table of numbers without rows, which knows that it is empty before numpy is there."""
    return cast("np.ndarray[Any, np.dtype[np.int64]]", _NoRows(columns))
