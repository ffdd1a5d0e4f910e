"""Erasure, and later retention and export."""
