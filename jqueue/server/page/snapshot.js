// The queue as it was when this file was written: the source of the page without a server. Its values stand in the file.

import { App } from "./app.js";

const PAGE = 50;

// The jobs stand in the order in which they would be served, and each sort keeps it among equal ones.
const COMPARE = {
  served: () => 0,
  oldest: (a, b) => Date.parse(a.since) - Date.parse(b.since),
  newest: (a, b) => Date.parse(b.since) - Date.parse(a.since),
  attempts: (a, b) => b.attempts - a.attempts,
  id: (a, b) => (a.id < b.id ? -1 : 1),
};

const values = JSON.parse(document.getElementById("snapshot").textContent);

const VALUES = {
  // A page of the jobs that the filters pick. `beyond` are those that may fit and are not in the file.
  jobs({ state = "", entrypoint = "", text = "", holder = "", group = "", key = "", error = "", older = 0, pattern, order = "served", start = 0 }) {
    const { totals, overview: { now, entrypoints } } = values, first = Number(start) || 0;
    const states = state ? state.split(",") : Object.keys(totals);
    const listed = values.jobs.filter((job) => states.includes(job.status) && (!entrypoint || job.entrypoint === entrypoint));
    const numbers = entrypoint ? entrypoints[entrypoint] ?? {} : totals;
    const beyond = Math.max(0, states.reduce((sum, name) => sum + (numbers[name] || 0), 0) - listed.length);
    const has = (part, ...places) => places.some((place) => place?.toLowerCase().includes(part.toLowerCase()));
    const jobs = listed.filter((job) => (!holder || has(holder, job.holder)) && (!error || has(error, job.error))
      && (!group || job.group === group)
      && (!key || [job.unique_key, job.concurrency_key].includes(key))
      && (!older || job.seconds > Number(older)) && (pattern === undefined || job.pattern === pattern)
      && has(text, job.id, job.entrypoint, job.holder, job.error, job.unique_key, job.concurrency_key)).sort(COMPARE[order]);
    const total = jobs.length + (text || holder || group || key || error || older || pattern !== undefined ? 0 : beyond);
    return { now, total, listed: jobs.length, beyond, start: first, page: PAGE, jobs: jobs.slice(first, first + PAGE) };
  },
  job({ id }) {
    const job = values.jobs.find((each) => each.id === id);
    if (!job) throw Object.assign(new Error("this job is not in the snapshot"), { status: 404 });
    return job;
  },
  "job/events": () => ({ events: [], missing: "A snapshot has no events of jobs. `jqueue show` lists them." }),
  dead: () => values.dead,
  timeline: ({ entrypoint }) => (entrypoint ? { points: [] } : values.timeline),
};

new App({ overview: async () => values.overview, get: async (path, query = {}) => VALUES[path](query) }).start();
