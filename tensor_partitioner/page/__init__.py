"""Pages: a decision, a plan with its reports, or several side by side, as one self-contained HTML file.

The file includes the charting library and loads nothing from the network. Needs the extra `page` (Jinja).
"""

from tensor_partitioner.page.pages import (
    decision_content as decision_content,
    plan_content as plan_content,
    write as write,
    write_beside as write_beside,
)
