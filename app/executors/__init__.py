"""Executors run one step and remember nothing."""
