"""The data pipeline on Spark: jobs in and out of DataFrames and streams, and handlers on executors.

    spark.read.format("jqueue").load("s3://bucket/queue.json")
    df.write.format("jqueue").mode("append").option("entrypoint", "resize").save("s3://bucket/queue.json")

The queue stays the one point of commit; Spark brings the machines. It needs `pip install "jqueue[spark]"` and Java 17.
"""
