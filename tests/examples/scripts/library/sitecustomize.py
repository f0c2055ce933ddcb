"""Kills the script, and all processes that it started, when it has printed the line that KILL_AT names."""

import os
import signal
import sys


class Deadly:
    def __init__(self, stream, text):
        self._stream, self._text, self._tail, self._pid = stream, text, "", os.getpid()

    def write(self, text):
        count = self._stream.write(text)
        self._tail = self._tail[-200:] + text
        if text.endswith("\n") or "\n" in text:
            self._stream.flush()
            if self._text in self._tail and os.getpid() == self._pid:
                os.killpg(os.getpgid(0), signal.SIGKILL)
        return count

    def __getattr__(self, name):
        return getattr(self._stream, name)


text = os.environ.pop("KILL_AT", None)  # not for the processes that this one starts
if text:
    sys.stdout = Deadly(sys.stdout, text)
