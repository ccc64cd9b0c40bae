// Reads the object of a queue, as docs/reference/wire-format.md describes it, and counts what is in it.

const FEATURES = new Set(["limits", "objects", "history", "segments"]);
const KINDS = ["enqueued", "claimed", "done", "failed", "retried", "dead", "cancelled", "expired", "recovered", "removed"];
const RATED = ["enqueued", "claimed", "done", "failed"];
const WINDOWS = [["minute", 60], ["hour", 3600], ["day", 86400]];
const LAST_BUCKET = 41;
const MOMENTS = ["created_at", "run_at", "expires_at", "queued_at", "claimed_at", "heartbeat_at", "dead_at", "finished_at"];
const DIGITS = /0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]+/g;

export class FormatError extends Error {}

// A time of the blob in seconds since 1970; null if there is none. A time without a zone is in UTC.
function seconds(text) {
  if (typeof text !== "string") return null;
  const zoned = /(?:[zZ]|[+-]\d\d:?\d\d)$/.test(text) ? text : `${text}Z`;
  const found = Date.parse(zoned.replace(/(\.\d{3})\d+/, "$1"));
  return Number.isNaN(found) ? null : found / 1000;
}

function fields(value) {
  return value && typeof value === "object" && !Array.isArray(value) ? value : {};
}

// The content of an object, checked as a reader must check it.
export function parse(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new FormatError("the object is not a queue: it is not JSON, or it is cut off");
  }
  if (!found || typeof found !== "object" || !("jobs" in found)) {
    throw new FormatError('the object is not a queue: it is JSON, but has no "jobs"');
  }
  if (Array.isArray(found.jobs)) {
    throw new FormatError("the object is a queue of jqueue 1.0.0, which this page cannot read. The first commit of a newer version converts it");
  }
  if (found.format !== 2) {
    throw new FormatError(`the object has format ${JSON.stringify(found.format)?.slice(0, 40)}, and this page reads only format 2: make the page again with a newer jqueue`);
  }
  const unknown = (Array.isArray(found.critical) ? found.critical : []).filter((name) => !FEATURES.has(name));
  if (unknown.length) {
    throw new FormatError(`the queue uses features that this page does not know (${unknown.join(", ").slice(0, 200)}): make the page again with a newer jqueue`);
  }
  return found;
}

// A job with the names and the times of the page; null for a line that is no job.
function jobOf(id, line, now) {
  if (!line || typeof line.entrypoint !== "string" || typeof line.payload !== "string") return null;
  const times = Object.fromEntries(MOMENTS.map((name) => [name, seconds(line[name])]));
  if (line.holder && times.claimed_at === null) times.claimed_at = times.heartbeat_at;
  const status = line.status || "queued";
  let state = status, since = times.created_at;
  if (status === "queued") {
    since = times.queued_at ?? times.created_at;
    if (times.run_at !== null && times.run_at > (since ?? 0)) since = times.run_at;
    state = times.run_at > now ? "scheduled" : times.expires_at !== null && times.expires_at <= now ? "expired" : "ready";
  } else if (!["in_progress", "dead", "completed"].includes(status)) return null;
  else since = { in_progress: times.claimed_at, dead: times.dead_at, completed: times.finished_at }[status] ?? since;
  return {
    id, line, times, state, since, entrypoint: line.entrypoint, priority: line.priority || 0, sequence: line.sequence || 0,
    tries: Math.max(0, (line.attempt || 0) - (line.attempts_before || 0)),
    failed: Math.max(0, (line.failures || 0) - (status === "in_progress" || status === "completed")), max_attempts: line.max_attempts ?? null,
    holder: line.holder ?? null, error: line.error ?? null, cancel_requested: Boolean(line.cancel_requested), seen: null,
  };
}

function histogram(durations) {
  const [sum = 0, first = 0, numbers = []] = durations || [];
  const counts = new Map();
  numbers.forEach((number, place) => {
    const bound = 2 ** Math.min(first + place, LAST_BUCKET) / 1000;
    if (number) counts.set(bound, (counts.get(bound) || 0) + number);
  });
  return { seconds: sum, counts: [...counts] };
}

