"""What the engines with tables share: rows, retention, migrations, callers' transactions."""
