// What the page remembers from poll to poll: series over time, and percentiles of the time between two polls.

const SAMPLES = 900;
const WINDOW = 60; // seconds over which rates and percentiles are taken

// The bound in seconds below which a share of the durations lies; null without any.
export function quantile(histogram, share) {
  const counts = histogram?.counts || [];
  let left = share * counts.reduce((sum, [, number]) => sum + number, 0);
  if (!left) return null;
  for (const [bound, number] of counts) {
    left -= number;
    if (left <= 1e-9) return bound;
  }
  return null;
}

function difference(later, earlier) {
  const before = new Map(earlier.counts);
  const counts = later.counts.map(([bound, number]) => [bound, number - (before.get(bound) || 0)]);
  return { counts: counts.filter(([, number]) => number > 0) };
}

function slim(figures) {
  const { ready, scheduled, in_progress, dead, totals } = figures;
  return { ready, scheduled, in_progress, dead, totals };
}

export class Samples {
  constructor() {
    this.samples = [];
    this.earlier = new Map(); // points from the history, by entrypoint; "" is the whole queue
  }

  add(overview) {
    const last = this.samples.at(-1);
    if (last && overview.now - last.at < 1) return;
    const entrypoints = new Map();
    for (const row of overview.entrypoints.slice(0, 100)) if (row.name !== null) entrypoints.set(row.name, slim(row));
    this.samples.push({ at: overview.now, whole: slim(overview.figures), entrypoints });
    if (this.samples.length > SAMPLES) this.samples = this.samples.filter((_, number) => number % 2 === 1);
  }

  // Rates and percentiles of the last minute of an entrypoint, or of the whole queue.
  lately(name) {
    return this.samples.length ? this.point(this.samples.length - 1, name) : {};
  }

  point(number, name) {
    const { at } = this.samples[number];
    const figures = this.figures(number, name);
    if (!figures) return { at };
    const found = { at, queued: figures.ready + figures.scheduled, in_progress: figures.in_progress, dead: figures.dead };
    let first = number;
    while (first > 0 && at - this.samples[first].at < WINDOW) first -= 1;
    const before = this.figures(first, name)?.totals, totals = figures.totals;
    if (!totals) return found;
    if (!before || first === number) return { ...found, ...totals.rates.minute };
    const seconds = at - this.samples[first].at;
    for (const kind of ["enqueued", "claimed", "done", "failed"]) {
      found[kind] = Math.max(0, totals[kind] - before[kind]) / seconds;
    }
    const waits = difference(totals.waits, before.waits), runs = difference(totals.runs, before.runs);
    found.wait50 = quantile(waits, 0.5);
    found.wait95 = quantile(waits, 0.95);
    found.run50 = quantile(runs, 0.5);
    found.run95 = quantile(runs, 0.95);
    return found;
  }

  figures(number, name) {
    const sample = this.samples[number];
    return name ? sample.entrypoints.get(name) : sample.whole;
  }

  // All points in time: those of the history, and then our own.
  points(name) {
    const own = this.samples.map((_, number) => this.point(number, name));
    const first = own.length ? own[0].at : Infinity;
    const earlier = (this.earlier.get(name || "") || []).filter((point) => point.at < first);
    const begin = earlier.findIndex((point) => point.queued || point.dead || point.enqueued || point.claimed);
    return [...(begin < 0 ? [] : earlier.slice(Math.max(0, begin - 1))), ...own]; // without the time before the first job
  }
}
