"""What keeping fetches saves in bytes and costs in memory."""
