"""SHA-256 without OpenSSL where there is little to digest. Standard library only.

To load OpenSSL takes longer than to digest 64 KiB without it, and its memory stays with each idle pod.
"""

try:
    from _sha256 import sha256 as _plain  # Python's own, until 3.11
except ImportError:
    try:
        from _sha2 import sha256 as _plain  # from 3.12 on
    except ImportError:  # a Python that was built without its own
        from hashlib import sha256 as _plain

LITTLE = 64 * 1024


class Sha256:
    """As `hashlib.sha256()`. It holds at most LITTLE bytes."""

    def __init__(self):
        self._held = bytearray()
        self._much = None

    def update(self, data):
        """Digest these bytes, too."""
        if self._much is None and len(self._held) + len(data) <= LITTLE:
            self._held += data
            return
        if self._much is None:
            import hashlib  # loads OpenSSL

            self._much = hashlib.sha256(self._held)
            self._held = None
        self._much.update(data)

    def hexdigest(self):
        """Of all bytes until now."""
        return (self._much or _plain(self._held)).hexdigest()
