"""Move one row of a head and see: a class decided as if its bias or its row's length were others."""
