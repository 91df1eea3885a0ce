"""The engine in a PostgreSQL database."""
