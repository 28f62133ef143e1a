"""Our own experiments on this project. No user's tool imports them."""
