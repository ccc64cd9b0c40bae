// Numbers, sizes, times and durations as texts. A time is a text in ISO 8601, or seconds since 1970.

export const STATES = ["ready", "scheduled", "waiting", "expired", "in_progress", "dead", "completed"];
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

export const absent = (value) => value === null || value === undefined;
export const words = (state) => state.replace("_", " ");
export const count = (number) => number.toLocaleString("en");
export const counted = (number, one, many = `${one}s`) => (number === 1 ? `1 ${one}` : `${count(number)} ${many}`);
export const secondsOf = (time) => (typeof time === "string" ? Date.parse(time) / 1000 : time);

export function duration(seconds) {
  if (absent(seconds)) return "–";
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const [size, unit] = UNITS.find(([each]) => seconds >= 2 * each) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

// Seconds of a duration such as "90s" or "1h"; a text that is none stays as it is.
const SECONDS = { "": 1, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
export function secondsIn(text) {
  const [, number, unit] = /^([\d.]+)([smhdw]?)$/.exec(text) ?? [];
  return number ? number * SECONDS[unit] : text;
}

// Seconds as such a duration, without a loss.
export function exactly(seconds) {
  const [unit, size] = Object.entries(SECONDS).findLast(([, each]) => seconds >= each && seconds % each === 0) ?? ["", 1];
  return `${seconds / size || seconds}${unit}`;
}

export function ago(time, now) {
  if (absent(time)) return "–";
  const seconds = now - secondsOf(time);
  if (seconds < -1) return `in ${duration(-seconds)}`;
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`;
}

// A time in UTC, as the commands print it.
export function moment(time) {
  const date = new Date(secondsOf(time ?? NaN) * 1000);
  return Number.isNaN(date.getTime()) ? "–" : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// The same by the clock of the browser.
export function local(time) {
  const date = new Date(secondsOf(time ?? NaN) * 1000);
  return Number.isNaN(date.getTime()) ? "–" : date.toLocaleString("sv");
}

export function bytes(number) {
  if (number < 1024) return counted(number, "byte");
  return number < 1 << 20 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / (1 << 20)).toFixed(1)} MiB`;
}

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond >= 10) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 0.1) return `${perSecond.toFixed(1)}/s`;
  return perSecond * 60 >= 0.1 ? `${(perSecond * 60).toFixed(1)}/min` : `${(perSecond * 3600).toFixed(1)}/h`;
}
