"""Small programs that call a server: read words, classify pictures, read a page."""
