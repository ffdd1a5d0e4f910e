"""The only place that knows pydantic-ai."""
