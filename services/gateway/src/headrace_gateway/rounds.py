"""Jobs that go round for ever: a round that the server spoils is missed, and the next one comes.

Next: headrace_gateway.inference.watch
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headrace_kit.log import get_logger
from headrace_transport.errors import TransportError, TransportUnavailable

from headrace_gateway.errors import BackendUnavailable

log = get_logger(__name__)


class Rounds:
    """The rounds of one job. A server that is away is told by those who wait for it; one that
    answers what cannot be read is an operator's matter, and is told once until a round goes well.
    """

    def __init__(self, missed: str) -> None:
        """``missed``: the event that is logged."""
        self._missed = missed
        self._told = False

    @contextmanager
    def guarded(self) -> Generator[None]:
        """Round one of them: ends it at what the server does, and raises nothing of that."""
        try:
            yield
        except (TransportUnavailable, BackendUnavailable):
            log.debug(self._missed)
        except TransportError as error:
            if not self._told:
                log.error(self._missed, reason=str(error))
            self._told = True
        else:
            self._told = False
