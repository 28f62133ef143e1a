"""Which of tritonserver's flags a user may not set, because the launcher sets them itself."""

from collections.abc import Sequence

from triton_batching.terminal import Mistake

# Flags that the launcher sets itself and relies on.
OURS = (
    *("--model-repository", "--model-store", "--backend-directory", "--model-control-mode", "--load-model"),
    *("--model-config-name", "--http-port", "--http-address", "--grpc-port", "--grpc-address", "--metrics-port"),
    "--metrics-address",
)
RESTRICTED = ("--http-restricted-api", "--grpc-restricted-protocol")


class SettingsError(Mistake):
    """The settings cannot be served: a model is not exported, or an argument is one that the launcher sets itself."""


def check(arguments: Sequence[str], *, open_admin: bool) -> None:
    """Raise `SettingsError` if one of these flags for tritonserver is one that the launcher sets itself."""
    for argument in arguments:
        if _sets(argument, OURS):
            raise SettingsError(
                f"{argument} after -- would override a flag that the launcher relies on. Set it before the --, as an "
                "option of python -m serve, or as a field of Settings."
            )
        if _sets(argument, RESTRICTED) and not open_admin:
            raise SettingsError(
                f"{argument} after -- restricts APIs, which the launcher does itself, and tritonserver takes one such "
                "setting for an API. Add --open-admin, and restrict after the -- all APIs that you want restricted."
            )


def _sets(argument: str, flags: Sequence[str]) -> bool:
    """Whether `argument` sets one of these flags; tritonserver also takes the beginning of a name (getopt_long)."""
    name = argument.partition("=")[0]
    return len(name) > len("--") and any(flag.startswith(name) for flag in flags)
