// The views of jobs: a list with filters, and one job with its whole life.

import { excerpt, foreign, h, visible } from "./dom.js";
import { STATES, absent, ago, bytes, count, counted, duration, moment, secondsOf, words } from "./format.js";
import { figure, heading, hidden, link, pending, table, when } from "./views.js";

const ORDERS = [
  ["served", "next to be served"], ["newest", "newest first"], ["oldest", "oldest first"], ["attempts", "most attempts"],
  ["id", "by id"],
];
const AGES = [
  ["", "any time"], ["60", "1 minute"], ["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "1 week"],
];

function badge(job) {
  return h("span", { class: `badge ${job.status}` }, words(job.status), job.cancel_requested && ", told to stop");
}

function attempts(job) {
  return count(job.attempts) + (job.failures ? `, ${count(job.failures)} failed` : "");
}

function targetOf(job) {
  return { name: job.id, of: job.entrypoint, body: { id: job.id, seen: job.seen }, values: job };
}

const FIELDS = ["entrypoint", "text", "payload", "holder", "pattern"];

function filters(query, state, reveal) {
  const chosen = new Set((query.get("state") || "").split(",").filter(Boolean));
  const go = (form) => {
    const values = new FormData(form), asked = new URLSearchParams();
    if (values.getAll("state").length) asked.set("state", values.getAll("state").join(","));
    for (const name of [...FIELDS, "older", "order"]) if (values.get(name)) asked.set(name, values.get(name));
    if (asked.get("order") === "served") asked.delete("order");
    const hash = `#/jobs?${asked}`;
    if (location.hash !== hash) location.hash = hash;
  };
  const change = (event) => go(event.target.form);
  const submit = (event) => {
    event.preventDefault();
    go(event.target);
  };
  const text = (name, label, properties) => h("label", {}, label,
    h("input", { name, autocomplete: "off", value: query.get(name) || "", onchange: change, ...properties }));
  const select = (name, label, choices) => h("label", {}, label, h("select", { name, onchange: change },
    choices.map(([value, said]) => h("option", { value, selected: value === (query.get(name) || choices[0][0]) }, said))));
  return h("form", { class: "filters", onsubmit: submit, role: "search", "aria-label": "Filters" },
    h("fieldset", {}, h("legend", { class: "unseen" }, "States"),
      STATES.map((name) => h("label", { class: "chip" },
        h("input", { type: "checkbox", name: "state", value: name, checked: chosen.has(name), onchange: change }), words(name)))),
    text("entrypoint", "Entrypoint", { list: "entrypoints" }),
    h("datalist", { id: "entrypoints" }, state.rows.slice(0, 200).map((row) => h("option", { value: row.name }))),
    text("text", "Id, key, holder or error", { type: "search" }),
    reveal && text("payload", "In payloads", { type: "search" }),
    query.get("holder") && text("holder", "Holder"),
    query.get("pattern") && text("pattern", "Error without numbers"),
    select("older", "Longer than", AGES),
    select("order", "Order", ORDERS),
    h("button", { type: "submit" }, "Find"));
}

function pager(page, query) {
  if (page.listed <= page.page && !page.start) return null;
  const to = (start) => {
    const asked = new URLSearchParams(query);
    if (start > 0) asked.set("start", start);
    else asked.delete("start");
    return `#/jobs?${asked}`;
  };
  const next = page.start + page.page;
  return h("nav", { class: "pager", "aria-label": "Pages" },
    page.start > 0 ? h("a", { href: to(page.start - page.page), rel: "prev" }, "← Back") : h("span", {}, "← Back"),
    h("span", {}, `${count(page.start + 1)} – ${count(Math.min(next, page.listed))} of ${count(page.total)}`),
    next < page.listed ? h("a", { href: to(next), rel: "next" }, "More →") : h("span", {}, "More →"));
}

// A deep queue keeps most of its waiting jobs in segments: only the next of these are listed and searched.
function beyond(page, query, state) {
  const searched = query.get("payload") ? `. ${counted(page.searched, "payload was", "payloads were")} searched` : "";
  if (!page.beyond) return searched;
  if (state.still) {
    return query.get("text") || query.get("holder")
      ? `. ${counted(page.beyond, "more job is", "more jobs are")} not in this snapshot, and not searched.`
      : `. ${count(page.beyond)} of them ${page.beyond === 1 ? "is" : "are"} not in this snapshot.`;
  }
  if (searched) return `${searched}, ${count(page.beyond)} were not: choose a state or an entrypoint.`;
  const jobs = counted(page.beyond, "more job in a segment is", "more jobs in segments are");
  return query.get("text") ? `. ${jobs} not searched: search for a whole id, or use \`jqueue ls\`.`
    : `. ${jobs} not listed.`;
}

// What is selected, and what can be done with it.
function selection({ page, query, view, actions, redraw }) {
  const chosen = page.jobs.filter((job) => view.chosen.has(job.id)), whole = chosen.length === page.jobs.length;
  const every = whole && view.every, states = (query.get("state") || STATES.join()).split(",");
  const asked = Object.fromEntries(["state", "older", ...FIELDS].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const target = (name) => {
    const fits = (state) => actions.table[name].states.includes(state), some = chosen.filter((job) => fits(job.status));
    if (every) {
      const number = states.every(fits) && (page.total > page.listed || !page.beyond) ? page.total : null;
      return { jobs: number, body: { query: asked, seen_at: page.now } };
    }
    return some.length === 1 ? targetOf(some[0]) : { jobs: some.length, body: { jobs: some.map((job) => [job.id, job.seen]) } };
  };
  const all = (event) => {
    for (const job of page.jobs) view.chosen[event.target.checked ? "add" : "delete"](job.id);
    view.every = false;
    redraw();
  };
  const more = (event) => {
    view.every = event.target.checked;
    redraw();
  };
  const names = chosen.length ? actions.of("job", every ? states : chosen.map((job) => job.status)) : [];
  return h("div", { class: "selection", role: "group", "aria-label": "Selection" },
    h("label", { class: "chip" }, h("input", { type: "checkbox", checked: whole, onchange: all }),
      chosen.length && !whole ? `${chosen.length} selected` : counted(page.jobs.length, "job here", "jobs here")),
    whole && page.total > page.jobs.length && !(page.beyond && query.get("payload"))
      && h("label", { class: "chip" }, h("input", { type: "checkbox", checked: every, onchange: more }), `all ${count(page.total)} that match`),
    names.map((name) => actions.button(name, target(name))));
}

export function list({ state, page, query, actions, wrong, view, redraw, reveal }) {
  const choosable = page?.total > 0 && actions.of("job").length > 0;
  const choose = (job) => (event) => {
    const at = page.jobs.indexOf(job), last = page.jobs.findIndex((each) => each.id === view.last);
    const from = event.shiftKey && last >= 0 ? last : at;
    for (const each of page.jobs.slice(Math.min(at, from), Math.max(at, from) + 1)) {
      view.chosen[event.target.checked ? "add" : "delete"](each.id);
    }
    [view.last, view.every] = [job.id, false];
    redraw();
  };
  const columns = [...(choosable ? [hidden("Select")] : []), "Id", "Entrypoint", "State", "Since", figure("Attempts"),
    figure("Priority"), "Holder or error"];
  const rows = (page?.jobs || []).map((job) => ({ key: `j:${job.id}`, cells: [
    ...(choosable ? [h("input", { type: "checkbox", checked: view.chosen.has(job.id), onclick: choose(job),
      "aria-label": `Select ${visible(job.id)}` })] : []),
    h("a", { class: "id", href: `#/job?${new URLSearchParams({ id: job.id })}` }, foreign(job.id)),
    foreign(job.entrypoint), badge(job), when(job.since, state.now),
    attempts(job), job.priority, excerpt(job.holder || job.error || ""),
  ] }));
  return [
    heading("Jobs", actions.of("queue").map((name) => actions.button(name, { body: {} }))),
    filters(query, state, reveal),
    page && h("p", { class: "hint" }, page.total || page.searched ? counted(page.total, "job") : "", beyond(page, query, state)),
    choosable && selection({ page, query, view, actions, redraw }),
    page ? table("Jobs", columns, rows, [...query].length ? "No job is like this." : "The queue has no jobs.") : pending(wrong),
    page && pager(page, query),
  ];
}

const TIMES = [["created_at", "Enqueued"], ["run_at", "Not before"], ["expires_at", "Expires"], ["queued_at", "Queued again"],
  ["claimed_at", "Claimed"], ["heartbeat_at", "Last heartbeat"], ["dead_at", "Dead"], ["finished_at", "Finished"]];

function facts(job) {
  const row = (label, value) => (absent(value) || value === "" ? null : [h("dt", {}, label), h("dd", {}, value)]);
  const running = job.status === "in_progress" ? duration(job.now - secondsOf(job.claimed_at ?? job.since)) : null;
  return h("dl", { class: "facts" },
    row("Entrypoint", link({ entrypoint: job.entrypoint }, foreign(job.entrypoint))),
    row("Holder", job.holder && link({ holder: job.holder }, foreign(job.holder))),
    row("Runs for", running),
    row("Waits because", job.why_waiting?.length ? h("ul", {}, job.why_waiting.map((why) => h("li", {}, foreign(why)))) : null),
    TIMES.map(([name, label]) => job[name] && row(label, [moment(job[name]), h("small", {}, ` ${ago(job[name], job.now)}`)])),
    row("Attempts", attempts(job) + (job.max_attempts ? `; dead after ${counted(job.max_attempts, "failure")}` : "")),
    row("Priority", job.priority),
    row("Claim timeout", job.claim_timeout && duration(job.claim_timeout)),
    row("Unique key", job.unique_key && foreign(job.unique_key)),
    row("Concurrency key", job.concurrency_key && [foreign(job.concurrency_key), `, ${job.concurrency_limit ?? 1} at once`]),
    row("Result is kept", job.keep_result && duration(job.keep_result)),
    Object.entries(job.headers ?? {}).map(([name, value]) => row(["Header ", foreign(name)], foreign(value))),
    row("Payload", bytes(job.payload_bytes)));
}

function life(events) {
  if (!events) return pending();
  if (!events.events.length) {
    return h("p", { class: "empty" }, foreign(events.missing ?? "The history has no events of this job. Is it switched on?"));
  }
  const columns = ["Time", "Event", "State after", figure("Attempt"), figure("Took"), "Holder or error"];
  const rows = events.events.map((event, number) => ({ key: `${events.events.length - number}`, cells: [
    moment(event.at), foreign(event.event), event.after ? foreign(words(event.after)) : "left the queue",
    String(event.attempt),
    event.wait_seconds !== null ? `waited ${duration(event.wait_seconds)}`
      : event.run_seconds !== null ? `ran ${duration(event.run_seconds)}` : "",
    excerpt(event.error || event.holder || ""),
  ] }));
  return [table("Events", columns, rows, ""), events.more && h("p", {}, "Earlier events are not shown."),
    events.missing && h("p", { class: "warning" }, foreign(events.missing))];
}

function errors(job) {
  if (!job.error && !job.errors.length) return null;
  const columns = [figure("Attempt"), "Time", "Error"];
  const rows = [...job.errors].reverse().map((error) => ({ key: `${error.attempt}-${error.at}`, cells: [
    String(error.attempt), moment(error.at), excerpt(error.error)] }));
  return [h("h2", {}, "Errors"),
    job.error && h("pre", { class: "block", tabindex: "0", "aria-label": "Last error" }, visible(job.error)),
    job.error_bytes_dropped ? h("p", { class: "hint" }, `Not kept of it: ${counted(job.error_bytes_dropped, "byte")}.`) : null,
    job.traceback && h("pre", { class: "block", tabindex: "0", "aria-label": "Traceback" }, visible(job.traceback)),
    rows.length ? table("Errors of attempts", columns, rows, "") : null];
}

function secret(title, shown, load) {
  return [h("h2", {}, title),
    shown === undefined
      ? h("p", {}, h("button", { type: "button", onclick: load }, `Show the ${title.toLowerCase()}`), h("small", {}, " It may hold personal data."))
      : h("pre", { class: "block", tabindex: "0", "aria-label": title }, visible(shown))];
}

// A payload as text: as it is, or in base64 if it is no text.
export function payloadText(found) {
  const text = found.text ?? `base64: ${found.base64}`;
  const rest = found.bytes > found.shown ? `\n… ${counted(found.bytes - found.shown, "more byte")}` : "";
  return found.bytes ? text + rest : "(empty)";
}

export function one({ job, missing, wrong, events, payload, result, actions, reveal }) {
  const back = h("p", {}, h("a", { href: "#/jobs" }, "← All jobs"));
  if (missing) return [back, heading("Job"), h("p", { class: "empty", role: "status" }, missing), life(events)];
  if (!job) return [back, heading("Job"), pending(wrong)];
  return [
    back,
    h("div", { class: "title" }, h("h1", { tabindex: "-1" }, "Job ", foreign(job.id, { class: "id" })), badge(job)),
    actions.row(actions.of("job", [job.cancel_requested ? "" : job.status]), targetOf(job)),
    facts(job),
    errors(job),
    reveal && secret("Payload", payload, () => reveal("payload")),
    reveal && job.has_result && secret("Result", result, () => reveal("result")),
    h("h2", {}, "Life"), life(events),
  ];
}
