"""Stores of results as a page that people read: tables beside the paper's, figures, pictures.

document = make_report(["results.sqlite"])
write_html(document, "report.html")            # one file, no network
write_markdown(document, "report.md")          # and its figures in report-figures/
"""

from clcnn.report.blocks import Document, ReportError
from clcnn.report.html import to_html
from clcnn.report.markdown import to_markdown
from clcnn.report.page import make_report
from clcnn.report.writing import write_html, write_markdown

__all__ = [
    "Document",
    "ReportError",
    "make_report",
    "to_html",
    "to_markdown",
    "write_html",
    "write_markdown",
]
