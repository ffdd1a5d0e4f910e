"""Adapters between our types and those of model frameworks."""
