"""What the three SQLite rooms share: connections and transactions, the keyword index, filters, rows, limits.

Only worker-side code is in here, and only rooms that own a database import it.
"""
