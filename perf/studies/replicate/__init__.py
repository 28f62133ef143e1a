"""Printed claims measured again, and whether the printed intervals hold the new values."""