// Rates over a window that ends now: those of its current stretch, and the share of the one before in it.
function ratesOf(totals, window, length, now) {
  let [number = 0, start = [], earlier = []] = window || [];
  const at = Math.floor(now / length), passed = (now % length) / length;
  if (at > number) [start, earlier] = [totals, at === number + 1 ? start : totals];
  return Object.fromEntries(RATED.map((kind, place) => {
    const recent = (totals[place] || 0) - (start[place] || 0), before = (start[place] || 0) - (earlier[place] || 0);
    return [kind, Math.max(0, (recent + before * (1 - passed)) / length)];
  }));
}

function totalsOf(counters, now) {
  const [totals = [], waits, runs, windows = []] = counters || [];
  return {
    ...Object.fromEntries(KINDS.map((kind, place) => [kind, totals[place] || 0])),
    waits: histogram(waits), runs: histogram(runs),
    rates: Object.fromEntries(WINDOWS.map(([name, length], place) => [name, ratesOf(totals, windows[place], length, now)])),
  };
}

function joined(histograms) {
  const counts = new Map();
  for (const each of histograms) for (const [bound, number] of each.counts) counts.set(bound, (counts.get(bound) || 0) + number);
  return { seconds: histograms.reduce((sum, each) => sum + each.seconds, 0), counts: [...counts].sort((a, b) => a[0] - b[0]) };
}

function sum(all) {
  const rates = (name) => Object.fromEntries(RATED.map((kind) => [kind, all.reduce((n, each) => n + each.rates[name][kind], 0)]));
  return {
    ...Object.fromEntries(KINDS.map((kind) => [kind, all.reduce((number, each) => number + each[kind], 0)])),
    waits: joined(all.map((each) => each.waits)), runs: joined(all.map((each) => each.runs)),
    rates: Object.fromEntries(WINDOWS.map(([name]) => [name, rates(name)])),
  };
}

const NONE = { ready: 0, scheduled: 0, expired: 0, in_progress: 0, dead: 0, completed: 0, oldest_ready: null, oldest_claim: null };

function census(jobs) {
  const counts = new Map();
  for (const job of jobs) {
    let row = counts.get(job.entrypoint);
    if (!row) counts.set(job.entrypoint, (row = { ...NONE }));
    row[job.state] += 1;
    const oldest = job.state === "ready" ? "oldest_ready" : job.state === "in_progress" ? "oldest_claim" : null;
    const since = job.state === "ready" ? job.times.run_at ?? job.times.created_at : job.times.claimed_at;
    if (oldest && since !== null && (row[oldest] === null || since < row[oldest])) row[oldest] = since;
  }
  return counts;
}

function earlier(a, b) {
  return a === null ? b : b === null ? a : Math.min(a, b);
}

// The number of rows of a claimed range.
function rowsOf(range) {
  return (range.without || []).reduce((number, [first, last]) => number - last + first, range.last - range.first);
}

// The numbers of the jobs in segments, which this page does not read, by entrypoint: they wait, or are in claimed ranges.
function inSegments(content) {
  const counts = new Map();
  const rowOf = (entrypoint) => {
    if (!counts.has(entrypoint)) counts.set(entrypoint, { ...NONE });
    return counts.get(entrypoint);
  };
  for (const segment of Object.values(fields(content.segments))) {
    const row = rowOf(segment.entrypoint);
    const taken = (segment.taken || []).reduce((number, [first, last]) => number + last - first, 0);
    row[segment.scheduled ? "scheduled" : "ready"] += segment.rows - taken;
    if (!segment.scheduled) row.oldest_ready = earlier(row.oldest_ready, segment.oldest ?? 0);
  }
  for (const range of Object.values(fields(content.ranges))) {
    const row = rowOf(range.entrypoint);
    row.in_progress += rowsOf(range);
    row.oldest_claim = earlier(row.oldest_claim, seconds(range.claimed_at));
  }
  return counts;
}

export class Queue {
  // `bytes` is the size of the object, `now` the time in seconds since 1970.
  constructor(content, bytes, now) {
    this.content = content;
    this.bytes = bytes;
    this.jobs = new Map();
    this.unreadable = 0;
    for (const [id, line] of Object.entries(content.jobs)) {
      const job = jobOf(id, line, now);
      if (job) this.jobs.set(id, job);
      else this.unreadable += 1;
    }
  }

