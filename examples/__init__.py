"""Complete programs built on Penstock's libraries."""
