"""A report is written, reaches everybody once, and what did not arrive is sent again and seen.

Nothing waits here: sleeping is an argument, and so is the clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from specwatch.cli.report_delivery import Means, delivered, section_of
from specwatch.config.loading import Config, parse
from specwatch.errors import ConfigError, DeliveryError, StoreError
from specwatch.report.deliveries import DeliveredReport, DeliveryMonitor, Reports
from specwatch.report.mail_and_webhooks import Hook
from specwatch.report.messages import Outgoing
from specwatch.report.model import Report
from specwatch.status import DeliveryStatus
from tests.lab.vllm_server import free_port
from tests.report import sample
from tests.report.conftest import MADE, NAME, StartMail, html, mail, markdown
from tests.report.hooks import Receiver

WEEK = 7 * 86400.0


class DeliverySetup:
    """Makes reports, and has a clock that goes on while somebody sleeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = MADE
        self.slept: list[float] = []
        self.asked: list[tuple[float, float, float]] = []
        self.before_sleep: Callable[[], None] = lambda: None

    def make(self, config: Config, since: float, until: float, now: float) -> Report:
        self.asked.append((since, until, now))
        return replace(sample.full(), since=since, until=until, generated=now)

    def sleep(self, seconds: float) -> None:
        self.before_sleep()
        self.slept.append(seconds)
        self.now += seconds

    def means(self) -> Means:
        return Means(
            self.make,
            html,
            markdown,
            markdown,
            mail,
            now=lambda: self.now,
            sleep=self.sleep,
            hostname=lambda: "gpu-7",
        )

    def config(self, mail: str | None = None, *hooks: str, **keys: object) -> Config:
        """A configuration that delivers to a mail server and webhooks."""
        report: dict[str, Any] = {"directory": str(self.folder), **keys}
        if mail is not None:
            to = ["ops@example.com", "boss@example.com"]
            report["email"] = {"smtp": mail, "from": "s@example.com", "to": to, "timeout": "2s"}
        report["webhooks"] = [{"name": f"hook-{n}", "url": url} for n, url in enumerate(hooks)]
        text = json.dumps({"targets": [{"url": "http://h"}], "report": report})
        return parse(text, "specwatch.yml", environ={}, hostname="gpu-7")

    def deliver(self, config: Config, **options: Any) -> DeliveredReport:
        entry = delivered(config, section_of(config), self.means(), **options)
        assert entry is not None
        return entry


@pytest.fixture
def setup(tmp_path: Path) -> DeliverySetup:
    return DeliverySetup(tmp_path / "state" / "reports")


def open_channels(entry: DeliveredReport) -> list[str]:
    return [name for name, one in entry.channels.items() if one.delivered_at is None]


def test_the_last_whole_days_are_written_and_sent(
    setup: DeliverySetup, start_mail: StartMail, hook: Receiver
) -> None:
    mail = start_mail()
    entry = setup.deliver(setup.config(mail.url, hook.url, formats=["md", "json", "html"]))
    until = MADE - 300
    assert setup.asked == [(until - WEEK, until, MADE)]
    names = {f"{NAME}.html", f"{NAME}.json", f"{NAME}.md", "deliveries.json"}
    assert {path.name for path in setup.folder.iterdir()} == names
    report = msgspec.json.decode((setup.folder / f"{NAME}.json").read_bytes(), type=Report)
    assert report == setup.make(setup.config(), until - WEEK, until, MADE)
    assert (setup.folder / f"{NAME}.html").read_text() == html(report)
    assert (setup.folder / f"{NAME}.md").read_text() == markdown(report)
    assert {name: one.delivered_at for name, one in entry.channels.items()} == {
        "email": MADE,
        "hook-0": MADE,
    }
    (_, _, message) = mail.box.sent[0]
    assert message["Subject"].endswith("9 Nov 2026")
    assert len(hook.posted) == 1
    assert setup.slept == []


