"""The only place that speaks SQL: PostgreSQL 15 or newer."""
