"""The doors, with real processes behind them."""
