"""Inference calls that are never cancelled on the wire, for servers that crash when they are.

Triton's gRPC front end uses a request's state after it has freed it if the cancellation arrives together with the
answer (server issues 7368 and 8034). Three fixes followed each other: #7840 in 2.53, #8078 in 2.57, and #8220 in 2.59
for backends that send the answer and its end separately. A deadline of the client is a cancellation too: 2.51 crashed
after 1,400 to 4,200 calls of either kind. Closing the connection cancels all calls in flight on it.

Before 2.59 the client therefore keeps the time itself. A caller that is cancelled or out of time leaves at once, and
its answer is dropped when it comes. Only inference calls need this: the server keeps no such state for other calls.
"""

import re

SURVIVES = (2, 59)
"""The first version that survives the cancelling of inference calls: release 25.06."""

CLOSE_S = 5.0
"""How long `close` waits for answers that nobody waits for, so that the end of the process does not cancel them."""

MAX_DROPPED = 256
"""How many calls of one blocking connection may go on after their callers have left; further calls wait for them."""


def survives(version: str) -> bool:
    """Whether a server of this version survives cancellations; False if the version cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= SURVIVES
