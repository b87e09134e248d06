"""The process of a rank: its environment, its guard, and how a job starts and ends."""
