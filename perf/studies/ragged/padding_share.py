"""The share of padding in the elements that a model computed, from our backend's counters in the metrics."""

import re
import time
import urllib.request
from dataclasses import dataclass
from typing import Self

ELEMENTS = re.compile(r"^onnxruntime_ragged_elements_total\{(.*)\} ([\d.e+]+)$", re.MULTILINE)
TIMEOUT_S = 5.0
# The backend updates the metrics half a second after a batch.
LAG_S = 0.7


@dataclass(frozen=True, kw_only=True)
class PaddingShare:
    """Elements of the items that ran, and elements computed for them; totals, or the difference of two totals."""

    own: float
    computed: float

    @classmethod
    def read(cls, url: str, model: str) -> Self:
        """Read the metrics endpoint at `host:port` after `LAG_S`; zeros if the model's batches are not counted."""
        time.sleep(LAG_S)
        # A server on this machine must not be read through a proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{url}/metrics", timeout=TIMEOUT_S) as answer:
            return cls.parse(answer.read().decode(), model)

    @classmethod
    def parse(cls, text: str, model: str) -> Self:
        """The totals of one model, over its instances and versions."""
        totals = {"own": 0.0, "computed": 0.0}
        for labels, value in ELEMENTS.findall(text):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["model"] == model:
                totals[label["kind"]] += float(value)
        return cls(**totals)

    def __sub__(self, other: Self) -> Self:
        return type(self)(own=self.own - other.own, computed=self.computed - other.computed)

    @property
    def wasted(self) -> float | None:
        """1 - own / computed; None if nothing was counted."""
        return 1 - self.own / self.computed if self.computed else None
