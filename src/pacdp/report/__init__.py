"""Reports of finished runs: one HTML page that loads nothing from elsewhere."""

from pacdp.report.comparison import Comparison
from pacdp.report.figures.base import Chart, Table
from pacdp.report.page import render_page

__all__ = ["Chart", "Comparison", "Table", "render_page"]
