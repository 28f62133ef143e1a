"""Records on disk and what they hold: measurements, trials, studies, and the candidates and traffic of these."""
