"""What goes wrong with servers of reward models."""

from paco_core.io.files import DataError


class ServingError(DataError):
    """A server cannot be started, reached or trusted; the text says which, why, and what to do."""
