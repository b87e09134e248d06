"""What every stage of the joint search buys."""
