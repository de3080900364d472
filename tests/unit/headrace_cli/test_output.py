"""What serve prints, and where."""

from __future__ import annotations

import io

from headrace_cli.output import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_own_words_and_childrens_lines_go_apart() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err)
    console.say("ready http://x")
    console.note("waiting")
    console.child_line("engine", "hello")
    assert out.getvalue() == "ready http://x\n"
    assert err.getvalue() == "headrace  | waiting\nengine    | hello\n"


def test_prefixes_are_coloured_on_a_terminal_only() -> None:
    err = Terminal()
    Console(io.StringIO(), err).child_line("gateway-2", "hello")
    assert err.getvalue() == "\x1b[32mgateway-2 |\x1b[0m hello\n"


def test_quiet_leaves_childrens_lines_out() -> None:
    err = io.StringIO()
    console = Console(io.StringIO(), err, quiet=True)
    console.child_line("engine", "hello")
    console.note("engine ended")
    assert err.getvalue() == "headrace  | engine ended\n"


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_left_stops_nothing() -> None:
    console = Console(Closed(), Closed())
    console.say("ready")
    console.note("waiting")
    console.child_line("engine", "hello")
