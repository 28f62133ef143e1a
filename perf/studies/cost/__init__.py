"""What a call costs its client."""
