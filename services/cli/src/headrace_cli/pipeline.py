"""Text in, text out, in this process: the engine as a library, with the gateway's text handling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_engine.api import Engine, EngineSettings, Sampling, Stream, all_closed, noting
from headrace_engine.errors import ModelRejected
from headrace_engine.loading import add_text_fields
from headrace_engine.state.outputs import SequenceUsage
from headrace_gateway.inference.calls import ChatPrompt, Message, TextPrompt
from headrace_gateway.text.errors import PromptRejected
from headrace_gateway.text.pipeline import ChoiceText, TextPipeline

Chat = Sequence[Message | Mapping[str, str]]
"""Messages, each with ``role`` and ``content``."""

DEFAULT_TOKENS: Final = 256
"""Generated at most where no sampling is given."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt gave."""

    text: str
    tokens: list[int]
    """With the stop token, if one ended it; up to the stop string, if one did."""
    finish: FinishReason
    usage: SequenceUsage


class Pipeline:
    """One model, from text to text. Close it, or use it as a context manager.

    A string is continued as it stands, with control tokens in it parsed; a chat goes through
    the model's template, where text is text. Any thread may call it.
    """

    def __init__(self, engine: Engine) -> None:
        """``engine`` is closed with the pipeline. Raises ``ModelRejected`` without a tokenizer."""
        if engine.tokenizer is None:
            raise ModelRejected(f"{engine.name}: there is no tokenizer to make text with")
        self.engine = engine
        self._files = engine.tokenizer
        card = ModelCard(
            version=WIRE_VERSION, model=engine.name, vocabulary=engine.shape.vocabulary
        )
        add_text_fields(card, self._files)
        self._text = TextPipeline.from_card(card, self._files.files)

    def __call__(
        self,
        prompts: Sequence[str | Chat],
        sampling: Sampling | None = None,
        *,
        stop: str | Sequence[str] = (),
    ) -> list[Answer]:
        """Runs all prompts together; answers come in the same order.

        ``sampling``: without it the model's defaults, and at most 256 tokens. The model's end
        tokens always stop. ``stop``: a string or several that end an answer, not shown. Raises
        ``PromptRejected`` for what cannot become tokens, and what ``Engine.infer`` raises.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a string, not a list of prompts")
        sampling = self._sampling(sampling)
        ids = [self._ids(i, prompt) for i, prompt in enumerate(prompts)]
        streams: list[Stream] = []
        with all_closed(streams):
            for i, prompt in enumerate(ids):
                with noting(i):
                    streams.append(self.engine.start(prompt, sampling))
            answers: list[Answer] = []
            for i, stream in enumerate(streams):
                if not stop:
                    stream.wait()  # nothing to look for on the way
                with noting(i):
                    answers.append(_answer(stream, self._choice(sampling, stop)))
            return answers

    def stream(
        self,
        prompt: str | Chat,
        sampling: Sampling | None = None,
        *,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """Text as it comes; joined it is that of the answer. Leaving early cancels."""
        sampling = self._sampling(sampling)
        choice = self._choice(sampling, stop)
        stream = self.engine.start(self._ids(0, prompt), sampling)
        try:
            for output in stream:
                delta = choice.push(output.tokens, final=output.finish is not None)
                if delta.text:
                    yield delta.text
                if delta.stopped_at is not None:
                    return
        finally:
            stream.close()

    def close(self) -> None:
        """Closes the engine."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sampling(self, given: Sampling | None) -> Sampling:
        if given is None:
            files = self._files
            given = Sampling(
                DEFAULT_TOKENS,
                temperature=1.0 if files.temperature is None else files.temperature,
                top_p=1.0 if files.top_p is None else files.top_p,
                top_k=0 if files.top_k is None else files.top_k,
            )
        ends = given.stop_token_ids | self.engine.end_token_ids
        return replace(given, stop_token_ids=ends)

    def _choice(self, sampling: Sampling, stop: str | Sequence[str]) -> ChoiceText:
        return self._text.choice(
            stop=[stop] if isinstance(stop, str) else stop,
            stop_token_ids=sampling.stop_token_ids,
            min_tokens=sampling.min_new_tokens,
        )

    def _ids(self, i: int, prompt: str | Chat) -> list[int]:
        try:
            if isinstance(prompt, str):
                return self._text.prompt_ids(TextPrompt(prompt))
            return self._text.prompt_ids(ChatPrompt([_message(message) for message in prompt]))
        except PromptRejected as refusal:
            refusal.add_note(f"prompt {i}")
            raise


def pipeline(model: str | None = None, settings: EngineSettings | None = None) -> Pipeline:
    """Loads a model for text. Takes and raises what ``Engine`` does."""
    engine = Engine(model, settings)
    try:
        return Pipeline(engine)
    except BaseException:
        engine.close()
        raise


def _message(message: Message | Mapping[str, str]) -> Message:
    if isinstance(message, Message):
        return message
    if set(message) != {"role", "content"}:
        raise PromptRejected(
            f"A message has role and content, not {', '.join(sorted(message)) or 'nothing'}.",
            param="messages",
        )
    return Message(message["role"], message["content"])


def _answer(stream: Stream, choice: ChoiceText) -> Answer:
    text: list[str] = []
    tokens: list[int] = []
    for output in stream:
        tokens += output.tokens
        text.append(choice.push(output.tokens, final=output.finish is not None).text)
        if choice.stopped_at is not None:
            stream.cancel()
        if output.finish is not None and output.usage is not None:
            if choice.stopped_at is None:
                return Answer("".join(text), tokens, output.finish, output.usage)
            kept = choice.stopped_at
            usage = output.usage._replace(completion_tokens=kept)
            return Answer("".join(text), tokens[:kept], FinishReason.STOP, usage)
    raise AssertionError("a stream ended without its end")
