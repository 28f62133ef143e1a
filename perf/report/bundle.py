"""Vega, Vega-Lite and Vega-Embed as one script, from the package vl-convert-python, without network access.

Making it takes some seconds of a core, so it is kept in the user's cache.
"""

import contextlib
import functools
import os
from importlib.metadata import version
from pathlib import Path

import vl_convert

from triton_batching import whole_file
from triton_batching.terminal import Mistake


@functools.cache
def bundle() -> str:
    """The script."""
    kept = folder() / f"vega-{version('vl-convert-python')}.js"
    try:
        return kept.read_text()
    except (OSError, ValueError):
        text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # Where it cannot be kept, the next report makes it again.
    with contextlib.suppress(OSError, Mistake):
        whole_file.write(kept, text)
    return text


def folder() -> Path:
    """The user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "triton-batching"
