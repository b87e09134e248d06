"""Parameters and buffers: what they hold, what forward makes of them, and in whose memory they lie."""
