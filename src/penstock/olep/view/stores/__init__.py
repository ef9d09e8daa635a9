"""Where views are stored: databases and a cache.

Each store module has `<Name>Views`, which opens views and manages their generations, and `<Name>View`, one
generation. All keep the contract of `penstock.olep.view`: rows and positions are written atomically, and
replaced versions of rows are retained for some seconds, so that a view can be read as of a position.

Modules:
  connection_pool  reuses connections of readers
  memory           in dictionaries, for tests and small caches
  postgres         a PostgreSQL schema for each generation
  postgres_sql     the SQL statements of `postgres`
  redis            hashes in Valkey or Redis
  serving_file     the file that names the serving generation
  sqlite           a SQLite file for each generation, with full-text search by FTS5
  sqlite_sql       the SQL statements of `sqlite`
  stored_view      what the view stores share: identity, checks, errors
"""
