"""A plain queue for limits: it looks through all its jobs for each claim."""

from dataclasses import dataclass, field


@dataclass
class Record:
    """The plain queue's record of a job. Times are seconds since the beginning."""

    id: str
    entrypoint: str
    priority: int
    key: str | None
    limit: int
    created: int
    place: int
    run_at: int | None
    status: str = "queued"
    attempt: int = 0
    since: int = 0
    cancelled: bool = False


@dataclass
class Rules:
    """Limits of one entrypoint."""

    paused: bool = False
    running: int | None = None
    rate: int | None = None
    per: int | None = None
    claims: list[int] = field(default_factory=list)


class PlainLimits:
    """A queue that looks through all its jobs for each claim."""

    def __init__(self):
        self.jobs, self.rules, self.aging, self.now, self.last_place = [], {}, None, 0, 0

    def next_place(self):
        self.last_place += 1
        return self.last_place

    def rank(self, job):
        if self.aging is None:
            return job.priority
        since = job.created if job.run_at is None else job.run_at
        return job.priority * self.aging + since

    def running(self, **what):
        jobs = [job for job in self.jobs if job.status == "running"]
        return sum(all(getattr(job, name) == value for name, value in what.items()) for job in jobs)

    def is_claimable(self, job):
        rules = self.rules.get(job.entrypoint, Rules())
        if job.status != "queued" or (job.run_at is not None and job.run_at > self.now) or rules.paused:
            return False
        if rules.running is not None and self.running(entrypoint=job.entrypoint) >= rules.running:
            return False
        if rules.rate is not None and sum(self.now - at < rules.per for at in rules.claims) >= rules.rate:
            return False
        return job.key is None or self.running(key=job.key) < job.limit

    def claim(self, names, count, among=None):
        claimed: list[Record] = []
        while len(claimed) < count:
            found = [job for job in self.jobs if among is None or job.id in among]
            found = [job for job in found if names is None or job.entrypoint in names]
            found = [job for job in found if self.is_claimable(job)]
            if not found:
                break
            job = min(found, key=lambda job: (self.rank(job), job.place))
            job.status, job.attempt, job.since = "running", job.attempt + 1, self.now
            rules = self.rules.get(job.entrypoint, Rules())
            if rules.rate is not None:
                kept = rules.per + max(rules.per, 2)  # expired claims count again if the window gets longer
                rules.claims[:] = [at for at in rules.claims if self.now - at < kept] + [self.now]
            claimed.append(job)
        return [(job.id, job.attempt) for job in claimed]

    def fail(self, job, delay=None, dead=False, revoked=False):
        if job.cancelled:
            self.jobs.remove(job)
            return
        job.status = "dead" if dead else "queued"
        if self.aging is not None:
            job.run_at = self.now + (delay or 0)
        elif not revoked:
            job.run_at = self.now + delay if delay else None
        if not dead:
            job.place = self.next_place()

    def hand_back(self, job, delay=None):
        if job.cancelled:
            self.jobs.remove(job)
            return
        job.status = "queued"
        if delay:
            job.run_at = self.now + delay
