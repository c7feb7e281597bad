"""One log: which record has which offset, and the producers and transactions in it."""
