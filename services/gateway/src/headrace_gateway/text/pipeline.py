"""Everything textual of one model, built from its card: prompts in, text of choices out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, assert_never

from headrace_contracts.pb.queue_pb2 import ModelCard

from headrace_gateway.inference.calls import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from headrace_gateway.text.detokenizer import Detokenizer, decode
from headrace_gateway.text.errors import PromptRejected
from headrace_gateway.text.stops import StopFinder
from headrace_gateway.text.templates import ChatTemplate
from headrace_gateway.text.tokenizer import Tokenizer

_NO_FIELDS: Final[Mapping[str, object]] = {}


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)  # frozen, it would cost a call for each field, and there is one a token
class TextDelta:
    """Text that some tokens of a choice completed."""

    text: str
    stopped_at: int | None
    """Set when a stop string ended the choice: generated tokens to keep."""


class ChoiceText:
    """The text of one choice as its tokens arrive.

    Invariants
        the texts joined do not depend on how the tokens were cut into pushes
        nothing is held back after a final push or a stop
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        stop_token_ids: Collection[int],
        min_tokens: int,
        include_stop: bool,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._finder = StopFinder(stop, include=include_stop) if stop else None
        self._hidden_ends = frozenset[int](() if include_stop else stop_token_ids)
        self._min_tokens = min_tokens
        self.tokens = 0
        """Generated tokens taken, at most up to the stop."""
        self.stopped_at: int | None = None

    def push(self, token_ids: Sequence[int], *, final: bool = False) -> TextDelta:
        """Takes the next tokens. ``final``: the engine ended the choice with these (or before).

        A stop token that ends the choice gives no text, unless stops are to be included.
        After a stop every push is empty.
        """
        if self.stopped_at is not None:
            return TextDelta("", self.stopped_at)
        if final and token_ids and token_ids[-1] in self._hidden_ends:
            delta = self._text(token_ids[:-1], final=True)
            self.tokens += self.stopped_at is None
            return delta
        return self._text(token_ids, final=final)

    def _text(self, token_ids: Sequence[int], *, final: bool) -> TextDelta:
        if self._finder is None:
            self.tokens += len(token_ids)
            return TextDelta(self._detokenizer.push(token_ids, final=final), None)
        pieces: list[str] = []
        for token in token_ids:
            self.tokens += 1
            pieces.append(self._scan(self._finder, self._detokenizer.push((token,))))
            if self.stopped_at is not None:
                break
        if final and self.stopped_at is None:
            pieces.append(self._scan(self._finder, self._detokenizer.push((), final=True)))
            pieces.append(self._finder.flush())
        return TextDelta("".join(pieces), self.stopped_at)

    def _scan(self, finder: StopFinder, text: str) -> str:
        found = finder.push(text, counts=self.tokens > self._min_tokens)
        if found.stopped:
            self.stopped_at = self.tokens
        return found.text


class TextPipeline:
    """Template and tokenizer of one model. Immutable; safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        context_tokens: int | None,
        end_token_ids: Sequence[int],
        begin_token_id: int | None,
    ) -> None:
        """``context_tokens`` None: without a bound. ``begin_token_id`` is put before raw prompts;
        None where the model wants none.
        """
        self._context = context_tokens
        self._tokenizer = tokenizer
        self._template = template
        self._begin = begin_token_id
        self.end_token_ids = tuple(end_token_ids)
        self.vocabulary = tokenizer.vocabulary

    @classmethod
    def from_card(
        cls,
        card: ModelCard,
        files: Mapping[str, bytes],
        *,
        now: Callable[[], datetime] = _utc_now,
    ) -> TextPipeline:
        """Builds it from a card and its files by name. Takes a while: not for an event loop.

        Raises TokenizerRejected.
        """
        tokenizer = Tokenizer.from_files(files, vocabulary=card.vocabulary)
        template = None
        if card.chat_template:
            special = dict(card.special_tokens)
            template = ChatTemplate(card.chat_template, tokenizer, special_tokens=special, now=now)
        return cls(
            tokenizer,
            template,
            context_tokens=card.context_tokens or None,
            end_token_ids=card.end_token_ids,
            begin_token_id=card.begin_token_id if card.add_begin_token else None,
        )

    def prompt_ids(self, prompt: Prompt, fields: Mapping[str, object] = _NO_FIELDS) -> list[int]:
        """Token ids of a prompt; possibly none. ``fields`` are further names for the template.

        In a raw prompt control tokens are parsed; in messages they are characters.
        Raises PromptRejected; TextTooLong before a text is tokenized that is too long for the
        model by its bytes alone.
        """
        match prompt:
            case ChatPrompt(messages):
                if self._template is None:
                    raise PromptRejected(
                        "This model has no chat template; use /v1/completions.", param="messages"
                    )
                return self._template.prompt_ids(messages, fields, below=self._context)
            case TextPrompt(text):
                return self._raw(text)
            case TokenPrompt(ids):
                return self._checked(ids)
            case _:
                assert_never(prompt)

    def choice(
        self,
        *,
        stop: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> ChoiceText:
        """The text of one choice. ``stop_token_ids`` are those of the request record."""
        return ChoiceText(
            self._tokenizer,
            stop=stop,
            stop_token_ids=stop_token_ids,
            min_tokens=min_tokens,
            include_stop=include_stop,
        )

    def token_text(self, token: int) -> str:
        """One token as text, for logprobs; bytes that are no character alone are U+FFFD."""
        return self._tokenizer.token_text(token)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token, for logprobs."""
        return self._tokenizer.token_bytes(token)

    def encode_text(self, text: str) -> list[int]:
        """Tokens of plain text; what looks like a control token is characters."""
        return self._tokenizer.encode_text(text)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens."""
        if skip_special:
            return decode(self._tokenizer, token_ids)
        raw = b"".join(map(self._tokenizer.token_bytes, token_ids))
        return raw.decode("utf-8", "replace")

    def _raw(self, text: str) -> list[int]:
        ids = self._tokenizer.encode_with_control(text, below=self._context)
        # A caller who wrote the begin token does not get a second one.
        if self._begin is not None and ids[:1] != [self._begin]:
            ids.insert(0, self._begin)
        return ids

    def _checked(self, ids: Sequence[int]) -> list[int]:
        for i, token in enumerate(ids):
            if not 0 <= token < self.vocabulary:
                raise PromptRejected(
                    f"Token {i} of the prompt is {token}; the model's ids are 0 to "
                    f"{self.vocabulary - 1}.",
                    param="prompt",
                )
        return list(ids)
