"""Reports: one page that needs nothing but itself, made from finished runs."""

from pacdp.report.arms import Arms, arms_of
from pacdp.report.page import page
from pacdp.report.picture import Picture, Table

__all__ = ["Arms", "Picture", "Table", "arms_of", "page"]
