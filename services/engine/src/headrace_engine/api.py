"""The engine as a library: token ids in, token ids out, in this process.

Owner    shared; every method may be called from any thread
Writes   which core runs, and with which weights
Never    knows text, Redis or HTTP
Rules    offline.left-is-gone, offline.asleep-holds-nothing
Next     headrace_engine.api_running
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
from array import array
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Literal, Self

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_kit.clock import Clock, SystemClock
from numpy.typing import NDArray

from headrace_engine.api_errors import EngineAsleep, PromptTooLong, RequestFailed
from headrace_engine.api_running import RunningCore
from headrace_engine.api_stream import Output, Stream, TokenLogprobs
from headrace_engine.core import build_core
from headrace_engine.errors import (
    EngineDraining,
    EngineError,
    EngineFailed,
    ModelRejected,
    RequestRejected,
)
from headrace_engine.executor.base import ModelShape
from headrace_engine.loading import LoadedModel, Percent, load_model, name_of
from headrace_engine.loop.validate import check_request
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import EngineSettings, check_settings
from headrace_engine.state.mailbox import Monitor, NewestCell
from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import SequenceUsage
from headrace_engine.state.request import Request, RequestHandle, Sampling, Tokens

PromptIds = Sequence[int] | NDArray[np.integer]
"""Token ids of a prompt. They are copied."""

Tag = Literal["weights", "kv_cache"]
TAGS: Final[tuple[Tag, ...]] = ("weights", "kv_cache")
"""Parts of the engine that sleep and wake."""

_MAX_ID: Final = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Completion:
    """All that one prompt gave."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    """One for each token, if they were asked for."""
    finish: FinishReason
    usage: SequenceUsage


@dataclass(frozen=True, slots=True)
class _State:
    """What of the engine is awake.

    Invariants
        running implies model
    """

    running: RunningCore | None
    model: LoadedModel | None
    refusal: str = ""
    """Why no work is taken, where nothing runs."""
    finishing: RunningCore | None = None
    """Takes no more work, and still has some; or what a call that was interrupted left."""
    closed: bool = False


class Engine:
    """One model in this process, with its threads ``engine``, ``executor`` and ``signal``.

    Use it as a context manager, or call ``close``. Any number of instances and streams may be
    used at once, from threads and from event loops.
    """

    def __init__(
        self,
        model: str | None = None,
        settings: EngineSettings | None = None,
        *,
        load: Callable[[EngineSettings, Percent], LoadedModel] = load_model,
        clock: Clock | None = None,
    ) -> None:
        """Loads ``model`` (a folder, ``pkg://`` or ``hf://``; the settings' model when absent).

        ``load`` and ``clock`` are replaced by tests. Raises ``SettingsError`` for settings that
        contradict each other, ``ModelRejected`` for what cannot be loaded or does not fit.
        """
        settings = settings if settings is not None else EngineSettings()
        if model is not None:
            settings = settings.model_copy(update={"model": model})
        check_settings(settings)
        self._settings = settings
        self._load = load
        self._clock = clock if clock is not None else SystemClock()
        self._process = os.getpid()
        self._control = Monitor()
        """Held by whoever puts to sleep, wakes, updates or closes."""
        loaded = load(settings, _no_progress)
        self.name = loaded.name
        """The model's public name."""
        self.tokenizer: TokenizerFiles | None = loaded.tokenizer
        """Files of the tokenizer; None for an echo engine without one."""
        running = RunningCore(build_core(settings, loaded, self._clock))
        self._shape: NewestCell[ModelShape] = NewestCell(loaded.executor.shape)
        self._limits: NewestCell[SchedulerSettings] = NewestCell(running.core.settings)
        self._state: NewestCell[_State] = NewestCell(_State(running, loaded))
        # The threads are daemons; without this an exit would meet them deep in a library.
        atexit.register(self.close)

    # what it is

    @property
    def shape(self) -> ModelShape:
        """Vocabulary, architecture and weights version of the newest weights."""
        return self._shape.get()

    @property
    def context_tokens(self) -> int:
        """Tokens that a prompt and its output may have together."""
        return self._limits.get().session_tokens

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens at which the model ends a text: put them into ``Sampling.stop_token_ids``."""
        return frozenset() if self.tokenizer is None else frozenset(self.tokenizer.end_token_ids)

    def get_schedule_metrics(self) -> ScheduleMetrics:
        """The newest snapshot; totals count from the last start or wake. All zero while asleep."""
        running = self._state.get().running
        return running.core.loop.metrics.get() if running is not None else ScheduleMetrics()

    # work

    def create_instance(self) -> Instance:
        """A handle for one stream at a time. It costs nothing: the engine owns all state."""
        return Instance(self)

    def start(
        self,
        prompt_ids: PromptIds,
        sampling: Sampling,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Stream:
        """Begins a sequence and returns at once; its tokens wait in the stream.

        ``loop``: the event loop that will await them. Raises ``RequestRejected`` with the
        numbers, ``EngineAsleep``, ``EngineDraining`` once closed, ``EngineFailed`` once broken.
        """
        running = self._running()
        return self._push(running, self._checked(prompt_ids, sampling), loop)

    def infer(
        self, prompts: Sequence[PromptIds], sampling: Sampling | Sequence[Sampling]
    ) -> list[Completion]:
        """Runs all prompts together and returns their completions in the same order.

        ``sampling`` is for all, or one for each. If one fails the others are cancelled, and
        nothing runs any more when its error is raised; a note on it says which prompt it was.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts came with {len(each)} samplings")
        running = self._running()
        requests: list[Request] = []
        for i, (prompt, how) in enumerate(zip(prompts, each, strict=True)):
            with noting(i):
                requests.append(self._checked(prompt, how))
        streams: list[Stream] = []
        with all_closed(streams):
            # At once, so that the first pass has all of them to choose from.
            for i, request in enumerate(requests):
                with noting(i):
                    streams.append(self._push(running, request))
            return [_completed(i, stream) for i, stream in enumerate(streams)]

    # life

    def sleep(self, level: int = 1) -> None:
        """Finishes what runs, then frees memory. Meanwhile and afterwards new work is refused.

        Level 1 frees the cache and keeps the weights; level 2 frees both. Sleeping deeper is
        possible while asleep.
        """
        if level not in (1, 2):
            raise ValueError(f"level is {level}, not 1 or 2")
        self._check_process()
        with self._control:
            self._put_to_sleep(level)
            gc.collect()  # what was freed must not wait in a cycle

    def wakeup(self, tags: Collection[Tag] = TAGS) -> None:
        """Wakes parts: ``weights`` are read again, ``kv_cache`` begins empty and takes work.

        What is awake stays as it is. Raises ``EngineAsleep`` for a cache without weights,
        ``ModelRejected`` when the weights cannot be read any more; it stays asleep then.
        """
        unknown = sorted(set(tags) - set(TAGS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: the tags are {', '.join(TAGS)}")
        self._check_process()
        with self._control:
            state = self._checked_open()
            if state.model is None and "weights" in tags:
                loaded = self._load(self._settings, _no_progress)
                _check_alike(self._settings.model, self.shape, loaded.executor.shape)
                state = replace(state, model=loaded)
                self._state.put(state)
            if state.running is None and "kv_cache" in tags:
                if state.model is None:
                    raise EngineAsleep("the weights are asleep: wake them with the cache")
                self._run(state.model)

    def update_params(self, model: str) -> str:
        """Takes the weights of another path, of the same architecture, and returns their version.

        They are read beside the old ones, which serve until they are there. Then what runs is
        finished, new work being refused meanwhile, and an empty cache begins: nothing computed
        with old weights can be found. While the weights are asleep only the path is noted; it
        is read at ``wakeup``, and the version returned is that of before.

        Raises ``ModelRejected``, after which the old weights still serve; or, where the new ones
        were read but could not start, nothing does, as refusals say: wake it or update again.
        """
        self._check_process()
        with self._control:
            state = self._checked_open()
            settings = self._settings.model_copy(
                update={
                    "model": model,
                    "model_sha256": None,
                    "model_name": self._settings.model_name or name_of(self._settings.model),
                }
            )
            if state.model is None:
                self._settings = settings
                return self.shape.weights_version
            loaded = self._load(settings, _no_progress)
            _check_alike(model, state.model.executor.shape, loaded.executor.shape)
            self._settings = settings
            refusal = state.refusal or "the engine is taking new weights: try again"
            self._finish(state, _State(None, loaded, refusal))
            self._shape.put(loaded.executor.shape)
            if state.running is not None:
                # The old weights go before memory is measured for the new cache.
                del state
                gc.collect()
                try:
                    self._run(loaded)
                except Exception as error:
                    said = f"new weights were read and could not start ({error}): wake it, or update it"
                    self._state.put(_State(None, loaded, said))
                    raise
            return loaded.executor.shape.weights_version

    def close(self) -> None:
        """Ends everything: what still runs gets a terminal status. Safe to repeat."""
        if os.getpid() != self._process:
            return  # nothing of it runs here, and its locks may be held for ever
        state = self._state.get()
        for core in (state.running, state.finishing):
            if core is not None:
                core.core.door.close()  # ends also what a sleep or an update waits for
        with self._control:
            state = self._state.get()
            self._state.put(_State(None, None, "the engine is closed", closed=True))
            for core in (state.running, state.finishing):
                if core is not None:
                    core.stop(finish=False)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _put_to_sleep(self, level: int) -> None:
        state = self._checked_open()
        asleep = _State(None, state.model, f"the engine sleeps at level {level}: wake it first")
        self._finish(state, asleep)
        if level == 2:
            self._state.put(replace(asleep, model=None))

    def _finish(self, state: _State, after: _State) -> None:
        """From now on work is refused as ``after`` says; what runs is finished."""
        self._state.put(replace(after, finishing=state.running))
        if state.running is not None:
            state.running.stop(finish=True)
            self._state.put(after)
            if state.running.failure is not None:
                self._state.put(state)  # what broke stays broken until it is closed
                self._checked_open()

    def _run(self, model: LoadedModel) -> None:
        running = RunningCore(build_core(self._settings, model, self._clock))
        self._shape.put(model.executor.shape)
        self._limits.put(running.core.settings)
        self._state.put(_State(running, model))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineFailed(
                f"the engine runs in process {self._process}, and this is {os.getpid()}: none of its"
                " threads came along with the fork; make an engine after it"
            )

    def _checked_open(self) -> _State:
        state = self._state.get()
        if state.closed:
            raise _refused(state)
        if state.finishing is not None:
            # Whoever waited for it was interrupted: two cores may not use one executor.
            state.finishing.stop(finish=True)
            state = replace(state, finishing=None)
            self._state.put(state)
        if state.running is not None and state.running.failure is not None:
            raise EngineFailed(str(state.running.failure)) from state.running.failure
        return state

    def _running(self) -> RunningCore:
        self._check_process()
        state = self._state.get()
        if state.running is None:
            raise _refused(state)
        return state.running

    def _push(
        self, running: RunningCore, request: Request, loop: asyncio.AbstractEventLoop | None = None
    ) -> Stream:
        def named(handle: RequestHandle) -> Request:
            return replace(request, id=f"offline-{handle}", handle=handle)

        try:
            return running.push(named, loop)
        except EngineDraining:
            raise _refused(self._state.get()) from None

    def _checked(self, prompt_ids: PromptIds, sampling: Sampling) -> Request:
        """The request, without its handle; raises ``RequestRejected``."""
        vocabulary, limits = self.shape.vocabulary, self._limits.get()
        request = Request("", RequestHandle(0), _tokens(prompt_ids), sampling)
        try:
            check_request(request, limits, vocabulary)
        except RequestRejected as refusal:
            if refusal.code not in (Code.CONTEXT_LENGTH_EXCEEDED, Code.PROMPT_NEVER_FITS):
                raise
            raise PromptTooLong(
                refusal.code,
                str(refusal),
                prompt_tokens=len(request.prompt),
                limit_tokens=min(limits.session_tokens, limits.pool_tokens),
            ) from None
        return request


class Instance:
    """Runs one stream at a time. Make as many as there are readers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream: Stream | None = None

    def stream_infer(
        self, prompt_ids: PromptIds, sampling: Sampling
    ) -> Generator[Output, None, None]:
        """Outputs as they come; the last one has ``finish`` set. Begins at the first ``next``.

        Leaving early cancels the sequence, and waits until the engine holds nothing of it.
        Raises as ``Engine.start`` does, and ``RequestFailed`` or ``EngineFailed`` on the way.
        """
        stream = self._begin(prompt_ids, sampling, None)
        try:
            yield from stream
        finally:
            stream.close()
            self._stream = None

    async def async_stream_infer(
        self, prompt_ids: PromptIds, sampling: Sampling
    ) -> AsyncGenerator[Output, None]:
        """As ``stream_infer``, for an event loop. Cancelling the task cancels the sequence.

        After a ``break``, Python closes an async generator soon, not at once:
        ``contextlib.aclosing`` around it makes that certain.
        """
        stream = self._begin(prompt_ids, sampling, asyncio.get_running_loop())
        try:
            while not stream.told:
                yield await stream.take_async()
        finally:
            try:
                await stream.close_async()
            finally:
                self._stream = None

    def cancel(self) -> None:
        """Ends the stream that runs, if one does: its last output says CANCELLED. Any thread."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _begin(
        self, prompt_ids: PromptIds, sampling: Sampling, loop: asyncio.AbstractEventLoop | None
    ) -> Stream:
        if self._stream is not None:
            raise RuntimeError("this instance streams already; make another one")
        self._stream = self._engine.start(prompt_ids, sampling, loop=loop)
        return self._stream


def collect(stream: Stream) -> Completion:
    """Waits for the end of a stream that nothing was taken from, and takes all of it at once."""
    stream.wait()
    last = stream.take()
    if last.finish is None:
        stream.take()  # an error follows the tokens: raises it
    assert last.finish is not None
    assert last.usage is not None
    return Completion(last.tokens, last.logprobs, last.finish, last.usage)


@contextlib.contextmanager
def all_closed(streams: list[Stream]) -> Generator[None]:
    """Afterwards none of ``streams`` runs: all are cancelled, then each is waited for."""
    try:
        yield
    finally:
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.close()


@contextlib.contextmanager
def noting(i: int) -> Generator[None]:
    """An engine's error in the body gets a note that says which prompt it was about."""
    try:
        yield
    except EngineError as error:
        error.add_note(f"prompt {i}")
        raise


def _completed(i: int, stream: Stream) -> Completion:
    with noting(i):
        return collect(stream)


def _tokens(prompt_ids: PromptIds) -> Tokens:
    """A copy as the engine takes it; raises ``RequestRejected`` for what is no list of ids."""
    if isinstance(prompt_ids, list) and prompt_ids and not isinstance(prompt_ids[0], bool):
        # Half the time of numpy's own way, which looks at everything twice, and says what is wrong.
        with contextlib.suppress(TypeError, OverflowError):
            return np.frombuffer(array("i", prompt_ids), np.int32)
    try:
        given = np.asarray(prompt_ids)
    except ValueError:
        raise RequestRejected(Code.INVALID_REQUEST, "the prompt is not a list of tokens") from None
    if given.ndim != 1:
        raise RequestRejected(Code.INVALID_REQUEST, "the prompt is not a list of tokens")
    if not len(given):
        return np.zeros(0, np.int32)
    if given.dtype.kind not in "iu":
        raise RequestRejected(Code.INVALID_REQUEST, f"token ids are integers, not {given.dtype}")
    beyond = np.flatnonzero((given > _MAX_ID) | (given < -_MAX_ID))
    if len(beyond):
        at = int(beyond[0])
        raise RequestRejected(
            Code.INVALID_REQUEST, f"token {given[at]} at position {at} of the prompt is no token id"
        )
    return given.astype(np.int32)


def _check_alike(model: str, old: ModelShape, new: ModelShape) -> None:
    for what, was, now in (
        ("architecture", old.architecture, new.architecture),
        ("vocabulary", old.vocabulary, new.vocabulary),
        ("KV bytes a token", old.kv_bytes_per_token, new.kv_bytes_per_token),
        ("context", old.context_tokens, new.context_tokens),
    ):
        if was != now:
            raise ModelRejected(f"{model}: {what} is {now}; the engine runs {was}")


def _refused(state: _State) -> EngineError:
    if state.closed:
        return EngineDraining(state.refusal)
    return EngineAsleep(
        state.refusal or "the engine takes no more work: it is being closed, or has failed"
    )


def _no_progress(percent: int) -> None:
    del percent


__all__ = [
    "TAGS",
    "Completion",
    "Engine",
    "EngineAsleep",
    "EngineSettings",
    "Instance",
    "Output",
    "PromptTooLong",
    "RequestFailed",
    "Sampling",
    "Stream",
    "Tag",
    "TokenLogprobs",
    "all_closed",
    "collect",
    "noting",
]
