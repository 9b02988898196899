"""
The console in a real browser, on a real server with tokens: what a person sees, is asked, and does.

One server and one browser for the whole file. Each test begins with an empty tab that knows no token, and ends with a look at
what the browser complained about, where its requests went, and whether any of the hostile texts has run.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import pytest

from tests.console.browser import Browser, missing
from tests.console.stage import evil, fail, staged

if TYPE_CHECKING:
    from collections.abc import Iterator

    import penstock
    from tests.cli.serving import Serving

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("console")]

NOTHING = "\N{EN DASH}"
Stage = tuple["Serving", "penstock.Store"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    browser = Browser(str(tmp_path_factory.mktemp("browser")))
    yield browser
    browser.close()


@pytest.fixture
def url(stage: Stage) -> str:
    return stage[0].address("http")


@pytest.fixture
def store(stage: Stage) -> penstock.Store:
    return stage[1]


@pytest.fixture
def topic(store: penstock.Store, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with three dead letters."""
    name: str = request.node.name.replace("_", "-")
    fail(store, name)
    return name


@pytest.fixture
def browser(chromium: Browser, url: str) -> Iterator[Browser]:
    # A page of the same origin that runs nothing: here the tab can forget.
    chromium.driver.get(f"{url}/healthz")
    chromium.run("sessionStorage.clear()")
    chromium.complaints(), chromium.hosts()
    yield chromium
    assert chromium.run("return window.pwned ?? null") is None
    assert chromium.run("return document.querySelectorAll('img, main script, dialog script').length") == 0
    # The browser itself tells of answers that are errors; nothing else may be told.
    assert [one for one in chromium.complaints() if "Failed to load resource" not in one] == []
    assert chromium.hosts() == {url.removeprefix("http://")}
    chromium.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def give_token(browser: Browser, token: str) -> None:
    browser.find("#token").send_keys(token)
    browser.click("#token-dialog button.main")


def enter(browser: Browser, url: str, view: str, token: str = "admin-token") -> None:
    """Come with a token, as somebody does who opens the page."""
    browser.driver.get(f"{url}/console#/{view}")
    give_token(browser, token)
    browser.until(lambda: "version" in browser.text("#state") or "right to read" in browser.text("#state"))


def row_of(browser: Browser, name: str) -> list[str]:
    found: list[str] = browser.until(lambda: [row for row in browser.rows() if row[0] == name])[0]
    return found


def go_to(browser: Browser, view: str) -> None:
    """Choose a view, and wait until it is not the one before any more."""
    browser.click(f"nav a[href='#/{view}']")
    browser.until(lambda: browser.run("return document.querySelector('nav a[aria-current=page]').hash") == f"#/{view}")


def ids(browser: Browser) -> list[str]:
    """The dead letters that are listed."""
    return [row[1] for row in browser.rows()]


def test_the_page_asks_for_the_token_and_keeps_it_in_the_tab_only(browser: Browser, url: str) -> None:
    browser.driver.get(f"{url}/")
    assert browser.find("#token-dialog").is_displayed()
    assert browser.driver.current_url == f"{url}/console"
    assert browser.find("#token").get_attribute("type") == "password"
    assert browser.rows() == []
    give_token(browser, "wrong-token")
    browser.until(lambda: "not valid" in browser.text("#token-reason"))
    give_token(browser, "admin-token")
    assert row_of(browser, "payments")[1:4] == ["120", browser.rows()[-1][2], "1"]
    assert browser.run("return Object.values(sessionStorage)") == ["admin-token"]
    assert browser.run("return localStorage.length + document.cookie.length") == 0
    assert "admin-token" not in browser.driver.page_source
    browser.click("#forget-token")
    assert browser.find("#token-dialog").is_displayed()
    assert browser.run("return sessionStorage.length") == 0
    assert browser.rows() == []
    browser.click("#token-dialog button", "Cancel")
    browser.until(lambda: "No valid token" in browser.text("#state"))
    browser.click("#give-token")
    give_token(browser, "admin-token")
    row_of(browser, "payments")