def test_run_again_nothing_is_made_or_sent_twice(
    setup: DeliverySetup, start_mail: StartMail, hook: Receiver
) -> None:
    """Later on the same day."""
    mail = start_mail()
    config = setup.config(mail.url, hook.url)
    for later in (0.0, 3600.0, 19 * 3600.0):
        setup.now = MADE + later
        assert open_channels(setup.deliver(config)) == []
    setup.deliver(config, retry=True)
    assert (len(setup.asked), len(mail.box.sent), len(hook.posted)) == (1, 1, 1)
    setup.now = MADE + WEEK
    assert setup.deliver(config).name == "report-2026-11-16"
    assert (len(setup.asked), len(mail.box.sent), len(hook.posted)) == (2, 2, 2)
    ids = {message["Message-ID"] for _, _, message in mail.box.sent}
    assert len(ids) == 2


def test_a_service_that_starts_again_after_midnight_makes_no_other_report(
    setup: DeliverySetup, hook: Receiver
) -> None:
    config = setup.config(None, hook.url)
    for hours, made in ((19.0, 1), (25.0, 1), (38.5, 1), (39.5, 2)):
        setup.now = MADE + hours * 3600
        setup.deliver(config)
        assert (len(setup.asked), len(hook.posted)) == (made, made)


def test_what_may_work_later_is_tried_again_with_growing_waits(
    setup: DeliverySetup, hook: Receiver
) -> None:
    hook.answers = [500, 503]
    entry = setup.deliver(setup.config(None, hook.url))
    assert setup.slept == [10.0, 30.0]
    one = entry.channels["hook-0"]
    assert (one.attempts, one.delivered_at, one.error) == (3, MADE + 40, None)
    assert len(hook.posted) == 3


def test_what_stays_down_is_given_up_for_now_and_only_that_is_sent_later(
    setup: DeliverySetup, start_mail: StartMail, hook: Receiver
) -> None:
    port = free_port()
    down = f"http://127.0.0.1:{port}/x"
    mail = start_mail()
    config = setup.config(mail.url, down, hook.url)
    entry = setup.deliver(config)
    assert open_channels(entry) == ["hook-0"]
    assert setup.slept == [10.0, 30.0, 80.0]
    assert entry.channels["hook-0"].attempts == 4
    assert "nothing listens at" in str(entry.channels["hook-0"].error)
    with Receiver() as up:
        again = setup.config(mail.url, up.url, hook.url)
        assert open_channels(setup.deliver(again, retry=True)) == []
        assert len(up.posted) == 1
    assert (len(mail.box.sent), len(hook.posted), len(setup.asked)) == (1, 1, 1)


def test_what_will_not_work_later_is_not_tried_at_once(
    setup: DeliverySetup, hook: Receiver
) -> None:
    hook.answers = [404]
    entry = setup.deliver(setup.config(None, hook.url))
    assert (setup.slept, entry.channels["hook-0"].attempts) == ([], 1)
    assert open_channels(entry) == ["hook-0"]


def test_a_mail_server_that_dies_half_way_gets_it_once(
    setup: DeliverySetup, start_mail: StartMail
) -> None:
    mail = start_mail()
    mail.box.answers = ["hang up", "451 no room"]
    entry = setup.deliver(setup.config(mail.url))
    assert open_channels(entry) == []
    assert (entry.channels["email"].attempts, len(mail.box.sent)) == (3, 1)


def test_who_has_it_does_not_get_it_again_because_of_somebody_else(
    setup: DeliverySetup, start_mail: StartMail
) -> None:
    mail = start_mail()
    mail.box.refused = {"boss@example.com": "450 later"}
    setup.before_sleep = mail.box.refused.clear
    entry = setup.deliver(setup.config(mail.url))
    assert open_channels(entry) == []
    assert [to for _, to, _ in mail.box.sent] == [["ops@example.com"], ["boss@example.com"]]
    first, second = (message["Message-ID"] for _, _, message in mail.box.sent)
    assert first == second


