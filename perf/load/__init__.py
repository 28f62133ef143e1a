"""Many client processes on one model: load that tells the truth, every reply checked, and where the time goes."""
