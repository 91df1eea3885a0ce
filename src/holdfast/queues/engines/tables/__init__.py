"""What the engines with tables share: rows, retention, migrations, transactions of others."""