def test_who_is_new_gets_it_and_who_left_is_not_waited_for(
    setup: DeliverySetup, start_mail: StartMail, hook: Receiver
) -> None:
    hook.answers = [404]
    setup.deliver(setup.config(None, hook.url))
    mail = start_mail()
    entry = setup.deliver(setup.config(mail.url), retry=True)
    assert {name: one.delivered_at is not None for name, one in entry.channels.items()} == {
        "email": True
    }


def test_without_a_report_there_is_nothing_to_send_again(setup: DeliverySetup) -> None:
    config = setup.config()
    assert delivered(config, section_of(config), setup.means(), retry=True) is None
    assert setup.asked == []


def test_old_reports_are_removed_and_what_else_lies_there_is_not(setup: DeliverySetup) -> None:
    config = setup.config(keep="10d")
    folder = setup.folder
    setup.deliver(config)
    (folder / "report-2020-01-01.html").write_text("of somebody else")
    for week in (1, 2):
        setup.now = MADE + week * WEEK
        setup.deliver(config)
    assert sorted(path.name for path in folder.glob("*.html")) == [
        "report-2020-01-01.html",
        "report-2026-11-16.html",
        "report-2026-11-23.html",
    ]
    assert [entry.name[7:] for entry in Reports(folder).book().reports] == [
        "2026-11-16",
        "2026-11-23",
    ]


def test_two_at_once_do_not_both_send(setup: DeliverySetup) -> None:
    config = setup.config()
    with (
        Reports(setup.folder).locked(),
        pytest.raises(DeliveryError, match="another process is delivering") as caught,
    ):
        setup.deliver(config)
    assert caught.value.retry is True


@pytest.mark.parametrize("text", ["", "{", '{"format": 2, "reports": []}', '{"reports": 3}'])
def test_a_book_that_cannot_be_read_sends_nothing(
    setup: DeliverySetup, hook: Receiver, text: str
) -> None:
    """It might send a second time."""
    config = setup.config(None, hook.url)
    folder = setup.folder
    folder.mkdir(parents=True)
    (folder / "deliveries.json").write_text(text)
    with pytest.raises(ConfigError, match=r"deliveries\.json is damaged.*remove the file"):
        setup.deliver(config)
    assert hook.posted == []
    (shown,) = DeliveryMonitor().status(config.report)
    assert (shown.channel, shown.undelivered, shown.last_delivery) == ("hook-0", True, None)
    assert "deliveries.json is damaged" in str(shown.error)


