"""Half messages, verdicts, and asking producers again."""
