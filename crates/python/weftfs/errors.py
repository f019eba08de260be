"""Exceptions. All are OSError, with errno, file name and, where one was involved, the server.

    >>> try:
    ...     fs.stat("/missing")
    ... except FileNotFoundError as error:
    ...     print(error.errno, error.filename, error.server)
    2 /missing meta0 at 127.0.0.1:7400
"""

import errno as _errno


class WeftError(OSError):
    """What a file system has refused or failed.

    Attributes: ``errno``, ``strerror``, ``filename``; ``server``, a name and an address, or None; ``operation``, what was tried.
    """

    server = None
    operation = None


class NotFoundError(WeftError, FileNotFoundError):
    """There is nothing with this name."""


class ExistsError(WeftError, FileExistsError):
    """Something has this name."""


class IsDirectoryError(WeftError, IsADirectoryError):
    """It is a directory."""


class NotDirectoryError(WeftError, NotADirectoryError):
    """It is no directory."""


class PermissionDeniedError(WeftError, PermissionError):
    """The user of this program may not do this, or its key is not accepted."""


class UnreachableError(WeftError, ConnectionError):
    """A server did not answer in time. It may have done what it was asked."""


class InterruptedOperationError(WeftError, InterruptedError):
    """A signal has ended it."""


class NoSpaceError(WeftError):
    """A disk is full, or a quota is used up."""


_CLASSES = {
    _errno.ENOENT: NotFoundError,
    _errno.EEXIST: ExistsError,
    _errno.EISDIR: IsDirectoryError,
    _errno.ENOTDIR: NotDirectoryError,
    _errno.EACCES: PermissionDeniedError,
    _errno.EPERM: PermissionDeniedError,
    _errno.ETIMEDOUT: UnreachableError,
    _errno.EHOSTDOWN: UnreachableError,
    _errno.EHOSTUNREACH: UnreachableError,
    _errno.EINTR: InterruptedOperationError,
    _errno.ENOSPC: NoSpaceError,
    _errno.EDQUOT: NoSpaceError,
}


def make(number, detail, path, server, operation):
    """The exception for an errno. Called by the native module."""
    text = f"{detail} (server {server})" if server else detail
    error = _CLASSES.get(number, WeftError)(number, text, path)
    error.server = server
    error.operation = operation
    return error


__all__ = [name for name in dir() if name.endswith("Error")]
