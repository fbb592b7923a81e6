"""The actors of Bulkhead: one folder an actor, and the contract they share.

Read `messages/` first (what can be said), then any one room. Nothing here imports `supervisor`,
and no room imports another room: they talk through mailboxes that the supervisor owns.
"""
