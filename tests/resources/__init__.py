"""The ports, with real processes behind them."""
