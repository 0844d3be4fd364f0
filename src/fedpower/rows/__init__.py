"""Sources of rows: arrays, sparse matrices, tables, databases, genotypes and networks."""
