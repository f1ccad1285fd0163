"""The connection to a runner: its stdin and stdout over the websocket of `pods/attach`."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

_STDIN: Final = b"\x00"
_STDOUT: Final = 1
_CHUNK: Final = 64 * 1024


class RunnerLink:
    """Messages out, bytes in. The protocol is Kubernetes' `v4.channel.k8s.io`: one byte of channel, then data."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line of JSON to the runner."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for start in range(0, len(line), _CHUNK):
            await self._socket.send_bytes(_STDIN + line[start : start + _CHUNK])

    async def end_line(self) -> None:
        """End a line that somebody else may have begun. The runner ignores empty ones."""
        await self._socket.send_bytes(_STDIN + b"\n")

    async def received(self) -> AsyncIterator[bytes]:
        """What the runner writes, in pieces of any size, until the connection ends."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] == _STDOUT:
                yield message.data[1:]