def test_topics_groups_and_the_server_are_shown_and_follow_what_happens(
    browser: Browser, url: str, store: penstock.Store, stage: Stage
) -> None:
    enter(browser, url, "topics")
    before = int(row_of(browser, "orders")[1])
    browser.run("window.sameRow = document.querySelector('#view tbody tr')")
    store.publish_many("orders", [b"more"] * 500, partition=1)
    browser.until(lambda: int(row_of(browser, "orders")[1]) == before + 500)
    assert browser.run("return window.sameRow.isConnected"), "rows stay, so that focus does"
    browser.until(lambda: row_of(browser, "orders")[4] not in (NOTHING, ""))
    browser.until(lambda: len(browser.run("return document.querySelector('.sparkline .in').points")) > 0)
    browser.click("nav a", "Groups")
    group = row_of(browser, "billing")
    assert group[1] == "orders"
    assert "0: 3" in group[2]
    assert (group[3], group[5], group[8], group[9]) == (
        f"{store.stats().topics['orders'].groups['billing'].lag:,}",
        "0",
        "3",
        "0",
    )
    browser.click("nav a", "Server")
    facts = browser.until(lambda: "ready" in browser.text("#view dl") and browser.text("#view dl"))
    assert stage[0].said.splitlines()[0].rpartition(" ")[2] in facts, "the path of the store"
    for name in ("fsync", "publish orders"):
        times = row_of(browser, name)
        assert all(one.endswith(("µs", "ms", " s")) for one in times[1:4]), times
    assert browser.run("return document.title") == f"Server {NOTHING} Penstock"


def test_a_page_that_nobody_sees_asks_for_nothing(browser: Browser, url: str) -> None:
    enter(browser, url, "topics")
    browser.run(
        "const plain = fetch; window.asked = 0; window.fetch = (...all) => { window.asked += 1; return plain(...all); }"
    )
    see = """Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
        return window.asked;"""
    count = browser.run(see, True)
    # Longer than its beat.
    browser.driver.execute_async_script("setTimeout(arguments[0], 2600)")
    assert browser.run("return window.asked") == count
    assert browser.run(see, False) == count + 1, "at once"


def test_an_answer_that_comes_when_the_token_is_forgotten_is_not_shown(browser: Browser, url: str) -> None:
    enter(browser, url, "topics")
    row_of(browser, "payments")
    browser.run(
        """const plain = fetch;
        window.fetch = async (...all) => {
          const answer = await plain(...all);
          await new Promise((go) => { window.release = () => { window.fetch = plain; go(); }; });
          return answer;
        };"""
    )
    browser.until(lambda: browser.run("return window.release !== undefined"))
    browser.click("#forget-token")
    assert browser.rows() == []
    browser.run("window.release()")
    browser.find("#token-dialog")  # behind that answer it asks anew
    assert browser.rows() == []


def test_a_hostile_dead_letter_is_text_and_is_replayed_after_a_question(
    browser: Browser, url: str, store: penstock.Store, topic: str
) -> None:
    enter(browser, url, f"dead-letters/{topic}")
    browser.until(lambda: ids(browser)[:1] == ["0"])
    assert browser.rows()[0][2] == evil("reason")
    assert browser.rows()[2][7] == r"user-3\u{202e}nimda", "what turns text round is told"
    browser.click("tbody button.link", "0")
    browser.find("#message-dialog")
    assert browser.text("#value") == evil("value")
    dialog = browser.text("#message-body")
    for where in ("key", "name", "header", "reason"):
        assert evil(where) in dialog
    browser.click("#message-dialog input[value=Hex]")
    assert browser.text("#value").startswith("00000000  3c 69 6d 67 20 73 72 63  3d 78 20 6f 6e 65 72 72  <img src=x onerr")
    browser.click("#message-dialog button", "Replay")
    assert browser.find("#confirm-dialog").accessible_name == "Replay dead letter 0?"
    browser.click("#confirm-dialog button", "Cancel")
    assert len(store.dead_letters(topic)) == 3
    browser.click("#message-dialog button", "Replay")
    browser.click("#confirm-yes")
    browser.until(lambda: f"1 dead letter was sent back to {topic}." in browser.text("#told"))
    browser.until(lambda: ids(browser) == ["1", "2"])
    assert len(store.dead_letters(topic)) == 2
    (*_, last) = store.read(topic, 0)
    assert (last.value, last.key) == (evil("value").encode(), evil("key").encode())


def test_json_stays_as_it_is_and_those_that_fit_a_filter_are_discarded(
    browser: Browser, url: str, store: penstock.Store, topic: str
) -> None:
    enter(browser, url, f"dead-letters/{topic}")
    browser.click("tbody button.link", "1")
    browser.until(lambda: json.loads(browser.text("#value"))["note"] == "late")
    assert '"order": 12345678901234567890,\n' in browser.text("#value"), "no number is rounded"
    browser.click("#message-dialog button", "Close")
    browser.click("summary")
    browser.find("#reason").send_keys("timed out")
    browser.click("form button.main", "Use the filter")
    browser.until(lambda: ids(browser) == ["2"])
    browser.click("button", "Discard all that fit the filter")
    browser.until(lambda: "timed out" in browser.text("#confirm-text"))
    browser.click("#confirm-yes")
    browser.until(lambda: "1 dead letter was thrown away." in browser.text("#told"))
    browser.click("form button", "No filter")
    browser.until(lambda: ids(browser) == ["0", "1"])
    browser.click("tbody input")
    browser.click("button", "Discard chosen")
    browser.click("#confirm-dialog button", "Cancel")
    assert len(store.dead_letters(topic)) == 2