def test_a_server_that_never_answers_gets_it_twice_in_all(
    setup: DeliverySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In however many runs; that it was sent and not confirmed is shown."""

    sent: list[str] = []

    def slow(_: object, outgoing: Outgoing, __: Sequence[str]) -> None:
        sent.append(outgoing.id)
        raise DeliveryError("it did not answer", retry=True, sent=True)

    monkeypatch.setattr(Hook, "send", slow)
    config = setup.config(None, "http://h/x")
    for _ in range(3):
        one = setup.deliver(config).channels["hook-0"]
    assert (len(sent), len(set(sent)), setup.slept) == (2, 1, [10.0])
    assert (one.unconfirmed, one.missing, one.delivered_at) == (True, False, None)
    assert DeliveryMonitor().status(config.report) == (
        DeliveryStatus("hook-0", False, None, "sent, never confirmed: it did not answer"),
    )


@pytest.mark.parametrize(
    "failure", [StoreError("no disk"), ValueError("a defect"), KeyboardInterrupt()]
)
def test_a_report_that_cannot_be_made_is_undelivered_and_made_by_the_next_run(
    setup: DeliverySetup,
    hook: Receiver,
    failure: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, watched = setup.config(None, hook.url), DeliveryMonitor()
    setup.deliver(config)
    setup.now = MADE + WEEK

    def fails(*_: object) -> Report:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(setup, "make", fails)
        with pytest.raises(type(failure)):
            setup.deliver(config)
    (one,) = watched.status(config.report)
    assert (one.undelivered, one.last_delivery) == (True, MADE)
    assert (str(failure) or "its making was cut off") in str(one.error)
    setup.now += 900
    assert setup.deliver(config, retry=True).made == setup.now
    assert watched.status(config.report) == (DeliveryStatus("hook-0", False, setup.now),)
    folder = setup.folder
    assert len(Reports(folder).book().reports) == 2
    assert len(hook.posted) == 2


def test_files_that_cannot_be_written_make_it_undelivered(
    setup: DeliverySetup, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, write = setup.config(None, hook.url), Reports.write

    def full(self: Reports, name: str, data: bytes) -> Path:
        if name.endswith(".html"):
            raise DeliveryError("No space left on device", retry=True)
        return write(self, name, data)

    monkeypatch.setattr(Reports, "write", full)
    with pytest.raises(DeliveryError):
        setup.deliver(config)
    (one,) = DeliveryMonitor().status(config.report)
    assert (one.undelivered, one.error) == (True, "it could not be made: No space left on device")


def test_a_report_keeps_its_period_and_formats_when_the_configuration_changes(
    setup: DeliverySetup,
) -> None:
    setup.deliver(setup.config(formats=["json"]))
    entry = setup.deliver(setup.config(since="30d", formats=["html", "json", "md"]))
    assert (entry.until, entry.since) == (MADE - 300, MADE - 300 - WEEK)
    assert entry.formats == ("json",)


def test_a_report_that_was_removed_is_not_sent_again(setup: DeliverySetup, hook: Receiver) -> None:
    config = setup.config(None, hook.url)
    setup.deliver(config)
    (setup.folder / f"{NAME}.json").unlink()
    with pytest.raises(ConfigError, match="cannot be sent again without it"):
        setup.deliver(config, retry=True)


def test_a_folder_that_cannot_be_written_to_is_said(setup: DeliverySetup, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = setup.config(directory=str(tmp_path / "file" / "reports"))
    with pytest.raises(
        DeliveryError, match=r"file/reports: Not a directory; see report\.directory"
    ):
        setup.deliver(config)


def test_a_daemon_sees_what_did_not_arrive(
    setup: DeliverySetup, start_mail: StartMail, hook: Receiver
) -> None:
    """And reads the book again only when it changed."""
    mail, watched = start_mail(), DeliveryMonitor()
    config = setup.config(mail.url, hook.url)
    assert watched.status(None) == ()
    assert watched.status(config.report) == ()
    setup.deliver(config)
    well = (DeliveryStatus("email", False, MADE), DeliveryStatus("hook-0", False, MADE))
    assert watched.status(config.report) == well
    hook.answers = [404]
    setup.now = MADE + WEEK
    setup.deliver(config)
    email, slack = watched.status(config.report)
    assert email == DeliveryStatus("email", False, MADE + WEEK)
    assert (slack.channel, slack.undelivered, slack.last_delivery) == ("hook-0", True, MADE)
    assert "answered 404" in str(slack.error)
    book = setup.folder / "deliveries.json"
    changed = os.stat(book).st_mtime_ns
    book.write_text("changed, and as old as before")
    os.utime(book, ns=(changed, changed))
    assert watched.status(config.report) == (email, slack)
    assert watched.status(setup.config(mail.url).report) == (email,)


def test_what_was_sent_is_in_the_book_before_the_next_is_sent(
    setup: DeliverySetup,
    start_mail: StartMail,
    hook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    config = setup.config(start_mail().url, hook.url)
    seen: list[bool] = []

    def look(_: object, __: Outgoing, ___: Sequence[str]) -> None:
        (entry,) = Reports(setup.folder).book().reports
        seen.append(entry.channels["email"].delivered_at is not None)

    monkeypatch.setattr(Hook, "send", look)
    setup.deliver(config)
    assert seen == [True]
