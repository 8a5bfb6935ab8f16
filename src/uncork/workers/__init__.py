"""workers: ranges of a head's classes on other processes and machines, put together again."""
