"""Streams and events of the double, apart from the rest of `cupy.cuda` because arrays need them.

What a stream is given is done at once, or, where CUPY_DOUBLE_DELAY gives seconds, by a thread of the stream's own that
takes so long before each piece of work. Events of several processes count in memory that these map.
"""

import os
import queue
import threading
import time
import weakref

import numpy as np

from cupy import _memory, _names, _refused

DELAY_S = float(os.environ.get("CUPY_DOUBLE_DELAY", "0"))
PATIENCE_S = 60
_CURRENT = []
"""The streams that are current, the last of them now."""

CAPTURED = []
"""Lists, the last of them that of the graph that is captured: functions that do again what was queued since."""


class CaptureError(RuntimeError):
    """Something is done that cannot be captured, as it waits for the device or reads the host."""


def require_no_capture(what):
    """Raise CaptureError while a graph is captured."""
    if CAPTURED:
        raise CaptureError(f"cudaErrorStreamCaptureUnsupported: {what}")


EVENTS = weakref.WeakValueDictionary()
"""Events by address."""


def current():
    """Return the current stream."""
    return _CURRENT[-1]


def patiently(holds, what):
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"nothing happened for {PATIENCE_S} s: {what}")
        time.sleep(1e-4)


@_names.checked("cupy.cuda.Stream")
class Stream:
    """A stream: what it still has to do."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self._queue = _memory.Queue()
        self._work = queue.SimpleQueue()
        self._given = self._done = 0
        self._failure = None
        self.ptr = 0 if null else id(self)
        STREAMS[self.ptr] = self
        if DELAY_S:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            work = self._work.get()
            time.sleep(DELAY_S)
            try:
                work()
            except Exception as error:
                self._failure = self._failure or error
            self._done += 1

    def _submit(self, work):
        """Do work behind what was given before."""
        self._require_own()
        for captured in CAPTURED[-1:]:
            captured.append(work)
        if not DELAY_S:
            work()
            return
        self._given += 1
        self._work.put(work)

    def _drain(self):
        """Wait until all work is done, for what is then done on this stream at once."""
        self._require_own()
        self._settle()

    def _require_own(self):
        if not self.ptr:
            _refused.refuse("null", "work on the null stream")

    def _settle(self):
        """Wait until all work is done; raises what it raised."""
        patiently(lambda: self._done == self._given, "a stream works on")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self):
        _CURRENT.append(self)
        return self

    def __exit__(self, *_error):
        _CURRENT.pop()

    def use(self):
        _CURRENT[-1] = self
        return self

    def synchronize(self):
        require_no_capture("a stream is waited for")
        self._settle()
        self._queue.end()

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        event._wait_in(self)


class Mark:
    """How often an event was recorded, and up to which time the stream has come; in memory that processes map."""

    def __init__(self, counts):
        self._counts = counts
        self.at_s = None

    def record(self, stream):
        """Record the event behind what a stream was given."""
        self._counts[0] += 1
        number = self._counts[0]

        def work():
            self._counts[1] = number
            self.at_s = time.perf_counter()

        stream._submit(work)

    def reached(self, number):
        return self._counts[1] >= number

    def wait_in(self, stream):
        """Let a stream wait for the event as it was last recorded."""
        number = int(self._counts[0])
        stream._submit(lambda: patiently(lambda: self.reached(number), "an event is not reached"))


STREAMS = weakref.WeakValueDictionary()
"""Streams by address."""


@_names.checked("cupy.cuda.Event")
class Event:
    """A mark in a stream, and the copies that were pending before it."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        if interprocess and not disable_timing:
            raise ValueError("cudaErrorInvalidValue: an event of several processes cannot keep time")
        self._copies = []
        self._shared = _memory.Block(16) if interprocess else None
        counts = np.zeros(2, np.int64) if self._shared is None else self._shared.bytes.view(np.int64)
        counts[:] = 0
        self._mark = Mark(counts)
        self._keeps_time = not disable_timing
        self.ptr = id(self)
        EVENTS[self.ptr] = self

    def _wait_in(self, stream):
        """Let a stream wait for what is before the event: copies, too, are then before all that the stream is given."""
        self._mark.wait_in(stream)
        stream._queue.copies += self._copies

    def record(self, stream=None):
        stream = stream or current()
        self._copies = list(stream._queue.copies)
        self._mark.record(stream)

    def synchronize(self):
        number = int(self._mark._counts[0])
        patiently(lambda: self._mark.reached(number), "an event is not reached")
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.end()

    @property
    def done(self):
        return self._mark.reached(self._mark._counts[0]) and all(copy.ended for copy in self._copies)


@_names.checked_function("cupy.cuda")
def get_elapsed_time(start_event, end_event):
    events = start_event, end_event
    if not all(event._keeps_time and event._mark._counts[0] for event in events):
        raise RuntimeError("cudaErrorInvalidResourceHandle: an event keeps no time, or was not recorded")
    if not all(event.done for event in events):
        raise RuntimeError("cudaErrorNotReady: device not ready")
    return (end_event._mark.at_s - start_event._mark.at_s) * 1e3


NULL = Stream(null=True)
_CURRENT.append(NULL)
