// Actions: a question first, one request, a word on how it went, and a way back where there is one.

import { foreign, h } from "./dom.js";
import { count, counted, inJobs } from "./format.js";

const NOTE_SECONDS = 12;

// Ask a question in a dialog. Resolves to the values of the form's fields, or to null if it was cancelled.
export function ask({ title, text = [], fields = [], confirm, danger = false }) {
  return new Promise((resolve) => {
    const inputs = fields.map((field) => {
      const { label, hint, name, ...properties } = field;
      return { name, input: h("input", { id: `field-${name}`, name, autocomplete: "off", ...properties }), label, hint };
    });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "question" }, title),
      h("div", { class: "text" }, text),
      inputs.map(({ name, input, label, hint }) =>
        h("p", { class: "field" }, h("label", { for: `field-${name}` }, label), input, hint && h("small", {}, hint))),
      h("p", { class: "buttons" },
        h("button", { type: "button", value: "no", onclick: () => dialog.close("no") }, "Keep as it is"),
        h("button", { type: "submit", value: "yes", class: danger ? "danger" : "primary" }, confirm)),
    );
    form.onsubmit = (event) => {
      event.preventDefault();
      dialog.close("yes");
    };
    const before = document.activeElement;
    const dialog = h("dialog", { "aria-labelledby": "question" }, form);
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries(inputs.map(({ name, input }) => [name, input.value.trim()]));
      dialog.remove();
      before?.focus?.();
      resolve(dialog.returnValue === "yes" ? values : null);
    });
    document.body.append(dialog);
    dialog.returnValue = "";
    dialog.showModal();
    if (!inputs.length) form.querySelector("button").focus();
  });
}

// Say something in the corner, with a button if it can be undone.
export function note(parts, { undo = null, error = false } = {}) {
  const place = document.getElementById(error ? "alerts" : "notes");
  const box = h("div", { class: error ? "note error" : "note" }, h("span", {}, parts));
  const leave = () => box.remove();
  if (undo) {
    const back = () => {
      leave();
      undo();
    };
    box.append(h("button", { type: "button", onclick: back }, "Undo"));
  }
  box.append(h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: leave }, "×"));
  place.append(box);
  while (place.children.length > 4) place.firstChild.remove();
  if (!error) setTimeout(leave, NOTE_SECONDS * 1000);
}

// How an action on several jobs went, in words.
function summary(done, found) {
  return `${done}: ${count(found.done)}` + (found.changed ? `; ${count(found.changed)} had changed meanwhile` : "")
    + (found.refused ? `; ${count(found.refused)} were refused, as their unique keys are taken` : "")
    + (found.left ? `; ${count(found.left)} are left: do it again` : "");
}

// What is asked before an action on one job, and what is said after it.
const OF_JOB = {
  cancel: { title: "Cancel this job?", text: "The job leaves the queue with its payload. This cannot be undone.",
    confirm: "Cancel the job", danger: true, done: "Cancelled the job " },
  stop: { title: "Stop this job?", text: "Its worker is told at its next heartbeat. If the job finishes before, it is done.",
    confirm: "Stop the job", danger: true, done: "The worker will be told to stop the job " },
  redrive: { title: "Queue this job again?", text: "Its failures are forgotten, and it waits behind the jobs of its priority.",
    confirm: "Queue it again", done: "Queued again: " },
  remove: { title: "Remove this job for good?", text: "Its payload goes too. This cannot be undone.",
    confirm: "Remove the job", danger: true, done: "Removed: " },
};

// The same for a cron entry.
const OF_ENTRY = {
  unschedule: { title: "Remove this cron entry?", confirm: "Remove the entry", danger: true, done: "Removed the cron entry ",
    text: "It adds no more jobs. Those that it has added stay. This cannot be undone." },
  "run-schedule": { title: "Run this cron entry now?", confirm: "Add the job", done: "Added job ",
    text: "One more job is added now. The times of the entry stay as they are." },
};

