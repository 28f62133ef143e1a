"""A client in a process of its own, to be killed: python client_process.py URL MODEL SECONDS."""

import sys
import time

import numpy as np

from clients import Model

url, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
model = Model(name, url=url, transport="shared_memory")
print(model.predict(np.zeros((1, 1), np.float32)).item(), flush=True)
if seconds:
    model.predict(np.full((1, 1), seconds, np.float32))
time.sleep(60)
