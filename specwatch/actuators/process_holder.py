"""A small process that holds a program and all that it starts, so that nothing outlives specwatch.

It is run by its path, and so imports nothing of this package and little else.

``program SOCKET GRACE SWEEP``: the descriptor of a socket, the seconds of grace once that is
closed, and those for what the program leaves behind. The socket brings the words of
the program, then requests, one a line: ``stop SECONDS`` (SIGTERM to the program itself, SIGKILL to
all that is left after so many seconds) and ``kill``. It gets ``started PID`` or ``failed ERRNO``,
and ``ended STATUS`` with a wait status. When it closes, because its other end was killed, that is a
``stop``. Orphans of the program become children of this process (``PR_SET_CHILD_SUBREAPER``, see
prctl(2)), whatever session they moved to; when the program has ended they end too.

``command SOCKET GRACE LATEST LIMIT``: a command that is not begun after ``LATEST`` (``late``, by
CLOCK_BOOTTIME), and takes ``LIMIT`` seconds at most. What is left in its session when it has ended
stays. When the socket is closed, or its time is over, all of the session gets SIGTERM, and SIGKILL
after ``GRACE`` seconds; the socket gets ``over`` then.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_NAME = b"specwatch-hold"
_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_SWEEPING_MS = 100
_KILLING_MS = 50
_NEVER_STARTED = 127


class Process:
    """A process as /proc/PID/stat shows it; see proc_pid_stat(5)."""

    __slots__ = ("gone", "parent", "pid", "session", "started")

    def __init__(self, pid: int, stat: bytes) -> None:
        """Raises IndexError or ValueError for another text."""
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19])
        # The first thread of a process that still has others may be a zombie.
        self.gone = fields[0] in b"ZX" and int(fields[17]) <= 1


def process(pid: int) -> Process | None:
    """The process with this id; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return Process(pid, file.read())
    except (OSError, IndexError, ValueError):
        return None  # it ended while we looked


def processes() -> dict[int, Process]:
    """All processes in /proc, by process id."""
    processes = map(process, (int(name) for name in os.listdir("/proc") if name.isdigit()))
    return {alive.pid: alive for alive in processes if alive is not None}


def descendants(roots: set[int], among: dict[int, Process]) -> list[Process]:
    """The children of these, their children, and so on; parents first."""
    children: dict[int, list[Process]] = {}
    for candidate in among.values():
        children.setdefault(candidate.parent, []).append(candidate)
    family: list[Process] = []
    waiting = list(roots)
    seen = set(roots)
    for pid in waiting:
        for child in children.get(pid, ()):
            if child.pid not in seen:
                seen.add(child.pid)
                family.append(child)
                waiting.append(child.pid)
    return family


