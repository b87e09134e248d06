"""Pages: a decision, or a plan with its reports, as one self-contained HTML file.

The file includes the charting library and loads nothing from the network. Needs the extra `page` (Jinja).
"""

from tensor_partitioner.page.pages import write_page, write_report

__all__ = ["write_page", "write_report"]
