"""Rows from SQLite and PostgreSQL: a query's result, streamed, read-only, its secrets kept out."""

from fedpower.data.sql.query import SqlQuery
from fedpower.data.sql.table import QuerySource, QueryTable, query_file, query_of, query_table

__all__ = ["QuerySource", "QueryTable", "SqlQuery", "query_file", "query_of", "query_table"]