  overview(name, now) {
    const { content } = this, rules = fields(content.entrypoints), counters = fields(content.counters);
    const counts = census(this.jobs.values());
    for (const [entrypoint, more] of inSegments(content)) {
      const row = counts.get(entrypoint) || { ...NONE };
      counts.set(entrypoint, row);
      for (const state of ["ready", "scheduled", "in_progress"]) row[state] += more[state];
      for (const oldest of ["oldest_ready", "oldest_claim"]) row[oldest] = earlier(row[oldest], more[oldest]);
    }
    const names = new Set([...counts.keys(), ...Object.keys(rules), ...Object.keys(counters)]);
    names.delete("");
    const rows = [...names].sort().map((entrypoint) => {
      const { paused = false, max_running = null, rate = null, per = null } = fields(rules[entrypoint]);
      return { name: entrypoint, ...(counts.get(entrypoint) || NONE), totals: totalsOf(counters[entrypoint], now),
        limits: { paused, running: max_running, rate, per } };
    });
    if (counters[""]) rows.push({ name: null, ...NONE, totals: totalsOf(counters[""], now), limits: null });
    const figures = { ...NONE, totals: sum(rows.map((row) => row.totals)) };
    for (const row of rows) {
      for (const state of ["ready", "scheduled", "expired", "in_progress", "dead", "completed"]) figures[state] += row[state];
      for (const oldest of ["oldest_ready", "oldest_claim"]) figures[oldest] = earlier(figures[oldest], row[oldest]);
    }
    const holders = {};
    for (const job of this.jobs.values()) {
      if (job.state === "in_progress" && job.holder) holders[job.holder] = (holders[job.holder] || 0) + 1;
    }
    for (const range of Object.values(fields(content.ranges))) {
      if (range.holder) holders[range.holder] = (holders[range.holder] || 0) + rowsOf(range);
    }
    const schedules = Object.entries(fields(content.schedules)).map(([entry, row]) => ({
      name: entry, cron: row.cron, timezone: row.timezone || "UTC", entrypoint: row.entrypoint, next_at: seconds(row.next_at), priority: row.priority || 0 }));
    return {
      name, role: "viewer", actions: [], now, version: content.version || 0, figures, entrypoints: rows, holders,
      workers: this.workers(holders), schedules: schedules.sort((a, b) => a.next_at - b.next_at),
      schedules_total: schedules.length, store: this.store(),
    };
  }

