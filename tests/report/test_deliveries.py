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
from specwatch.report.channels import Hook
from specwatch.report.deliveries import DeliveredReport, DeliveryMonitor, Reports
from specwatch.report.model import Report
from specwatch.report.outgoing import Outgoing
from specwatch.status import DeliveryStatus
from tests.lab.vllm_server import free_port
from tests.report import sample
from tests.report.conftest import MADE, NAME, StartMail, html, markdown
from tests.report.hooks import Receiver

WEEK = 7 * 86400.0


class World:
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
            self.make, html, markdown, now=lambda: self.now, sleep=self.sleep,
            hostname=lambda: "gpu-7",
        )  # fmt: skip

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
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state" / "reports")


def open_channels(entry: DeliveredReport) -> list[str]:
    return [name for name, one in entry.channels.items() if one.delivered_at is None]


def test_the_last_whole_days_are_written_and_sent(
    world: World, start_mail: StartMail, hook: Receiver
) -> None:  # fmt: skip
    mail = start_mail()
    entry = world.deliver(world.config(mail.url, hook.url, formats=["md", "json", "html"]))
    until = MADE - 300
    assert world.asked == [(until - WEEK, until, MADE)]
    names = {f"{NAME}.html", f"{NAME}.json", f"{NAME}.md", "deliveries.json"}
    assert {path.name for path in world.folder.iterdir()} == names
    report = msgspec.json.decode((world.folder / f"{NAME}.json").read_bytes(), type=Report)
    assert report == world.make(world.config(), until - WEEK, until, MADE)
    assert (world.folder / f"{NAME}.html").read_text() == html(report)
    assert (world.folder / f"{NAME}.md").read_text() == markdown(report)
    assert {name: one.delivered_at for name, one in entry.channels.items()} == {
        "email": MADE, "hook-0": MADE,
    }  # fmt: skip
    (_, _, message) = mail.box.sent[0]
    assert message["Subject"].endswith("9 Nov 2026")
    assert len(hook.posted) == 1
    assert world.slept == []


def test_run_again_nothing_is_made_or_sent_twice(
    world: World, start_mail: StartMail, hook: Receiver
) -> None:
    """Later on the same day."""
    mail = start_mail()
    config = world.config(mail.url, hook.url)
    for later in (0.0, 3600.0, 19 * 3600.0):
        world.now = MADE + later
        assert open_channels(world.deliver(config)) == []
    world.deliver(config, retry=True)
    assert (len(world.asked), len(mail.box.sent), len(hook.posted)) == (1, 1, 1)
    world.now = MADE + WEEK
    assert world.deliver(config).name == "report-2026-11-16"
    assert (len(world.asked), len(mail.box.sent), len(hook.posted)) == (2, 2, 2)
    ids = {message["Message-ID"] for _, _, message in mail.box.sent}
    assert len(ids) == 2


def test_a_service_that_starts_again_after_midnight_makes_no_other_report(
    world: World, hook: Receiver
) -> None:
    config = world.config(None, hook.url)
    for hours, made in ((19.0, 1), (25.0, 1), (38.5, 1), (39.5, 2)):
        world.now = MADE + hours * 3600
        world.deliver(config)
        assert (len(world.asked), len(hook.posted)) == (made, made)


def test_what_may_work_later_is_tried_again_with_growing_waits(
    world: World, hook: Receiver
) -> None:
    hook.answers = [500, 503]
    entry = world.deliver(world.config(None, hook.url))
    assert world.slept == [10.0, 30.0]
    one = entry.channels["hook-0"]
    assert (one.attempts, one.delivered_at, one.error) == (3, MADE + 40, None)
    assert len(hook.posted) == 3


def test_what_stays_down_is_given_up_for_now_and_only_that_is_sent_later(
    world: World, start_mail: StartMail, hook: Receiver
) -> None:
    port = free_port()
    down = f"http://127.0.0.1:{port}/x"
    mail = start_mail()
    config = world.config(mail.url, down, hook.url)
    entry = world.deliver(config)
    assert open_channels(entry) == ["hook-0"]
    assert world.slept == [10.0, 30.0, 80.0]
    assert entry.channels["hook-0"].attempts == 4
    assert "nothing listens at" in str(entry.channels["hook-0"].error)
    with Receiver() as up:
        again = world.config(mail.url, up.url, hook.url)
        assert open_channels(world.deliver(again, retry=True)) == []
        assert len(up.posted) == 1
    assert (len(mail.box.sent), len(hook.posted), len(world.asked)) == (1, 1, 1)


