"""What an operation did, so that two implementations can be compared: its result, or its exception."""

import io
import os
import warnings


def outcome(operation):
    """``(what, warnings)`` of a call without arguments; ``what`` is its result or its exception, as comparable values."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            what = "returned", described(operation())
        except Exception as error:
            what = "raised", *exception(error)
    return what, sorted(one.category.__name__ for one in warned)


def exception(error):
    """The class of an exception as the standard library names it, and its errno."""
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ in ("builtins", "io", "numpy.exceptions")]
    return kinds[0].__name__, getattr(error, "errno", None)


def described(value):
    """A result as values that compare equal where a program sees no difference."""
    import numpy as np

    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        fields = _fields(value.dtype)
        # Padding between fields has no values.
        data = [value[name].tobytes() for name in value.dtype.names] if value.dtype.names else value.tobytes()
        return kind, fields, value.shape, data
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(one) for one in value]
    if isinstance(value, (io.IOBase, os.PathLike)):
        return "file"
    return type(value).__name__, value


def _fields(dtype):
    return [(name, dtype.fields[name][0].str) for name in dtype.names] if dtype.names else dtype.str


def differences(cases):
    """Lines for the cases ``(name, expected, found)`` that differ."""
    return [f"{name}\n    expected {expected}\n    found    {found}" for name, expected, found in cases if expected != found]