// The same for the dead jobs of an entrypoint with one error.
const OF_GROUP = {
  "redrive-group": { title: (which) => `Queue ${which} again?`, confirm: "Queue again", done: "Queued again",
    text: "Their failures are forgotten. A job whose unique key is taken stays dead." },
  "remove-group": { title: (which) => `Remove ${which} for good?`, confirm: "Remove", danger: true, done: "Removed",
    text: "Their payloads go too. Jobs that have died since you looked stay. This cannot be undone." },
};

export class Actions {
  // `source` carries them out; `refresh` is called after each, whatever came of it.
  constructor(source, refresh) {
    this.source = source;
    this.refresh = refresh;
    this.allowed = new Set();
  }

  may(name) {
    return this.allowed.has(name);
  }

  // Carry out an action. Returns the answer, or null if it was refused; the user has been told.
  async send(name, body, done, undo = null) {
    try {
      const answer = await this.source.act(name, body);
      note(typeof done === "function" ? done(answer) : done, { undo: undo && (() => undo(answer)) });
      return answer;
    } catch (error) {
      const changed = error.kind === "changed" ? "Nothing was done: " : "";
      note([changed, foreign(error.message)], { error: true });
      return null;
    } finally {
      this.refresh();
    }
  }

  async onJob(name, job) {
    const { text, done, ...question } = OF_JOB[name];
    const answer = await ask({ ...question,
      text: [h("p", {}, foreign(job.id, { class: "id" }), " of ", foreign(job.entrypoint)), h("p", {}, text)] });
    const stop = name === "stop", body = { id: job.id, seen: job.seen, running: stop };
    return answer && this.send(stop ? "cancel" : name, body, [done, foreign(job.id)]);
  }

  async onEntry(name, entry) {
    const { text, done, ...question } = OF_ENTRY[name];
    const answer = await ask({ ...question,
      text: [h("p", {}, foreign(entry.name), " of ", foreign(entry.entrypoint)), h("p", {}, text)] });
    const body = { name: entry.name, seen: [entry.cron, entry.timezone, entry.entrypoint] };
    return answer && this.send(name, body, (found) => [done, foreign(found.id ?? entry.name)]);
  }

  async onGroup(name, group, seenAt) {
    const { title, text, done, ...question } = OF_GROUP[name];
    const answer = await ask({ ...question, title: title(group.jobs === 1 ? "this job" : `these ${count(group.jobs)} jobs`),
      text: [h("p", {}, foreign(group.entrypoint), ": ", foreign(group.pattern || "no error")), h("p", {}, text)] });
    const body = { entrypoint: group.entrypoint, pattern: group.pattern, seen_at: seenAt };
    return answer && this.send(name, body, (found) => summary(done, found));
  }

  async cancelFound(page, query) {
    const answer = await ask({
      title: `Cancel ${inJobs(page.total)}?`,
      text: h("p", {}, "They leave the queue with their payloads. Jobs that a worker has claimed meanwhile, and jobs added "
        + "since you looked, stay. This cannot be undone."),
      confirm: "Cancel them",
      danger: true,
    });
    const asked = Object.fromEntries(["state", "entrypoint", "text", "holder"].map((name) => [name, query.get(name) || ""]));
    return answer && this.send("cancel-found", { query: asked, seen_at: page.now }, (found) => summary("Cancelled", found));
  }

  async purge(entrypoint, number, seenAt) {
    const answer = await ask({
      title: `Remove ${counted(number, "dead job")} for good?`,
      text: [entrypoint === null ? h("p", {}, "All dead jobs of the queue.") : h("p", {}, "Of ", foreign(entrypoint)),
        h("p", {}, "Their payloads go too. Jobs that have died since you looked stay. This cannot be undone.")],
      confirm: "Remove them",
      danger: true,
    });
    if (!answer) return null;
    return this.send("purge", { entrypoint, seen_at: seenAt }, (found) => `Removed: ${count(found.done)}`);
  }

