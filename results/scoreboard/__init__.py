"""Published training runs, predicted and scored: any set of rows in one format, by one command."""
