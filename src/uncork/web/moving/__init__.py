"""Move one row of a head and see: a class decided with its bias or its row's length changed."""
