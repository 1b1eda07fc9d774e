"""Reports: one page that needs nothing but itself, made from finished runs."""

from pacdp.report.comparison import Arms, arms_of
from pacdp.report.figures.base import Picture, Table
from pacdp.report.page import page

__all__ = ["Arms", "Picture", "Table", "arms_of", "page"]
