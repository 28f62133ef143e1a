"""The load generator: many client processes on one model, with every reply checked and every stage timed."""
