"""How many file descriptors the server may open: it needs one for each connection and each model instance.

The guard raises the server's own limit to the hard limit, so only the hard limit counts.
"""

import resource

from triton_batching.terminal import Mistake

# A server with one model has 65 open, and about as many again for a moment while it starts; each further instance adds
# one, and so does each connection.
SERVER = 128
CONNECTIONS = 64


class DescriptorError(Mistake):
    """The limit is too low for the server that is asked for."""


def check(instances: int) -> None:
    """Raise `DescriptorError` if a server of that many model instances could not serve a few clients."""
    needed = SERVER + instances + CONNECTIONS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DescriptorError(
            f"this process may open {hard} files at most (ulimit -Hn), and a server with {instances} model instances "
            f"needs {needed} for itself and {CONNECTIONS} connections; with fewer it stops answering or never gets "
            f"ready. Raise the limit (limits.conf, LimitNOFILE= of systemd, docker run --ulimit nofile={needed})."
        )
