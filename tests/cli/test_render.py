"""Text for terminals."""

from __future__ import annotations

import io

from roquet.cli.progress import Bar
from roquet.cli.render import counted, duration, moment, printable, size, table


def test_a_table_puts_numbers_right_and_words_left_without_trailing_blanks() -> None:
    shown = table(["TOPIC", "LAG"], [["orders", 1234], ["a", 5]])
    assert shown == "TOPIC     LAG\norders  1,234\na           5"


def test_an_empty_table_says_so() -> None:
    assert table(["TOPIC"], []) == "(none)"


def test_sizes_and_durations_are_for_people() -> None:
    assert [size(0), size(1023), size(1536), size(5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [duration(0), duration(59), duration(3_661), duration(90_061)] == ["0s", "59s", "1h 1m", "1d 1h"]
    assert [counted(1, "message"), counted(2_000, "message")] == ["1 message", "2,000 messages"]


def test_a_time_that_means_never_is_a_dash_and_a_wild_one_stays_a_number() -> None:
    assert moment(0) == moment(-1) == "-"
    assert moment(10**18) == str(10**18)


def test_text_from_outside_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in printable("\x1b[2Jgone")
    assert "\n" not in table(["T"], [["a\nb"]]).splitlines()[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_draws_on_terminals_only() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with Bar("sending", 4, stream=stream) as bar:
            bar.add(2)
            bar.draw() if stream is terminal else None
    assert "[###############...............]  50%  2 of 4" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[K")
    assert pipe.getvalue() == ""


def test_a_bar_without_an_end_shows_the_count() -> None:
    bar = Bar("reading", None, stream=io.StringIO())
    bar.add(7)
    assert bar.line().startswith("reading  7  ")
