"""Conversations as workflow runs. Begin with turn.py, the way of a message."""