  workers(holders) {
    return Object.values(fields(this.content.workers)).map((worker) => {
      const { name = "", host = "", pid = 0, started = 0, at = 0, slots = 0, entrypoints = [], version = "" } = fields(worker);
      const holder = `${name}@${host}:${pid}`;
      return { name, host, pid, started, at, slots, entrypoints, version, holder, busy: holders[holder] || 0 };
    }).sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  store() {
    const { content } = this, { settings = {}, history } = content;
    const { dead_retention = null, blob_bytes = null, history: kept = null } = fields(settings);
    const limit = blob_bytes ? Math.floor(blob_bytes * 0.9) : 0;
    const warnings = [];
    if (limit && this.bytes > limit / 2) warnings.push(`the object has ${Math.round((this.bytes / limit) * 100)} % of the bytes that it may have`);
    const segments = Object.values(fields(content.segments)), waiting = this.beyond("", new Set(["ready", "scheduled"]));
    if (waiting) warnings.push(`${waiting} waiting jobs are in segments, which this page counts and does not read: \`jqueue dashboard URL\` without --static lists the next of them`);
    if (this.unreadable) warnings.push(`${this.unreadable} lines cannot be read as jobs: mend or remove them in the object`);
    return {
      segments: segments.length, segment_jobs: waiting, segment_bytes: segments.reduce((number, each) => number + each.bytes, 0),
      size: this.bytes, size_limit: limit, unreadable: this.unreadable, warnings, queue: content.queue || "",
      critical: content.critical || [], settings: { dead_retention, blob_bytes, history: kept },
      history_events: history?.last || 0, history_lost: history?.lost || 0,
      commits: Object.entries(fields(content.commits)).map(([writer, { sequence, version, at, cycle }]) =>
        ({ writer, sequence, version, at, cycle })).sort((a, b) => b.version - a.version),
      finished: Object.keys(fields(content.finished)).length, holds: Object.keys(fields(content.holds)).length,
    };
  }

  // The number of jobs in segments, of an entrypoint and of some states; of all if they are empty.
  beyond(entrypoint, states) {
    let number = 0;
    for (const [name, row] of inSegments(this.content)) {
      if (entrypoint && name !== entrypoint) continue;
      for (const state of ["ready", "scheduled", "in_progress"]) if (!states.size || states.has(state)) number += row[state];
    }
    return number;
  }

  // A page of the jobs that the filters pick.
  list({ state = "", entrypoint = "", text = "", holder = "", order = "served", start = 0 }, now) {
    const states = new Set(state.split(",").filter(Boolean)), part = text.toLowerCase(), by = holder.toLowerCase();
    const found = [...this.jobs.values()].filter((job) =>
      (!states.size || states.has(job.state)) && (!entrypoint || job.entrypoint === entrypoint)
      && (!by || (job.holder || "").toLowerCase().includes(by))
      && (!part || [job.id, job.entrypoint, job.holder, job.error, job.line.unique_key, job.line.concurrency_key]
        .some((value) => typeof value === "string" && value.toLowerCase().includes(part))));
    const orders = {
      served: (a, b) => a.priority - b.priority || a.sequence - b.sequence,
      oldest: (a, b) => a.since - b.since || a.sequence - b.sequence,
      newest: (a, b) => b.since - a.since || b.sequence - a.sequence,
      attempts: (a, b) => b.tries - a.tries || a.sequence - b.sequence,
      id: (a, b) => (a.id < b.id ? -1 : 1),
    };
    found.sort(orders[order] || orders.served);
    const first = Number(start) || 0;
    const beyond = by ? 0 : this.beyond(entrypoint, states);
    return { now, total: found.length + (part ? 0 : beyond), listed: found.length, beyond, start: first, page: 50, jobs: found.slice(first, first + 50) };
  }

  // One job with all that is known of it; undefined if it is not here.
  details(id, now) {
    const job = this.jobs.get(id);
    if (!job) return undefined;
    const { line } = job;
    return {
      ...job, now, unique_key: line.unique_key ?? null, claim_timeout: line.claim_timeout ?? null,
      concurrency_key: line.concurrency_key ?? null, concurrency_limit: line.concurrency_limit ?? null,
      keep_result: line.keep_result ?? null, error_dropped: line.error_dropped || 0,
      traceback: line.traceback ?? null, headers: fields(line.headers),
      errors: (line.errors || []).map(([attempt, at, text]) => ({ attempt, at: seconds(at), text })),
      payload_bytes: line.payload_object ? line.payload_object[1] : base64(line.payload).length,
      has_result: "result" in line || Boolean(line.result_object),
    };
  }

  // The events of a job that still stand in the object, the newest first.
  events(id) {
    const { last = 0, batches = [] } = fields(this.content.history), found = [];
    let kept = 0;
    for (const [, number, at, kinds, events] of batches) {
      kept += number;
      for (const [kind, job, attempt = 0, took = null, , error = null] of events) {
        if (job !== id) continue;
        const [, verb, before = null, after = null, holder = null] = kinds[kind];
        const wait = verb === "dequeue" ? took : null, run = verb === "dequeue" ? null : took;
        found.push({ at, verb, before, after, attempt, holder, wait, run, error });
      }
    }
    const reason = "The object has no events of this job. `jqueue dashboard URL` without --static also reads earlier ones.";
    return { events: found.reverse(), more: last > kept, damaged: null, reason };
  }

  dead(now) {
    const groups = new Map();
    let total = 0;
    for (const job of this.jobs.values()) {
      if (job.state !== "dead") continue;
      total += 1;
      const pattern = (job.error || "").trim().split(/\r\n|\r|\n/)[0].slice(0, 200).replace(DIGITS, "#");
      const key = JSON.stringify([job.entrypoint, pattern]);
      const group = groups.get(key) || { entrypoint: job.entrypoint, pattern, jobs: 0, first: job.since, last: job.since, example: job.id };
      groups.set(key, group);
      group.jobs += 1;
      if (job.since >= group.last) [group.last, group.example] = [job.since, job.id];
      group.first = Math.min(group.first, job.since);
    }
    const largest = [...groups.values()].sort((a, b) => b.jobs - a.jobs);
    return { now, total, groups_total: groups.size, groups: largest.slice(0, 200) };
  }
}

export function base64(text) {
  try {
    return Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}