def send(to: Process, number: int) -> None:
    """Signal a process, unless it has ended, or is not ours to signal."""
    now = process(to.pid)
    if now is not None and now.started == to.started:
        try:
            os.kill(to.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def end(family: list[Process], asked: set[tuple[int, int]], *, kill: bool) -> None:
    """Send each SIGKILL, or once SIGTERM: ``asked`` are those that got it, and is added to."""
    for member in family:
        if kill:
            send(member, signal.SIGKILL)
        elif (member.pid, member.started) not in asked:
            asked.add((member.pid, member.started))
            send(member, signal.SIGTERM)


class ProcessHolder:
    """Holds one program until nothing of it is left."""

    def __init__(self, control: int, *, grace: float, sweep: float) -> None:
        self._control = control
        self._alone = False
        self._grace = grace
        self._sweep = sweep
        self._program = 0
        self._kill_at: float | None = None
        self._asked: set[tuple[int, int]] = set()
        self._unread = b""

    def hold(self) -> None:
        """Start the program that the socket names; returns when all of it has ended."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        libc.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
        self._program, problem = _started(_words(self._control), libc)
        if problem:
            self._tell(f"failed {problem}")
            return
        wake = _caught_signals()
        self._tell(f"started {self._program}")
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while self._reap():
            self._end_descendants()
            for descriptor, _ in poll.poll(self._timeout()):
                if descriptor == wake:
                    self._forward(os.read(wake, 512))
                elif not self._handle_requests():
                    poll.unregister(descriptor)

    def _reap(self) -> bool:
        """Collect what has ended; whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._program:
                self._program = 0
                self._tell(f"ended {status}")
                self._kill_within(self._sweep)

    def _end_descendants(self) -> None:
        """Ask what the program left behind to end; end all when the time has come."""
        late = self._kill_at is not None and time.monotonic() >= self._kill_at
        if self._program and not late:
            return
        end(descendants({os.getpid()}, processes()), self._asked, kill=late)

    def _timeout(self) -> int | None:
        """Milliseconds until the next check without a signal or a request."""
        if self._kill_at is None:
            return None
        left = self._kill_at - time.monotonic()
        if left <= 0:
            return _KILLING_MS
        return int(left * 1000) + 1 if self._program else _SWEEPING_MS

    def _handle_requests(self) -> bool:
        """Carry out the requests from the socket; False once it is closed."""
        try:
            data = os.read(self._control, 4096)
        except ConnectionError:
            data = b""
        if not data:
            self._alone = True
            self._stop(self._grace)
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            verb, _, seconds = line.partition(b" ")
            if verb == b"stop":
                self._stop(float(seconds))
            elif verb == b"kill":
                self._kill_within(0.0)
        return True

    def _stop(self, seconds: float) -> None:
        if self._kill_at is None:
            self._forward(bytes([signal.SIGTERM]))
        self._kill_within(seconds)

    def _forward(self, numbers: bytes) -> None:
        """Pass signals on to the program itself, which ends its own processes."""
        for number in numbers:
            if number in _FORWARDED and self._program:
                program = process(self._program)
                if program is not None:
                    send(program, number)

    def _kill_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._kill_at = deadline if self._kill_at is None else min(deadline, self._kill_at)

    def _tell(self, line: str) -> None:
        if not self._alone:
            _send(self._control, line)  # that it is closed is seen when it is read


class CommandHolder:
    """Holds one command; its session ends with the owner, and when its time is over."""

    def __init__(self, control: int, *, grace: float, latest: float, limit: float) -> None:
        self._control = control
        self._grace = grace
        self._latest = latest
        self._limit = limit
        self._command = 0

    def hold(self) -> None:
        """Run the command that the socket names; returns when it has ended."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
        words = _words(self._control)
        wake = _caught_signals()
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= self._latest:
            _send(self._control, "late")
            return
        self._command, problem = _started(words, libc)
        if problem:
            _send(self._control, f"failed {problem}")
            return
        if not self._ends(wake, self._control, self._limit):
            self._end_session(wake)
            _send(self._control, "over")
        _send(self._control, f"ended {os.waitpid(self._command, 0)[1]}")

    def _ends(self, wake: int, control: int, seconds: float) -> bool:
        """Whether it ends within so many seconds, while the owner lives."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(control, select.POLLIN)
        # Until it is waited for, no other process gets its number, which is that of its session.
        while os.waitid(os.P_PID, self._command, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0, int(left * 1000) + 1))}
            if control in ready or left <= 0:
                return False
            if wake in ready:
                os.read(wake, 512)
        return True

    def _end_session(self, wake: int) -> None:
        """SIGTERM to all of it, and SIGKILL to what is left of it later."""
        asked: set[tuple[int, int]] = set()
        deadline = time.monotonic() + self._grace
        while True:
            session = [p for p in processes().values() if p.session == self._command and not p.gone]
            if not session:
                return
            end(session, asked, kill=time.monotonic() >= deadline)
            if select.select([wake], [], [], _KILLING_MS / 1000)[0]:
                os.read(wake, 512)


def _words(control: int) -> list[bytes]:
    """Four bytes of length, then the words with a zero byte between them."""
    return _read(control, int.from_bytes(_read(control, 4), "big")).split(b"\0")


def _read(control: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = os.read(control, size - len(read))
        if not more:
            sys.exit(0)  # specwatch is gone
        read += more
    return read


def _send(control: int, line: str) -> bool:
    """Write a line; False once the other end is gone."""
    try:
        os.write(control, line.encode() + b"\n")
    except ConnectionError:
        return False
    return True


def _started(words: list[bytes], libc: ctypes.CDLL) -> tuple[int, int]:
    """The process id of a program that was started, in a session of its own; else an errno."""
    failed, report = os.pipe()  # closed by a successful exec
    ours = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(words, libc, ours, report)
    os.close(report)
    problem = os.read(failed, 16)
    os.close(failed)
    if problem:
        os.waitpid(pid, 0)
        return 0, int(problem)
    return pid, 0


def _become(words: list[bytes], libc: ctypes.CDLL, parent: int, report: int) -> None:
    """Turn this child into the program; never returns."""
    try:
        os.setsid()
        # If the holder is killed, the kernel sends the program a signal.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_NEVER_STARTED)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would too
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        os.write(report, str(error.errno or 0).encode())
    finally:
        os._exit(_NEVER_STARTED)


def _caught_signals() -> int:
    """A descriptor from which the numbers of signals can be read that come from now on.

    Handlers, unlike ignored signals, do not go over to a program.
    """
    wake, written = os.pipe()
    for end in (wake, written):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return wake


def main(arguments: list[str]) -> None:
    """Hold what the socket names."""
    kind, control, grace, *more = arguments
    os.set_inheritable(int(control), False)
    holder: ProcessHolder | CommandHolder
    if kind == "program":
        holder = ProcessHolder(int(control), grace=float(grace), sweep=float(more[0]))
    else:
        latest, limit = more
        holder = CommandHolder(
            int(control), grace=float(grace), latest=float(latest), limit=float(limit)
        )
    holder.hold()


if __name__ == "__main__":
    main(sys.argv[1:])