  // Set the time of a job: null is at once. It can be undone as long as nobody else has changed the job.
  async reschedule(job, runAt, said) {
    return this.send("reschedule", { id: job.id, seen: job.seen, run_at: runAt }, said, (answer) =>
      this.send("reschedule", { id: job.id, seen: answer.seen, run_at: job.times?.run_at ?? null },
        ["Undone: ", foreign(job.id)]));
  }

  async runNow(job) {
    const answer = await ask({
      title: "Run this job now?",
      text: h("p", {}, foreign(job.id, { class: "id" }), " becomes ready at once."),
      confirm: "Run now",
    });
    return answer && this.reschedule(job, null, ["Ready now: ", foreign(job.id)]);
  }

  async postpone(job, now) {
    const answer = await ask({
      title: "Run this job later",
      fields: [{ name: "minutes", label: "Minutes from now", type: "number", min: "0", step: "any", required: true,
        inputmode: "decimal" }],
      confirm: "Reschedule",
    });
    if (!answer) return null;
    return this.reschedule(job, now + Number(answer.minutes) * 60, ["Rescheduled: ", foreign(job.id)]);
  }

  async reprioritise(job) {
    const answer = await ask({
      title: "Change the priority",
      fields: [{ name: "priority", label: "Priority", hint: "A lower number is served first.", type: "number", step: "1",
        min: "-2147483648", max: "2147483647", required: true, value: String(job.priority) }],
      confirm: "Change",
    });
    if (!answer) return null;
    return this.send("reprioritise", { id: job.id, seen: job.seen, priority: Number(answer.priority) },
      ["New priority for ", foreign(job.id)],
      (done) => this.send("reprioritise", { id: job.id, seen: done.seen, priority: job.priority },
        ["Undone: ", foreign(job.id)]));
  }

  async pause(row) {
    const paused = row.limits.paused;
    const answer = await ask({
      title: paused ? "Resume this entrypoint?" : "Pause this entrypoint?",
      text: [h("p", {}, foreign(row.name)),
        h("p", {}, paused ? "Workers claim its jobs again."
          : "Workers claim none of its jobs until it is resumed. Jobs in progress go on.")],
      confirm: paused ? "Resume" : "Pause",
    });
    if (!answer) return null;
    const body = { entrypoint: row.name, seen: row.limits };
    const undo = { entrypoint: row.name, seen: { ...row.limits, paused: !paused } };
    return this.send(paused ? "resume" : "pause", body, [paused ? "Resumed: " : "Paused: ", foreign(row.name)],
      () => this.send(paused ? "pause" : "resume", undo, ["Undone: ", foreign(row.name)]));
  }

  // Set the limits of an entrypoint. Without a name, the form asks for it: limits may be set before the first job.
  async limit(row) {
    const { running, rate, per } = row.limits;
    const number = { type: "number", min: "1", step: "1" };
    const { entrypoint, ...answer } = await ask({
      title: "Limits of an entrypoint",
      text: [row.name && h("p", {}, foreign(row.name)), h("p", {}, "They hold for all workers. An empty field is no limit.")],
      fields: [
        ...(row.name ? [] : [{ name: "entrypoint", label: "Entrypoint", required: true }]),
        { ...number, name: "running", label: "Jobs in progress at once", value: running ?? "" },
        { ...number, name: "rate", label: "Jobs started …", value: rate ?? "" },
        { ...number, name: "per", label: "… within any so many seconds", min: "0.001", step: "any", value: per ?? "" },
      ],
      confirm: "Set the limits",
    }) || {};
    const name = row.name || entrypoint;
    if (answer.running === undefined) return null;
    const wanted = Object.fromEntries(Object.entries(answer).map(([field, text]) => [field, text ? Number(text) : null]));
    const undo = { entrypoint: name, seen: { paused: row.limits.paused, ...wanted }, running, rate, per };
    return this.send("limit", { entrypoint: name, seen: row.limits, ...wanted }, ["New limits for ", foreign(name)],
      () => this.send("limit", undo, ["Undone: ", foreign(name)]));
  }
}
