// Numbers, sizes, times and durations as texts.

export function count(number) {
  return number.toLocaleString("en");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) seconds = 0;
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function ago(at, now) {
  if (at === null || at === undefined) return "–";
  const seconds = now - at;
  if (seconds < -1) return `in ${duration(-seconds)}`;
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`;
}

// A time in UTC, as the commands print it.
export function moment(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  return Number.isNaN(date.getTime()) ? "–" : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function bytes(number) {
  if (number < 1024) return counted(number, "byte");
  if (number < 1 << 20) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / (1 << 20)).toFixed(1)} MiB`;
}

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond >= 10) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 0.1) return `${perSecond.toFixed(1)}/s`;
  return perSecond * 60 >= 0.1 ? `${(perSecond * 60).toFixed(1)}/min` : `${(perSecond * 3600).toFixed(1)}/h`;
}

export function counted(number, one, many = `${one}s`) {
  return number === 1 ? `1 ${one}` : `${count(number)} ${many}`;
}

export function inJobs(number) {
  return counted(number, "job");
}

export const STATES = {
  ready: "ready",
  scheduled: "scheduled",
  expired: "expired",
  in_progress: "in progress",
  dead: "dead",
  completed: "completed",
};

export const AGES = [
  ["", "any time"], ["60", "1 minute"], ["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "1 week"],
];
