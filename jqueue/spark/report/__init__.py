"""A report on queues, their jobs, ages and outcomes: as DataFrames, in the terminal, as a page.

    found = report(spark, "s3://bucket/queues/*.json")
    found.frame                   # one row for each queue and entrypoint
    found.print()                 # tables of 80 columns
    found.to_html("report.html")  # one file, with plots

Payloads, headers, results and the texts of errors appear in none of them. Tables and page need `pip install
"jqueue[report]"`.
"""

from jqueue.spark.report.reading import Report, report

__all__ = ["Report", "report"]
