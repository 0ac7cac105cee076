"""Any program under a guard: ``python -m sparktrain.gang.guarded LIFELINE_FD SCRATCH PROGRAM ARGUMENT…``.

It leads a process group of its own, which ends when the lifeline closes; SCRATCH is removed then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from sparktrain.gang import guard

EXIT_S = 5.0


class Guarded:
    """A program that ends with this process, however that ends, and all of its process group with it.

    Parameters
    ----------
    command : sequence of str
    environment : mapping
    on_line : callable
        Takes each line that it prints.
    scratch : str
        A directory, removed with it.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None], scratch: str
    ) -> None:
        self.name = os.path.basename(command[0])
        self._scratch, self._on_line = scratch, on_line
        lifeline_end, self._lifeline = os.pipe()
        launcher = [sys.executable, "-P", "-m", __name__, str(lifeline_end), scratch]
        try:
            self._process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[lifeline_end],
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline_end)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, contextlib.suppress(ValueError, OSError):
            for line in pipe:
                self._on_line(line.decode(errors="replace"))

    def ended(self) -> str | None:
        """How it has ended; None: it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"

    @property
    def was_killed(self) -> bool:
        return (self._process.poll() or 0) < 0

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit status; None: it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it, and all it has started; returns when it is reaped."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self._lifeline)
        self.wait(EXIT_S)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._reader.join(1.0)


def main() -> None:
    lifeline_fd, scratch, *command = sys.argv[1:]
    guard.start(int(lifeline_fd), scratch)
    os.close(int(lifeline_fd))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")


if __name__ == "__main__":
    main()
