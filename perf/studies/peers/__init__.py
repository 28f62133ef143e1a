"""The same model, machine and callers on other servers, beside ours: `python -m perf.studies.peers`."""
