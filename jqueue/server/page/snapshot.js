// The queue as it was when this file was written: the source of the page without a server. Its values stand in the file.

import { App } from "./app.js";
import { Refusal } from "./source.js";

const PAGE = 50;

const bySequence = (a, b) => a.sequence - b.sequence;
const COMPARE = {
  served: (a, b) => a.priority - b.priority || bySequence(a, b),
  oldest: (a, b) => a.since - b.since || bySequence(a, b),
  newest: (a, b) => b.since - a.since || bySequence(b, a),
  attempts: (a, b) => b.tries - a.tries || bySequence(a, b),
  id: (a, b) => (a.id < b.id ? -1 : 1),
};

class SnapshotSource {
  constructor(values) {
    this.values = values;
    this.known = Object.values(values.lists).flatMap((list) => list.jobs);
  }

  async overview() {
    return this.values.overview;
  }

  async get(path, query = {}) {
    return this[path](query);
  }

  // A page of the jobs that the filters pick. `beyond` are those that may fit and are not in the file.
  jobs({ state = "", entrypoint = "", text = "", holder = "", older = 0, pattern, order = "served", start = 0 }) {
    const { lists, overview } = this.values, first = Number(start) || 0;
    const part = text.toLowerCase(), by = holder.toLowerCase();
    const states = state ? state.split(",") : Object.keys(lists);
    const listed = this.known.filter((job) => states.includes(job.state) && (!entrypoint || job.entrypoint === entrypoint));
    const row = overview.entrypoints.find((each) => each.name === entrypoint) || {};
    const number = (name) => (entrypoint ? row[name] : lists[name]?.total) || 0;
    const beyond = Math.max(0, states.reduce((sum, name) => sum + number(name), 0) - listed.length);
    const found = listed.filter((job) => (job.holder || "").toLowerCase().includes(by)
      && (!older || overview.now - job.since > Number(older)) && (pattern === undefined || job.pattern === pattern)
      && [job.id, job.entrypoint, job.holder, job.error, job.unique_key, job.concurrency_key]
        .some((value) => value?.toLowerCase().includes(part))).sort(COMPARE[order] || COMPARE.served);
    return { now: overview.now, total: found.length + (part || by || older || pattern !== undefined ? 0 : beyond), listed: found.length, beyond, start: first,
      page: PAGE, jobs: found.slice(first, first + PAGE) };
  }

  job({ id }) {
    const job = this.known.find((each) => each.id === id);
    if (!job) throw new Refusal("this job is not in the snapshot", 404, "changed");
    return job;
  }

  "job/events"() {
    return { events: [], reason: "A snapshot has no events of jobs. `jqueue show` lists them." };
  }

  dead() {
    return this.values.dead;
  }

  timeline({ entrypoint }) {
    return entrypoint ? { points: [] } : this.values.timeline;
  }
}

new App(new SnapshotSource(JSON.parse(document.getElementById("snapshot").textContent))).start();
