"""German to English with four outputs: the set-up of "Speeding Up Entmax", small enough to read."""
