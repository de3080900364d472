"""Talking to a model in the terminal: several turns, streamed, each answer can be cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx

from headrace_cli.endpoint import Endpoint, check, event, first_model, texts, understood
from headrace_cli.errors import CommandFailed


class Chat:
    """One conversation. ``turn`` adds to it."""

    def __init__(
        self,
        client: httpx.Client,
        model: str,
        *,
        system: str | None,
        max_tokens: int | None,
        temperature: float,
    ) -> None:
        self._client = client
        self._model = model
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._messages: list[dict[str, str]] = []
        if system:
            self._messages.append({"role": "system", "content": system})

    def turn(self, text: str, show: Callable[[str], None]) -> bool:
        """Sends a message and shows the answer as it comes. False: it was cancelled.

        Ctrl-C cancels the answer; what was shown of it stays in the conversation. Raises
        CommandFailed when the API refuses, the message being taken back then, and for what is no text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CommandFailed(f"The message is not text: {error}.") from error
        self._messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            for piece in self._answer():
                answer.append(piece)
                show(piece)
        except KeyboardInterrupt:
            show(" [cancelled]")
            return False
        except CommandFailed:
            if not answer:
                self._messages.pop()
            raise
        finally:
            if answer:
                self._messages.append({"role": "assistant", "content": "".join(answer)})
        return True

    def _answer(self) -> Iterator[str]:
        body: dict[str, object] = {
            "model": self._model,
            "messages": self._messages,
            "temperature": self._temperature,
            "stream": True,
        }
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        request_id = ""
        finished = False
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    response.read()
                    check(response)
                for line in response.iter_lines():
                    chunk = event(line)
                    if chunk is not None:
                        with understood(str(self._client.base_url)):
                            request_id = str(chunk["id"])
                            pieces = list(texts(chunk))
                        yield from pieces
            finished = True
        except httpx.TransportError as error:
            raise CommandFailed(f"The connection broke: {error}") from error
        finally:
            if request_id and not finished:
                # Leaving the stream cancels too, unless the stack keeps requests for a resume.
                with suppress(httpx.TransportError):
                    self._client.delete(f"/v1/requests/{request_id}")


def run(
    endpoint: Endpoint,
    *,
    model: str | None,
    message: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float,
    read: Callable[[str], str] = input,
) -> bool:
    """One message and its answer, or a conversation until the end of input. False: the one answer
    was cancelled.
    """

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    with endpoint.client() as client:
        chat = Chat(
            client,
            model or first_model(client),
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        if message is not None:
            whole = chat.turn(message, show)
            print()
            return whole
        print("Ctrl-C cancels an answer; Ctrl-D, or Ctrl-C at the prompt, leaves.")
        for line in _lines(read):
            try:
                chat.turn(line, show)
            except CommandFailed as error:
                print(f"[{error}]", end="")
            print()
    return True


def _lines(read: Callable[[str], str]) -> Iterator[str]:
    while True:
        try:
            line = read("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        except UnicodeDecodeError as error:
            raise CommandFailed(f"The input is not text: {error}.") from error
        if line:
            yield line
