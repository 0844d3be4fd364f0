"""Rows from SQLite, DuckDB and PostgreSQL: a query's result, streamed, read-only, secrets kept out."""

from fedpower.rows.sql.query import SqlQuery
from fedpower.rows.sql.table import QuerySource, StoredQuery, query_of, query_table

__all__ = ["QuerySource", "SqlQuery", "StoredQuery", "query_of", "query_table"]
