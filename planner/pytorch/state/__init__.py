"""Parameters and buffers: their content, what forward changes in them, and the memory they share."""
