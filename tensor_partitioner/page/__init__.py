"""Pages: a decision, or a plan with its reports, as one HTML file that is opened from disk.

It has everything in it (a charting library, too) and fetches nothing. Needs the extra `page` (Jinja).
"""

from tensor_partitioner.page.pages import write_page, write_report

__all__ = ["write_page", "write_report"]
