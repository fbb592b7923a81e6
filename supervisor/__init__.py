"""The supervisor of Bulkhead: who lives, who dies, who may talk to whom, and the doors to the outside.

Start with `supervise.py`. Nothing with state may be imported from here: the launcher loads this package under its
long name, everything else under the short one.
"""
