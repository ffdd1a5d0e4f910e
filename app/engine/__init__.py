"""Which process runs a turn, and what becomes of it when that process is gone."""
