"""The one seam to the server: commands, scripts and blocking reads, each with a deadline.

Replies are raw (RESP 2, bytes). Every error, the server's or redis-py's, becomes one of ours here.
Where a key that a command names is of another type than ``key_types`` says, it is emptied and told,
and the command is ``TransportUnavailable``: the next try finds the key well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Final, NoReturn

from headrace_contracts.key_types import type_of
from redis import exceptions

from headrace_transport.address import Access, Address
from headrace_transport.channel import Answer, Channel, ErrorReply
from headrace_transport.damaged import Damaged
from headrace_transport.errors import (
    AccessDenied,
    CommandFailed,
    TransportError,
    TransportUnavailable,
    WrongType,
)
from headrace_transport.options import WireOptions
from headrace_transport.replies import Argument, Reply, as_list, as_text
from headrace_transport.scripting import model_arguments, model_keys, script, shared_keys

_NO_SCRIPT = "NOSCRIPT"
_WRONG_TYPE = "WRONGTYPE"
_FOR_NOW = (
    *("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "OOM", "MISCONF"),
    *("NOREPLICAS", "BUSY", "UNBLOCKED", "UNKILLABLE", "ERR max number of clients"),
)
"""How error replies begin that time or an operator mends: the caller comes back later."""
_FRUITLESS_S: Final = 5.0
"""How long a key of another type that cannot be found is taken for one that others have emptied."""
_DENIED = ("NOPERM", "NOAUTH", "WRONGPASS")


class Server:
    """Connections to one server, for one event loop."""

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        access: Access | None = None,
        options: WireOptions,
    ) -> None:
        """Connects nothing yet. ``access`` in place of ``password`` says more than that.

        Raises ``ServerUnsuitable`` for a URL that names no server.
        """
        self._address = Address(url, access or Access(password=password), options)
        self.options = options
        self.damaged = Damaged()
        """What could not be read here, of every part."""
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(options.max_connections)
        self._readers: dict[str, tuple[asyncio.Lock, _Connection]] = {}
        self._closed = False
        self._failed_s = -inf
        self._fruitless: dict[str, tuple[float, float]] = {}
        """By error: when it first, and last, left nothing to empty, monotonic seconds."""

    @property
    def moves(self) -> bool:
        """Whether another server may be the primary at the next connection."""
        return self._address.moves

    @property
    def calm_s(self) -> float:
        """Seconds since the server was last unavailable to this process."""
        return time.monotonic() - self._failed_s

    # commands
    async def command(self, *arguments: Argument) -> Reply:
        """One command, one reply. Nothing is retried."""
        return (await self.pipeline([arguments]))[0]

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Several commands in one round trip; the first error among the replies is raised."""
        try:
            return self._checked(await self._exchange(commands))
        except WrongType as error:
            await self._empty(chain.from_iterable(commands), error)

    async def answers(self, commands: Sequence[Sequence[Argument]]) -> list[Reply | CommandFailed]:
        """Several commands in one round trip: the reply of each, or why the server refused it."""
        checked: list[Reply | CommandFailed] = []
        for answer in await self._exchange(commands):
            try:
                checked += self._checked([answer])
            except CommandFailed as error:
                checked.append(error)
        return checked

    async def run(self, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        """Runs a script, which is sent whole when the server does not know it (yet, or any more)."""
        return (await self.run_many(name, [(keys, arguments)]))[0]

    async def run_many(
        self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Reply]:
        """Runs a script for several (keys, arguments), in one round trip."""
        try:
            return await self._run(name, calls)
        except WrongType as error:
            await self._empty(chain.from_iterable(keys for keys, _ in calls), error)

    async def run_model(
        self, name: str, model: str, arguments: Sequence[Argument], *, others: Sequence[str] = ()
    ) -> Reply:
        """Runs a script that has the common prelude. ``others``: keys that it writes besides what
        all requests of the model share.
        """
        arguments = [*model_arguments(model, self.options), *arguments]
        try:
            return (await self._run(name, [(model_keys(model), arguments)]))[0]
        except WrongType as error:
            await self._empty([*shared_keys(model), *others], error)

    async def blocking(self, reader: str, *arguments: Argument, block_ms: int) -> Reply:
        """A command that may block, on a connection that belongs to ``reader`` alone."""
        if self._closed:
            raise TransportUnavailable("the wire is closed")
        if reader not in self._readers:
            self._readers[reader] = (asyncio.Lock(), _Connection())
        lock, connection = self._readers[reader]
        deadline_s = block_ms / 1000 + self.options.op_timeout_s
        async with lock:
            answers = await self._talk(connection, [arguments], deadline_s)
        try:
            return self._checked(answers)[0]
        except WrongType as error:
            await self._empty(arguments, error)

    async def close(self) -> None:
        """Closes every connection. Commands in flight fail as unavailable."""
        self._closed = True
        connections = [*self._idle, *(connection for _, connection in self._readers.values())]
        self._idle.clear()
        self._readers.clear()
        for connection in connections:
            if connection.channel is None:
                continue
            try:
                async with asyncio.timeout(self.options.op_timeout_s):
                    await connection.channel.close()
            except TimeoutError:
                connection.drop()
        await self._address.close()

    async def _exchange(self, commands: Sequence[Sequence[Argument]]) -> list[Answer]:
        if self._closed:
            raise TransportUnavailable("the wire is closed")
        if not commands:  # no reply would ever come
            return []
        if self._slots.locked():
            try:
                async with asyncio.timeout(self.options.op_timeout_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise TransportUnavailable("all connections to the server are busy") from None
        else:
            await self._slots.acquire()  # does not wait
        connection = self._idle.pop() if self._idle else _Connection()
        try:
            return await self._talk(connection, commands, self.options.op_timeout_s)
        finally:
            # a broken one was dropped, and connects again on its next use
            self._idle.append(connection)
            self._slots.release()

    async def _talk(
        self, connection: _Connection, commands: Sequence[Sequence[Argument]], deadline_s: float
    ) -> list[Answer]:
        """One exchange. Afterwards the connection is in step with the server, or dropped."""
        finished = False
        try:
            channel = connection.channel
            if channel is None or not channel.is_open:
                began_s = time.monotonic()
                async with asyncio.timeout(deadline_s):
                    handshake = await self._address.handshake()
                    channel = connection.channel = await Channel.open(handshake)
                deadline_s -= time.monotonic() - began_s
            answers = await channel.exchange(commands, deadline_s)
            finished = not self._address.moves or not any(map(_is_replica, answers))
        except exceptions.AuthenticationError as error:
            raise AccessDenied(f"the server refused the password: {error}") from error
        except exceptions.NoPermissionError as error:
            raise AccessDenied(str(error)) from error
        except (exceptions.RedisError, OSError) as error:
            self._failed_s = time.monotonic()
            # What broke this connection has most likely broken those that lie idle.
            for other in self._idle:
                other.drop()
            raise TransportUnavailable(str(error) or "no answer from the server in time") from error
        finally:
            if not finished or self._closed:
                connection.drop()
        if not finished:  # this server is a replica by now; the sentinels know the new primary
            for other in (*self._idle, *(reader for _, reader in self._readers.values())):
                other.drop()
        return answers

    async def _run(
        self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Reply]:
        if not calls:
            return []
        found = script(name)
        tails = [(len(keys), *keys, *arguments) for keys, arguments in calls]
        replies = await self._exchange([("EVALSHA", found.sha, *tail) for tail in tails])
        # safe to send again: NOSCRIPT says that nothing ran
        unknown = [i for i, each in enumerate(replies) if _code(each) == _NO_SCRIPT]
        if unknown:
            again = await self._exchange([("EVAL", found.text, *tails[i]) for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        return self._checked(replies)

    async def _empty(self, names: Iterable[Argument], error: WrongType) -> NoReturn:
        """Empties what is of another type among ``names``, the keys of a command and whatever else
        it says. Nothing may be left to empty: of many who meet the same key one is first. Raises
        ``error`` where that goes on, or where none is a key that is emptied: it is another key.
        """
        types = {name: kind for name in names if isinstance(name, str) and (kind := type_of(name))}
        if not types:
            raise error
        emptied = as_list(await self.run("empty", list(types), list(types.values())))
        for key, kind in zip(emptied[::2], emptied[1::2], strict=True):
            self.damaged.replaced(as_text(key), as_text(kind))
        if not emptied:
            now_s, text = time.monotonic(), str(error)
            first_s, last_s = self._fruitless.get(text, (now_s, now_s))
            if now_s - last_s > _FRUITLESS_S:
                first_s = now_s
            self._fruitless[text] = (first_s, now_s)
            if now_s - first_s > _FRUITLESS_S:
                raise error
        raise TransportUnavailable(f"a key was of another type: {error}") from error

    def _checked(self, answers: Sequence[Answer]) -> list[Reply]:
        checked: list[Reply] = []
        for answer in answers:
            if isinstance(answer, ErrorReply):
                error = _translated(answer)
                if isinstance(error, TransportUnavailable):
                    self._failed_s = time.monotonic()
                raise error from answer
            checked.append(answer)
        return checked


class _Connection:
    """A channel that is opened when it is needed."""

    def __init__(self) -> None:
        self.channel: Channel | None = None

    def drop(self) -> None:
        """Closes at once; the next exchange has to connect again."""
        if self.channel is not None:
            self.channel.drop()
            self.channel = None


def _is_replica(answer: Answer) -> bool:
    return _code(answer) == "READONLY"


def _code(answer: Answer) -> str:
    return answer.code if isinstance(answer, ErrorReply) else ""


def _translated(error: ErrorReply) -> TransportError:
    if error.code in _DENIED:
        return AccessDenied(error.text)
    if str(error).startswith(_FOR_NOW):
        return TransportUnavailable(error.text)
    if error.code == _WRONG_TYPE:
        return WrongType(error.text)
    return CommandFailed(error.text)
