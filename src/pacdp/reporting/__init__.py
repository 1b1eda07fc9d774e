"""Reports of finished runs: one HTML page that loads nothing from elsewhere."""

from pacdp.reporting.comparison import Comparison
from pacdp.reporting.figures.base import Chart, Table
from pacdp.reporting.page import render_page
from pacdp.reporting.writer import write_report

__all__ = ["Chart", "Comparison", "Table", "render_page", "write_report"]
