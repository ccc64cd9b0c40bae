"""Reads the text format of Prometheus with the parser of its client."""

from prometheus_client.parser import text_string_to_metric_families


def samples_of(text):
    """The value of each sample, by its name and its labels besides the queue."""
    found = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "queue")
            key = (sample.name, *labels)
            assert key not in found
            found[key] = sample.value
    return found
