"""What `penstock top` draws, cell by cell."""

from __future__ import annotations

import functools

import pytest
from rich.cells import cell_len

from penstock.cli.top import figures
from penstock.cli.top.controls import Controls
from penstock.cli.top.frame import HELP, Frame, Link, draw, plain
from penstock.cli.top.history import History, Picture
from penstock.testing.fake_clock import FakeClock
from tests.cli.looks import Seen, group, look, times

TARGET = "penstock://localhost:7420"
CONNECTED = Link("connected")


@functools.cache
def a_store() -> Picture:
    """Three looks, two seconds apart."""
    clock, history = FakeClock(), History()
    for step in range(3):
        picture = history.add(
            look(
                clock.monotonic(),
                {
                    "orders": Seen(
                        1_000_000 + step * step * 100, {"billing": group(lag=12_345, delivered=step * 2469, redelivered=7, in_flight=64),
                        "shipping": group(lag=0, delivered=step * 10)}, dead=3, bytes=340 * 1024 * 1024, publish=times(0, 90, 9, 1),
                        acks=times(0, 0, 0, 5), lag_s=4.25,
                    ),
                    "orders.dlq": Seen(3),
                    "audit.events.of.the.whole.company": Seen(20, {"archive": group(lag=20, members=0)}, bytes=2048, lag_s=7200),
                    "mails": Seen(0),
                },
                fsync=times(10, 80, 10),
                oldest_s={"orders": 86_400 * 3, "audit.events.of.the.whole.company": 7200.0},
                reasons={"orders": "ValueError: no such [bold]customer\x1b[2J"},
            )
        )  # fmt: skip
        clock.advance(2)
    return picture


def frame(
    width: int = 80, height: int = 24, link: Link = CONNECTED, controls: Controls | None = None, **options: bool
) -> Frame:
    return draw(TARGET, link, a_store(), controls or Controls(), width, height, every_s=2.0, **options)


def text(drawn: Frame) -> str:
    return "\n".join(line.plain.rstrip() for line in drawn.lines)


def golden(wanted: str) -> str:
    return wanted.strip("\n")


def test_a_usual_terminal() -> None:
    assert text(frame()) == golden(USUAL)


def test_a_small_one_leaves_out_what_matters_least() -> None:
    assert text(frame(44, 12)) == golden(SMALL)


def test_a_pipe_gets_everything() -> None:
    assert "\n".join(plain(TARGET, CONNECTED, a_store(), "name")) == golden(PIPED)


def test_a_reader_of_files_sees_topics_only() -> None:
    picture = History().add(look(0, {"orders": Seen(5, {"g": group()}, bytes=100)}, is_whole=False))
    assert "\n".join(plain("data", Link("folder"), picture, "lag")) == golden(FILES)


@pytest.mark.parametrize("width", [1, 2, 10, 21, 40, 79, 80, 132])
@pytest.mark.parametrize("height", [1, 2, 4, 6, 8, 24, 100])
def test_every_frame_fits(width: int, height: int) -> None:
    """However small the terminal is, and wherever the body is scrolled to."""
    for controls in (Controls(), Controls(first=1000), Controls(help=True), Controls(paused=True, sort="name")):
        for link in (CONNECTED, Link("away", 5.0, "x" * 500), Link("silent", 3.0)):
            drawn = frame(width, height, link, controls)
            assert len(drawn.lines) <= height
            assert max(cell_len(line.plain) for line in drawn.lines) <= width
            assert all("\n" not in line.plain for line in drawn.lines)
            assert drawn.lines[0].plain


def test_all_lines_can_be_scrolled_to() -> None:
    whole = [line.plain for line in frame(80, 100).lines][3:-1]
    seen: list[str] = []
    drawn = frame(80, 10)
    for first in range(drawn.last + 1):
        page = [line.plain for line in frame(80, 10, controls=Controls(first=first)).lines][3:-1]
        assert len(page) == drawn.page
        assert page == whole[first : first + drawn.page]
        seen += page
    assert {line for line in whole if line} <= set(seen)


def test_the_order_is_what_was_chosen() -> None:
    def order(sort: str) -> list[str]:
        return [line.split()[0] for line in plain(TARGET, CONNECTED, a_store(), sort)[4:7]]

    audit = "audit.events.of.the.whole.company"
    assert order("lag") == order("rate") == ["orders", audit, "mails"]
    assert order("bytes") == ["orders", audit, "mails"]
    assert order("name") == [audit, "mails", "orders"]


def test_the_server_is_away() -> None:
    away = Link("away", 75.0, f"{TARGET} cannot be reached: connection refused")
    first = frame(link=away).lines[0]
    assert first.plain == f"AWAY for 75s, trying again  {TARGET} cannot be reached: connect"
    assert frame(30, 10, away).lines[0].plain.startswith("AWAY for 75s, trying again")
    assert frame(link=Link("silent", 3.0)).lines[0].plain == f"no answer for 3.0s  {TARGET}"
    assert frame(link=Link("connected", lost=2)).lines[0].plain == f"penstock top  connected, was away 2 times  {TARGET}"
    assert "orders" in text(frame(link=away)), "what was known is still there"


def test_keys_say_what_they_do() -> None:
    assert text(frame(controls=Controls(paused=True))).splitlines()[-1].startswith("PAUSED  q quit")
    assert text(frame(height=16, controls=Controls(first=2))).splitlines()[-1].startswith("lines 3-14 of 18  q quit")
    assert text(frame(120, 50)).splitlines()[-1] == "q quit  s sort: lag  p pause  j/k scroll  ? help  every 2s"
    assert text(frame(height=30, controls=Controls(help=True))).splitlines()[3 : 3 + len(HELP)] == [line[:80] for line in HELP]


