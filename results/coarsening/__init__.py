"""What each rule of coarsening costs in bytes and saves in time, for 8 workers."""
