"""The models that this project ships, and the code before and after them."""
