"""A cluster under faults, in balance and under attack, with real clients whose every answer is checked."""
