"""A queue of bounded length that namespaces share: none fills it for another, and they are served in turn."""

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Holds so many items in total. The namespaces take turns; within a namespace the order is that of arrival."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lines: Final[OrderedDict[str, deque[T]]] = OrderedDict()
        """In the order of the next turns; none is empty."""

    def put(self, namespace: str, item: T) -> bool:
        """Add an item. False if it, or another one instead of it, was dropped.

        What is dropped is the newest item of the namespace that has the most.
        """
        line = self._lines.get(namespace, ())
        full = sum(map(len, self._lines.values())) >= self._most
        if full:
            longest = max(self._lines.values(), key=len)
            if len(longest) <= len(line) + 1:  # what is shared evenly is not taken from others
                return False
            longest.pop()
        self._lines.setdefault(namespace, deque()).append(item)
        return not full

    def take(self) -> T | None:
        """The next item, if there is one."""
        if not self._lines:
            return None
        namespace, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[namespace] = line
        return item
