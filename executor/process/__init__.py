"""The process of a rank: its environment, the guard beside it, how a job starts and how it ends."""
