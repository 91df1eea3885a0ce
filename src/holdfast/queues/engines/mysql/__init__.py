"""The engine in a MySQL or MariaDB database."""