def test_what_will_not_work_later_is_not_tried_at_once(world: World, hook: Receiver) -> None:
    hook.answers = [404]
    entry = world.deliver(world.config(None, hook.url))
    assert (world.slept, entry.channels["hook-0"].attempts) == ([], 1)
    assert open_channels(entry) == ["hook-0"]


def test_a_mail_server_that_dies_half_way_gets_it_once(world: World, start_mail: StartMail) -> None:
    mail = start_mail()
    mail.box.answers = ["hang up", "451 no room"]
    entry = world.deliver(world.config(mail.url))
    assert open_channels(entry) == []
    assert (entry.channels["email"].attempts, len(mail.box.sent)) == (3, 1)


def test_who_has_it_does_not_get_it_again_because_of_somebody_else(
    world: World, start_mail: StartMail
) -> None:
    mail = start_mail()
    mail.box.refused = {"boss@example.com": "450 later"}
    world.before_sleep = mail.box.refused.clear
    entry = world.deliver(world.config(mail.url))
    assert open_channels(entry) == []
    assert [to for _, to, _ in mail.box.sent] == [["ops@example.com"], ["boss@example.com"]]
    first, second = (message["Message-ID"] for _, _, message in mail.box.sent)
    assert first == second


def test_who_is_new_gets_it_and_who_left_is_not_waited_for(
    world: World, start_mail: StartMail, hook: Receiver
) -> None:
    hook.answers = [404]
    world.deliver(world.config(None, hook.url))
    mail = start_mail()
    entry = world.deliver(world.config(mail.url), retry=True)
    assert {name: one.delivered_at is not None for name, one in entry.channels.items()} == {
        "email": True
    }


def test_without_a_report_there_is_nothing_to_send_again(world: World) -> None:
    config = world.config()
    assert delivered(config, section_of(config), world.means(), retry=True) is None
    assert world.asked == []


def test_old_reports_are_removed_and_what_else_lies_there_is_not(world: World) -> None:
    config = world.config(keep="10d")
    folder = world.folder
    world.deliver(config)
    (folder / "report-2020-01-01.html").write_text("of somebody else")
    for week in (1, 2):
        world.now = MADE + week * WEEK
        world.deliver(config)
    assert sorted(path.name for path in folder.glob("*.html")) == [
        "report-2020-01-01.html", "report-2026-11-16.html", "report-2026-11-23.html",
    ]  # fmt: skip
    assert [entry.name[7:] for entry in Reports(folder).book().reports] == [
        "2026-11-16", "2026-11-23",
    ]  # fmt: skip


def test_two_at_once_do_not_both_send(world: World) -> None:
    config = world.config()
    with (
        Reports(world.folder).locked(),
        pytest.raises(DeliveryError, match="another process is delivering") as caught,
    ):
        world.deliver(config)
    assert caught.value.retry is True


@pytest.mark.parametrize("text", ["", "{", '{"format": 2, "reports": []}', '{"reports": 3}'])
def test_a_book_that_cannot_be_read_sends_nothing(world: World, hook: Receiver, text: str) -> None:
    """It might send a second time."""
    config = world.config(None, hook.url)
    folder = world.folder
    folder.mkdir(parents=True)
    (folder / "deliveries.json").write_text(text)
    with pytest.raises(ConfigError, match=r"deliveries\.json is damaged.*remove the file"):
        world.deliver(config)
    assert hook.posted == []
    (shown,) = DeliveryMonitor().status(config.report)
    assert (shown.channel, shown.undelivered, shown.last_delivery) == ("hook-0", True, None)
    assert "deliveries.json is damaged" in str(shown.error)