def test_what_comes_while_a_question_is_open_is_not_meant(
    browser: Browser, url: str, store: penstock.Store, topic: str
) -> None:
    enter(browser, url, f"dead-letters/{topic}")
    browser.until(lambda: len(ids(browser)) == 3)
    browser.click("button", "Replay all")
    browser.find("#confirm-dialog")
    store.publish(topic, b"late", partition=0)
    with store.subscribe(topic, "billing") as consumer:
        message = consumer.get(30)
        assert message is not None
        message.reject("too late")
    browser.until(lambda: len(store.dead_letters(topic)) == 4)
    browser.until(lambda: ids(browser) == ["0", "1", "2", "3"])
    browser.click("#confirm-yes")
    browser.until(lambda: "3 dead letters were sent back" in browser.text("#told"))
    browser.until(lambda: ids(browser) == ["3"])
    assert [one.value for one in store.dead_letters(topic).list()] == [b"late"]


def test_a_token_without_the_right_is_told_so(browser: Browser, url: str, store: penstock.Store) -> None:
    enter(browser, url, "dead-letters", "reader-token")
    count = len(store.dead_letters("orders"))
    browser.click("button", "Replay all")
    browser.click("#confirm-yes")
    browser.until(lambda: "no admin right on topic 'orders.dlq'" in browser.find("#alert").text)
    assert len(store.dead_letters("orders")) == count
    browser.click("nav a", "Server")
    browser.until(lambda: "needs the right admin on all topics" in browser.text("#view dl"))
    browser.click("#forget-token")
    give_token(browser, "publisher-token")
    browser.until(lambda: "the right to read no topic" in browser.text("#state"))


def test_messages_are_found_by_offset_and_by_time(browser: Browser, url: str, store: penstock.Store) -> None:
    enter(browser, url, "messages/payments")
    browser.until(lambda: [row[0] for row in browser.rows()] == [str(at) for at in range(70, 120)])
    browser.click("#view button", "Older")
    browser.until(lambda: browser.rows()[0][0] == "20")
    browser.find("#offset").send_keys("3")
    browser.click("form button.main", "Show")
    browser.until(lambda: browser.rows()[0][0] == "3")
    browser.click("tbody button.link", "3")
    browser.until(lambda: browser.text("#value") == '{\n  "amount": 3\n}')
    browser.click("#message-dialog button", "Close")
    soon = (dt.datetime.now() + dt.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
    browser.run("document.querySelector('#offset').value = ''; document.querySelector('#time').value = arguments[0]", soon)
    browser.click("form button.main", "Show")
    browser.until(lambda: "No messages from there on" in browser.find("#view").text)
    browser.find("#offset").send_keys("5000")
    browser.click("form button.main", "Show")
    browser.until(lambda: "OFFSET_OUT_OF_RANGE" in browser.find("#alert").text)


def test_it_fits_a_telephone_by_day_and_night_and_everything_has_a_name(browser: Browser, url: str) -> None:
    browser.size(360, 700)
    enter(browser, url, "server")
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        back = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in back.strip("rgb()").split(",")) < 200) is (scheme == "dark")
    for view in ("topics", "groups", "dead-letters", "messages", "server"):
        go_to(browser, view)
        browser.until(browser.rows)
        assert browser.run("return document.documentElement.scrollWidth") <= 360, view
        assert browser.run("return document.activeElement.tagName") == "H1", "who cannot see is where the new view begins"
        controls = "#view input, #view select, #view button, #view .scroll, header button, nav a"
        named = browser.driver.find_elements("css selector", controls)
        assert [one.get_attribute("outerHTML") for one in named if one.is_displayed() and not one.accessible_name] == []
        unnamed = "#view table:not(:has(caption)), #view thead th:not([scope=col])"
        assert browser.run("return document.querySelectorAll(arguments[0]).length", unnamed) == 0
        assert browser.run("return document.querySelectorAll('nav a[aria-current=page]').length") == 1
