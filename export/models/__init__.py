"""The models that this project ships, one file each, and the code that runs before and behind them."""
