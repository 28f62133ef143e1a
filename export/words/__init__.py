"""The training data of the text recogniser (rendered words) and its training."""
