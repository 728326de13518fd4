"""Other ways of doing the same, kept apart because some of them run code that arrives in a message.

Nothing here is imported unless a strategy that needs it was asked for by name.
"""
