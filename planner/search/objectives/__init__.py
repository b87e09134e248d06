"""What is made small: bytes, time on a machine, or either with memory priced."""
