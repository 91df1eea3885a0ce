"""What the engines with tables share: rows, migrations, callers' transactions."""
