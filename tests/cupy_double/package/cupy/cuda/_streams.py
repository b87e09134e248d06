"""Streams and events of the double, apart from the rest of `cupy.cuda` because arrays need them."""

import weakref

from cupy import _memory, _names

_CURRENT = []
EVENTS = weakref.WeakValueDictionary()
"""Events by address."""


def current():
    """Return the current stream."""
    return _CURRENT[-1] if _CURRENT else NULL


@_names.checked("cupy.cuda.Stream")
class Stream:
    """A stream: what it still has to do."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self._queue = _memory.Queue()
        self.ptr = id(self)

    def __enter__(self):
        _CURRENT.append(self)
        return self

    def __exit__(self, *_error):
        _CURRENT.remove(self)

    def synchronize(self):
        self._queue.end()

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        """Work to come is behind the event; what is pending there is for the host to wait for all the same."""


@_names.checked("cupy.cuda.Event")
class Event:
    """A mark in a stream: the copies that were pending before it."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        if interprocess and not disable_timing:
            raise ValueError("cudaErrorInvalidValue: an event of several processes cannot keep time")
        self._copies = []
        self._interprocess = interprocess
        self.ptr = id(self)
        EVENTS[self.ptr] = self

    def record(self, stream=None):
        self._copies = list((stream or current())._queue.copies)

    def synchronize(self):
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.end()

    @property
    def done(self):
        return all(copy.ended for copy in self._copies)


NULL = Stream(null=True)
