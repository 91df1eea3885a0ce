"""The engine on a Redis or Valkey server."""
