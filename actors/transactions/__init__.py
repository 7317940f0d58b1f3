"""Transactions: half messages, their commit or rollback, and checks with their producers."""
