"""Creating an object once, where an answer may get lost or a race for a quota."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from executor_client.transport import outage

_RACE_SECONDS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Before each further try at most; in all much less than the operator waits for a payload."""


async def past_quota_races(create: Callable[[], Awaitable[Any]]) -> Any:
    """What `create` returns. Where it lost a race for the count of a ResourceQuota, it is called again, a few times.

    The API server counts with optimistic locks and gives up itself after three tries.

    Raises:
        ApiException: it was refused for another reason, or lost each time.
    """
    for longest in _RACE_SECONDS:
        try:
            return await create()
        except ApiException as error:
            if error.status != 409 or "resourcequotas" not in str(error.body):
                raise
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 it is no secret
    return await create()


async def created_once(
    create: Callable[[], Awaitable[Any]], find: Callable[[bool], Awaitable[Any]], retries: outage.Retries
) -> Any:
    """What `create` returns. It is called again where its answer may have been lost: the name is the caller's own.

    That goes on for OUTAGE_SECONDS, with longer and longer pauses.

    Args:
        create: makes an object of this name.
        find: returns the object if it is there and the caller's own, and None otherwise. Is told whether the API
            server has said that there is one of this name.
        retries: of the connection; when that is closed, nothing is tried again.

    Raises:
        ApiException: it was refused, or whether it was made can't be found out.
        aiohttp.ClientError: whether it was made can't be found out.
        OSError: the same.
    """
    clock = asyncio.get_running_loop().time
    last, lost, pauses = clock() + outage.OUTAGE_SECONDS, False, outage.pauses()
    while True:
        try:
            return await past_quota_races(create)
        except (ApiException, aiohttp.ClientError, OSError) as error:
            status = error.status if isinstance(error, ApiException) else None
            is_there = lost and status == 409
            if status and status not in outage.PASSING and not is_there:
                raise
            lost = lost or status != 429
            left = last - clock()
            if is_there or left <= 0 or retries.closed:
                if found := await find(is_there):
                    return found
                raise
        await retries.pause(min(next(pauses), left))
