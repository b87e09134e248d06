"""What a trace's views, axes, masks, constants and complex numbers become before, or as, it is translated."""
