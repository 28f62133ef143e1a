"""Records of measurements on disk, and what they hold: loads, candidates, trials, studies, the machine."""
