"""The fully connected baseline."""
