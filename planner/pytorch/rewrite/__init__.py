"""What a trace's views, axes, constants and complex numbers become before, or as, it is translated."""
