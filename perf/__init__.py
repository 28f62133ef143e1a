"""Measure a served model into records, and turn records into tables and reports."""
