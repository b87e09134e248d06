"""SoyBean's example of five layers on 16 workers: its own accounting, exact counts, and what the planner finds."""
