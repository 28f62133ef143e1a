"""Tables, figures and pages from records."""