def test_a_server_that_never_answers_gets_it_twice_in_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In however many runs; that it was sent and not confirmed is shown."""

    sent: list[str] = []

    def slow(_: object, outgoing: Outgoing, __: Sequence[str]) -> None:
        sent.append(outgoing.id)
        raise DeliveryError("it did not answer", retry=True, sent=True)

    monkeypatch.setattr(Hook, "send", slow)
    config = world.config(None, "http://h/x")
    for _ in range(3):
        one = world.deliver(config).channels["hook-0"]
    assert (len(sent), len(set(sent)), world.slept) == (2, 1, [10.0])
    assert (one.unconfirmed, one.missing, one.delivered_at) == (True, False, None)
    assert DeliveryMonitor().status(config.report) == (
        DeliveryStatus("hook-0", False, None, "sent, never confirmed: it did not answer"),
    )


@pytest.mark.parametrize(
    "failure", [StoreError("no disk"), ValueError("a defect"), KeyboardInterrupt()]
)
def test_a_report_that_cannot_be_made_is_undelivered_and_made_by_the_next_run(
    world: World, hook: Receiver, failure: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config, watched = world.config(None, hook.url), DeliveryMonitor()
    world.deliver(config)
    world.now = MADE + WEEK

    def fails(*_: object) -> Report:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(world, "make", fails)
        with pytest.raises(type(failure)):
            world.deliver(config)
    (one,) = watched.status(config.report)
    assert (one.undelivered, one.last_delivery) == (True, MADE)
    assert (str(failure) or "its making was cut off") in str(one.error)
    world.now += 900
    assert world.deliver(config, retry=True).made == world.now
    assert watched.status(config.report) == (DeliveryStatus("hook-0", False, world.now),)
    folder = world.folder
    assert len(Reports(folder).book().reports) == 2
    assert len(hook.posted) == 2


def test_files_that_cannot_be_written_make_it_undelivered(
    world: World, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, write = world.config(None, hook.url), Reports.write

    def full(self: Reports, name: str, data: bytes) -> Path:
        if name.endswith(".html"):
            raise DeliveryError("No space left on device", retry=True)
        return write(self, name, data)

    monkeypatch.setattr(Reports, "write", full)
    with pytest.raises(DeliveryError):
        world.deliver(config)
    (one,) = DeliveryMonitor().status(config.report)
    assert (one.undelivered, one.error) == (True, "it could not be made: No space left on device")


def test_a_report_keeps_its_period_and_formats_when_the_configuration_changes(world: World) -> None:
    world.deliver(world.config(formats=["json"]))
    entry = world.deliver(world.config(since="30d", formats=["html", "json", "md"]))
    assert (entry.until, entry.since) == (MADE - 300, MADE - 300 - WEEK)
    assert entry.formats == ("json",)


def test_a_report_that_was_removed_is_not_sent_again(world: World, hook: Receiver) -> None:
    config = world.config(None, hook.url)
    world.deliver(config)
    (world.folder / f"{NAME}.json").unlink()
    with pytest.raises(ConfigError, match="cannot be sent again without it"):
        world.deliver(config, retry=True)


def test_a_folder_that_cannot_be_written_to_is_said(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = world.config(directory=str(tmp_path / "file" / "reports"))
    with pytest.raises(
        DeliveryError, match=r"file/reports: Not a directory; see report\.directory"
    ):
        world.deliver(config)


def test_a_daemon_sees_what_did_not_arrive(
    world: World, start_mail: StartMail, hook: Receiver
) -> None:
    """And reads the book again only when it changed."""
    mail, watched = start_mail(), DeliveryMonitor()
    config = world.config(mail.url, hook.url)
    assert watched.status(None) == ()
    assert watched.status(config.report) == ()
    world.deliver(config)
    well = (DeliveryStatus("email", False, MADE), DeliveryStatus("hook-0", False, MADE))
    assert watched.status(config.report) == well
    hook.answers = [404]
    world.now = MADE + WEEK
    world.deliver(config)
    email, slack = watched.status(config.report)
    assert email == DeliveryStatus("email", False, MADE + WEEK)
    assert (slack.channel, slack.undelivered, slack.last_delivery) == ("hook-0", True, MADE)
    assert "answered 404" in str(slack.error)
    book = world.folder / "deliveries.json"
    changed = os.stat(book).st_mtime_ns
    book.write_text("changed, and as old as before")
    os.utime(book, ns=(changed, changed))
    assert watched.status(config.report) == (email, slack)
    assert watched.status(world.config(mail.url).report) == (email,)


def test_what_was_sent_is_in_the_book_before_the_next_is_sent(
    world: World, start_mail: StartMail, hook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip

    config = world.config(start_mail().url, hook.url)
    seen: list[bool] = []

    def look(_: object, __: Outgoing, ___: Sequence[str]) -> None:
        (entry,) = Reports(world.folder).book().reports
        seen.append(entry.channels["email"].delivered_at is not None)

    monkeypatch.setattr(Hook, "send", look)
    world.deliver(config)
    assert seen == [True]
