"""A report on queues, their jobs, ages and outcomes: as DataFrames, in the terminal, as a page.

    found = report(spark, "s3://bucket/queues/*.json")
    found.frame                   # one row for each queue and entrypoint
    found.print()                 # tables of 80 columns
    found.to_html("report.html")  # one file, with plots
    report(spark, lake="s3://bucket/lake").to_html("past.html")  # what happened, over months

Payloads, headers, results and the texts of errors appear in none of them. Tables and page need `pip install
"jqueue[report]"`.
"""

from jqueue.spark.report.reading import PastReport, Report, report

__all__ = ["PastReport", "Report", "report"]