def test_what_was_written_by_others_moves_no_cursor() -> None:
    drawn = text(frame(132, 40))
    assert "\x1b" not in drawn
    assert r"ValueError: no such [bold]customer\x1b[2J" in drawn


def test_a_terminal_without_unicode_gets_ascii() -> None:
    drawn = frame(60, 30, controls=Controls(sort="rate"), ascii_only=True)
    assert text(drawn).isascii()
    assert "-#" in text(frame(80, 30, ascii_only=True)), "a trend"


def test_a_failed_store_says_so_first() -> None:
    picture = History().add(look(0, {}, failure="fsync failed: Input/output error"))
    lines = plain(TARGET, CONNECTED, picture, "lag")
    assert lines[1].startswith("takes no more writes: fsync failed: Input/output error")
    assert "  no topics" in lines


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "-"), (0, "0"), (999_999, "999,999"), (1_000_000, "1.00M"), (12_345_678, "12.3M"), (999_600_000, "1.00G"), (10**15, "1000T")],
)  # fmt: skip
def test_counts(number: int | None, shown: str) -> None:
    assert figures.count(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "-"), (0.0, "0"), (0.04, "0.0"), (9.94, "9.9"), (9.96, "10"), (999.4, "999"), (1234.0, "1.23k"), (56_789, "56.8k")]
)  # fmt: skip
def test_rates(number: float | None, shown: str) -> None:
    assert figures.rate(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (10_240, "10 KiB"), (1_048_000, "1023 KiB"), (1_048_575, "1.0 MiB"),
     (1 << 41, "2.0 TiB")]
)  # fmt: skip
def test_sizes(number: int, shown: str) -> None:
    assert figures.size(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (0.02, "0.0s"), (9.97, "10s"), (119.4, "119s"), (119.6, "2m"), (7199, "2h"), (86_400 * 2, "2d"),
     (1e9, "11574d")]
)  # fmt: skip
def test_ages(seconds: float | None, shown: str) -> None:
    assert figures.age(seconds) == shown


USUAL = r"""
penstock top  connected  penstock://localhost:7420
in 150/s  out 1.24k/s  lag 12,365  dead 3  messages 1.00M  340 MiB  topics 3

TOPIC                   MESSAGES     BYTES    IN/S         TREND   OUT/S  OLDEST
orders                     1.00M   340 MiB     150            ▃█   1.24k      3d
audit.events.of.the.w…        20   2.0 KiB       0                     0      2h
mails                          0       0 B       0                     -       -

GROUP                       LAG  BEHIND  IN FLIGHT  REDELIVERED  MEMBERS   OUT/S
orders/billing           12,345    4.2s         64            7        1   1.23k
audit.events.of.the.…        20      2h          0            0        0       0
orders/shipping               0      0s          0            0        1     5.0

DEAD LETTERS OF    COUNT  OLDEST  NEWEST REASON
orders                 3     90s  ValueError: no such [bold]customer\x1b[2J

MILLISECONDS                      COUNT     P50     P95     P99
fsync                               100    0.08    0.18    0.24
publish orders                      100    0.08    0.18    0.25
deliver to ack orders/billing         5    0.38    0.49    0.50
deliver to ack orders/shipping        5    0.38    0.49    0.50


q quit  s sort: lag  p pause  j/k scroll  ? help  every 2s
"""
SMALL = r"""
penstock top  connected  penstock://localhos
in 150/s  out 1.24k/s  lag 12,365  dead 3  m

TOPIC               MESSAGES    IN/S   OUT/S
orders                 1.00M     150   1.24k
audit.events.of.t…        20       0       0
mails                      0       0       -

GROUP                   LAG  BEHIND  MEMBERS
orders/billing       12,345    4.2s        1
audit.events.of.…        20      2h        0
lines 1-8 of 18  q quit  s sort: lag  p paus
"""
PIPED = r"""
penstock top  connected  penstock://localhost:7420
in 150/s  out 1.24k/s  lag 12,365  dead 3  messages 1.00M  340 MiB  topics 3

TOPIC                              MESSAGES     BYTES    IN/S   OUT/S  OLDEST
audit.events.of.the.whole.company        20   2.0 KiB       0       0      2h
mails                                     0       0 B       0       -       -
orders                                1.00M   340 MiB     150   1.24k      3d

GROUP                                           LAG  BEHIND  IN FLIGHT  REDELIVERED  MEMBERS   OUT/S
audit.events.of.the.whole.company/archive        20      2h          0            0        0       0
orders/billing                               12,345    4.2s         64            7        1   1.23k
orders/shipping                                   0      0s          0            0        1     5.0

DEAD LETTERS OF    COUNT  OLDEST  NEWEST REASON
orders                 3     90s  ValueError: no such [bold]customer\x1b[2J

MILLISECONDS                      COUNT     P50     P95     P99
fsync                               100    0.08    0.18    0.24
publish orders                      100    0.08    0.18    0.25
deliver to ack orders/billing         5    0.38    0.49    0.50
deliver to ack orders/shipping        5    0.38    0.49    0.50
"""
FILES = r"""
penstock top  files only  data  (groups, dead letters and times a server tells)
in -/s  messages 5  100 B  topics 1

TOPIC   MESSAGES     BYTES    IN/S  OLDEST
orders         5     100 B       -       -
"""
