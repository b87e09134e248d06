"""Step times predicted on a calibrated machine beside those of the runs that followed."""
