"""Many models on few devices: packed under their latency targets before a device is touched, checked and replayed."""
