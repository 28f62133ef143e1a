"""Training data of the text recogniser: rendered words, and the training itself."""
