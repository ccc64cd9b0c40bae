// What the page remembers from poll to poll: series over time, and percentiles of the time between two polls.

const SAMPLES = 900;
const WINDOW = 60; // seconds over which percentiles are taken

// The bound in seconds below which a share of the durations lies that came between two histograms.
function quantile(later, earlier, share) {
  const before = new Map(earlier), counts = (later ?? []).map(([, number], place) => number - (before.get(later[place][0]) ?? 0));
  let left = share * counts.reduce((sum, number) => sum + number, 0);
  return left > 0 ? later[counts.findIndex((number) => (left -= number) <= 1e-9)][0] : null;
}

export class Samples {
  constructor() {
    this.samples = [];
    this.earlier = new Map(); // points from the history, by the seconds and the entrypoint; "" is the whole queue
  }

  add({ now, rows, durations, ...whole }) {
    if (now - this.samples.at(-1)?.at < 1) return;
    const first = this.samples.findLast(({ at }) => now - at >= WINDOW) ?? this.samples[0], points = new Map();
    for (const row of [{ ...whole, name: "" }, ...rows.slice(0, 100)]) {
      const { name, ready, scheduled, waiting, in_progress, dead, rates } = row, times = durations[name] ?? {};
      const point = { at: now, queued: ready + scheduled + waiting, in_progress, dead, ...rates?.last_minute, times };
      const before = first?.points.get(name)?.times;
      for (const kind of before ? ["wait", "run"] : []) {
        point[`${kind}50`] = quantile(times[kind], before[kind], 0.5);
        point[`${kind}95`] = quantile(times[kind], before[kind], 0.95);
      }
      points.set(name, point);
    }
    this.samples.push({ at: now, points });
    if (this.samples.length > SAMPLES) this.samples = this.samples.filter((_, number) => number % 2 === 1);
  }

  // Rates and percentiles of the last minute of an entrypoint, or of the whole queue.
  lately(name) {
    return this.samples.at(-1)?.points.get(name) ?? {};
  }

  // The points of some seconds until now: those of the history, and then our own.
  points(name, span) {
    const since = this.samples.at(-1)?.at - span;
    const own = this.samples.filter(({ at }) => at >= since).map(({ at, points }) => points.get(name) ?? { at });
    const first = own[0]?.at ?? Infinity, earlier = (this.earlier.get(span + name) ?? []).filter(({ at }) => at >= since && at < first);
    const begin = earlier.findIndex((point) => point.queued || point.dead || point.enqueued || point.claimed);
    return [...(begin < 0 ? [] : earlier.slice(Math.max(0, begin - 1))), ...own]; // without the time before the first job
  }
}
