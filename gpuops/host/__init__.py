"""What runs on the rented host: standard library only, Python 3.8 or newer, sent over SSH and never installed."""
