"""What a server adds to onnxruntime alone, in microseconds per request.

A share of the ceiling changes with the speed of the machine: a fast machine makes onnxruntime's part of a request
shorter, and the rest of it weighs more. So a share is reported beside the time per request outside onnxruntime:

    us a request = rows a request x (1 / rate - 1 / ceiling) x 1e6

`rate` and `ceiling` are rows per second on the same core, measured next to each other. The server must be saturated:
then its core is always busy, 1 / rate is the core's time for a row, whatever the clients do meanwhile, and 1 / ceiling
is onnxruntime's part of it at the ceiling's batch size. It is below 0 if the server was faster than the ceiling, which
noise alone can do.
"""


def us_per_request(rows_per_s: float, ceiling_rows_per_s: float, *, rows_per_request: float = 1.0) -> float:
    """The time per request outside onnxruntime in microseconds, for a saturated server; both rates above 0."""
    return rows_per_request * (1 / rows_per_s - 1 / ceiling_rows_per_s) * 1e6
