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
        self._told: set[str] = set()

    @contextmanager
    def guarded(self) -> Generator[None]:
        """Round one of them: ends it at what the server does, and raises nothing of that."""
        try:
            with self._told_once(""):
                yield
        except (TransportUnavailable, BackendUnavailable):
            log.debug(self._missed)

    @contextmanager
    def one(self, name: str) -> Generator[None]:
        """One part of a round, which ends alone at what cannot be read: the others go on."""
        with self._told_once(name):
            yield

    @contextmanager
    def _told_once(self, name: str) -> Generator[None]:
        try:
            yield
        except TransportUnavailable:
            raise
        except TransportError as error:
            if name not in self._told:
                of = {"of": name} if name else {}
                log.error(self._missed, reason=str(error), **of)
            self._told.add(name)
        else:
            self._told.discard(name)
