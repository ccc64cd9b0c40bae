// The views of jobs: a list with filters, and one job with its whole life.

import { excerpt, foreign, h, patch, svg, visible } from "./dom.js";
import { STATES, absent, ago, bytes, count, counted, duration, exactly, secondsIn, secondsOf, words } from "./format.js";
import { clock, figure, heading, hidden, link, pending, table, when } from "./views.js";

const ORDERS = [
  ["served", "next to be served"], ["newest", "newest first"], ["oldest", "oldest first"], ["attempts", "most attempts"],
  ["id", "by id"],
];

const badge = (job) => h("span", { class: `badge ${job.status}` }, words(job.status), job.cancel_requested && ", told to stop");
const attempts = (job) => count(job.attempts) + (job.failures ? `, ${count(job.failures)} failed` : "");

function progress(job) {
  const { done, total, text } = job.progress ?? {};
  if (absent(done)) return null;
  return h("span", {}, !absent(total) && h("progress", { value: done, max: total || 1, "aria-label": "Progress" }),
    ` ${count(done)}${absent(total) ? "" : ` of ${count(total)}`}`, text && [", ", foreign(text)]);
}

const targetOf = (job) => ({ name: job.id, of: job.entrypoint, body: { id: job.id, seen: job.seen }, values: job });

const OTHERS = ["state", "order", "start", "all"]; // of a query: all else stands in the line of filters
const TERM = /(?:(entrypoint|group|key|error|holder|older|payload|pattern|args\.[^\s:"]+):)?(?:"((?:[^"\\]|\\.)*)"|(\S+))/g;

// The filters in a line such as `entrypoint:mail error:"no server" bob`. Words without a name are a part of any text.
function filtersIn(line) {
  const found = {}, rest = [];
  for (const [, name, quoted, plain] of line.matchAll(TERM)) {
    const value = quoted?.replace(/\\(.)/g, "$1") ?? plain;
    if (name) found[name] = name === "older" ? secondsIn(value) : value;
    else rest.push(value);
  }
  return rest.length ? { ...found, text: rest.join(" ") } : found;
}

const quoted = (value) => (/^[^\s"\\]+$/.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`);

function lineOf(query) {
  return [...query].filter(([name]) => !OTHERS.includes(name)).map(([name, value]) => {
    if (name !== "text") return `${name}:${quoted(name === "older" ? exactly(value) : value)}`;
    return filtersIn(value).text === value ? value : `"${value.replace(/["\\]/g, "\\$&")}"`;
  }).join(" ");
}

// Lines that may be meant by one that is being typed.
function suggestions(line, state, page, reveal) {
  const at = line.search(/\S*$/), [name, value] = line.slice(at).split(/:(.*)/s), jobs = page?.jobs ?? [];
  const values = {
    entrypoint: state.rows.map((row) => row.name), holder: Object.keys(state.holders), older: ["10m", "1h", "1d", "1w"],
    key: jobs.flatMap((job) => [job.unique_key, job.concurrency_key]),
    group: jobs.map((job) => job.group),
    error: jobs.map((job) => job.error?.split(":")[0]),
  };
  const args = jobs.flatMap((job) => [...(job.text ?? "").matchAll(/"([\w-]+)":/g)].map(([, each]) => `args.${each}:`));
  const terms = value === undefined ? [...Object.keys(values).map((each) => `${each}:`), ...(reveal ? ["payload:", ...args] : [])]
    : (values[name] ?? []).filter(Boolean).map((each) => `${name}:${quoted(each)}`);
  return h("datalist", { id: "suggestions" }, [...new Set(terms)].slice(0, 200).map((term) => h("option", { value: line.slice(0, at) + term })));
}

function filters(query, state, page, reveal) {
  const chosen = new Set((query.get("state") || "").split(",").filter(Boolean));
  const figures = state.entrypoints[query.get("entrypoint")] ?? state, line = lineOf(query);
  const go = (form) => {
    const values = new FormData(form), states = values.getAll("state").join();
    const asked = new URLSearchParams({ ...(states && { state: states }), ...filtersIn(values.get("line")) });
    if (values.get("order") !== "served") asked.set("order", values.get("order"));
    const hash = `#/jobs?${asked}`;
    if (location.hash !== hash) location.hash = hash;
  };
  const change = (event) => go(event.target.form);
  const submit = (event) => [event.preventDefault(), go(event.target)];
  const suggest = ({ target }) => patch(target.list, suggestions(target.value, state, page, reveal));
  const typed = document.activeElement?.name === "line" ? document.activeElement.value : line;
  const hint = `Find: ${reveal ? "args.to:bob " : ""}entrypoint:mail key:bob error:"no server", or a part of an id, a key, a holder or an error`;
  return h("form", { class: "filters", onsubmit: submit, role: "search", "aria-label": "Filters" },
    h("fieldset", {}, h("legend", { class: "unseen" }, "States"),
      STATES.map((name) => h("label", { class: "chip" },
        h("input", { type: "checkbox", name: "state", value: name, checked: chosen.has(name), onchange: change }), words(name),
        figures[name] > 0 && h("b", {}, count(figures[name]))))),
    h("input", { type: "search", name: "line", autocomplete: "off", spellcheck: "false", value: line, list: "suggestions",
      "aria-label": "Filters", placeholder: hint, title: hint, onchange: change, oninput: suggest }),
    suggestions(typed, state, page, reveal),
    h("select", { name: "order", "aria-label": "Order", onchange: change },
      ORDERS.map(([value, said]) => h("option", { value, selected: value === (query.get("order") || "served") }, said))));
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
function beyond(page, query) {
  const searched = !absent(page.searched) ? `. ${counted(page.searched, "payload was", "payloads were")} searched` : "";
  if (!page.beyond) return searched;
  if (searched && query.has("all")) {
    const share = page.searched / (page.searched + page.beyond);
    return [". Searching… ", h("progress", { value: share, "aria-label": "Searched" }), ` ${count(page.searched)} payloads so far`];
  }
  if (searched) {
    return [`${searched}, ${count(page.beyond)} were not. `, h("a", { href: `#/jobs?${query}&all=1` }, "Search all of them")];
  }
  const jobs = counted(page.beyond, "more job in a segment is", "more jobs in segments are");
  return ["text", "group", "key", "error"].some((name) => query.has(name)) ? `. ${jobs} not searched: search for a whole id, or use \`jqueue ls\`.`
    : `. ${jobs} not listed.`;
}

// What is selected, and what can be done with it.
function selection({ page, query, view, actions, redraw }, said) {
  const chosen = page.jobs.filter((job) => view.chosen.has(job.id)), whole = chosen.length === page.jobs.length;
  const every = whole && view.every, states = (query.get("state") || STATES.join()).split(",");
  const asked = Object.fromEntries([...query].filter(([name]) => !["order", "start", "all"].includes(name)));
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
  const more = (event) => [view.every = event.target.checked, redraw()];
  const names = chosen.length ? actions.of("job", every ? states : chosen.map((job) => job.status)) : [];
  return h("div", { class: "selection", role: "group", "aria-label": "Selection" },
    h("label", { class: "chip" }, h("input", { type: "checkbox", checked: whole, onchange: all }),
      chosen.length && !whole ? `${chosen.length} selected` : counted(page.jobs.length, "job here", "jobs here")),
    whole && page.total > page.jobs.length && !(page.beyond && !absent(page.searched))
      && h("label", { class: "chip" }, h("input", { type: "checkbox", checked: every, onchange: more }), `all ${count(page.total)} that match`),
    !chosen.length && said,
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
  const columns = [...(choosable ? [hidden("Select")] : []), "Job", "State", "Since", figure("Attempts"),
    figure("Priority"), `${reveal ? "Payload, h" : "H"}older or error`];
  const rows = (page?.jobs || []).map((job) => ({ key: `j:${job.id}`, cells: [
    ...(choosable ? [h("input", { type: "checkbox", checked: view.chosen.has(job.id), onclick: choose(job),
      "aria-label": `Select ${visible(job.id)}` })] : []),
    h("div", { class: "named job" }, foreign(job.entrypoint),
      h("a", { class: "id", href: `#/job?${new URLSearchParams({ id: job.id })}` }, foreign(job.id))),
    badge(job), when(job.since, state.now), job.attempts > 0 && attempts(job), job.priority !== 0 && job.priority, h("div", { class: "rest" }, job.status === "in_progress" && progress(job), excerpt(job.holder || job.error),
      reveal && (job.text ? h("code", { title: visible(job.text) }, foreign(job.text))
        : h("small", {}, job.payload_bytes ? `${bytes(job.payload_bytes)}, not shown here` : "no payload"))),
  ] }));
  const said = page && h("span", { class: "hint" }, page.total || page.searched ? counted(page.total, "job") : "", beyond(page, query),
    view.behind && ". The list stands still while you point at it.");
  return [
    heading("Jobs", actions.of("queue").map((name) => actions.button(name, { body: {} }))),
    filters(query, state, page, reveal),
    choosable ? selection({ page, query, view, actions, redraw }, said) : said && h("p", {}, said),
    page ? table("Jobs", columns, rows, [...query].length ? "No job is like this." : "The queue has no jobs.") : pending(wrong),
    page && pager(page, query),
  ];
}

const TIMES = [["created_at", "Enqueued"], ["run_at", "Not before"], ["expires_at", "Expires"], ["queued_at", "Queued again"],
  ["claimed_at", "Claimed"], ["heartbeat_at", "Last heartbeat"], ["dead_at", "Dead"], ["finished_at", "Finished"]];

const family = (ids) => (ids?.length ? h("ul", {}, ids.map((id) =>
  h("li", {}, h("a", { class: "id", href: `#/job?${new URLSearchParams({ id })}` }, foreign(id))))) : null);

function groupBar(group) {
  if (!group) return null;
  const numbers = [["done", "done"], ["dead", "dead"], ["gone", "gone"], ["waiting", "waiting or running"]];
  const said = numbers.filter(([name]) => group[name]).map(([name, text]) => `${count(group[name])} ${text}`).join(", ");
  return [" ", h("meter", { min: 0, max: group.added || 1, value: (group.added || 0) - (group.waiting || 0), "aria-label": "ended" }),
    ` ${said} of ${counted(group.added || 0, "job")}${group.cancelled ? ", cancelled" : group.ended ? ", ended" : ""}`];
}

function facts(job) {
  const row = (label, value) => (absent(value) || value === "" ? null : [h("dt", {}, label), h("dd", {}, value)]);
  const running = job.status === "in_progress" ? duration(job.now - secondsOf(job.claimed_at ?? job.since)) : null;
  return h("dl", { class: "facts" },
    row("Entrypoint", link({ entrypoint: job.entrypoint }, foreign(job.entrypoint))),
    row("Holder", job.holder && link({ holder: job.holder }, foreign(job.holder))),
    row("Runs for", running),
    row("Progress", job.progress && [progress(job), h("small", {}, ` ${ago(job.progress.at, job.now)}`)]),
    row("Waits because", job.why_waiting?.length ? h("ul", {}, job.why_waiting.map((why) => h("li", {}, foreign(why)))) : null),
    TIMES.map(([name, label]) => job[name] && row(label, [clock(job[name]), h("small", {}, ` ${ago(job[name], job.now)}`)])),
    row("Attempts", attempts(job) + (job.max_attempts ? `; dead after ${counted(job.max_attempts, "failure")}` : "")),
    row("Priority", job.priority),
    row("Claim timeout", job.claim_timeout && duration(job.claim_timeout)),
    row("Parents", family(job.after)), row("Children", family(job.children)),
    row("Unique key", job.unique_key && foreign(job.unique_key)),
    row("Concurrency key", job.concurrency_key && [foreign(job.concurrency_key), `, ${job.concurrency_limit ?? 1} at once`]),
    row("Fair key", job.fair_key && [foreign(job.fair_key), `, weight ${job.fair_weight ?? 1}`]),
    row("Group", job.group && [link({ group: job.group }, foreign(job.group)), groupBar(job.group_status)]),
    row("Result is kept", job.keep_result && duration(job.keep_result)),
    Object.entries(job.headers ?? {}).map(([name, value]) => row(["Header ", foreign(name)], foreign(value))),
    row("Payload", bytes(job.payload_bytes)));
}

// The events of a job, the newest first. A queued job waits for its parents until the last of them has ended.
function phased(events, job) {
  const last = events.events.findIndex(({ event }) => event === "parent ended");
  const from = job?.status === "waiting" ? 0 : last < 0 ? Infinity : last + 1;
  return events.events.map((event, number) => (number >= from && event.after === "queued" ? { ...event, after: "waiting" } : event));
}

function life(job, events) {
  if (!events) return pending();
  if (!events.events.length) {
    return h("p", { class: "empty" }, foreign(events.missing ?? "The history has no events of this job. Is it switched on?"));
  }
  const columns = ["Time", "Event", "State after", figure("Attempt"), figure("Took"), "Holder or error"];
  const rows = phased(events, job).map((event, number) => ({ key: `${events.events.length - number}`, cells: [
    clock(event.at), foreign(event.event), event.after ? foreign(words(event.after)) : "left the queue",
    String(event.attempt),
    event.wait_seconds !== null ? `waited ${duration(event.wait_seconds)}`
      : event.run_seconds !== null ? `ran ${duration(event.run_seconds)}` : "",
    excerpt([event.error || event.holder, event.asked_by && `asked for by ${event.asked_by}`].filter(Boolean).join(", ")),
  ] }));
  return [table("Events", columns, rows, ""), events.more && h("p", {}, "Earlier events are not shown."),
    events.missing && h("p", { class: "warning" }, foreign(events.missing))];
}

const DID = { scheduled: ["was held back for", "is held back for"], queued: ["waited", "waits for"],
  waiting: ["waited for its parents", "waits for its parents for"], in_progress: ["ran", "runs for"],
  tried: ["waited and ran"] };
const ENDED = { ack: "done", nack: "failed", stale: "lost by its worker" };

// The parts of a job's life: from its events, or from what the job itself knows if there is no history.
function parts(job, events) {
  const told = phased(events, job).reverse().map((event) => ({ ...event, at: secondsOf(event.at) }));
  const tried = job?.errors ?? [], end = job?.finished_at ?? job?.dead_at, open = DID[{ ready: "queued" }[job?.status] ?? job?.status];
  const idle = job?.status === "waiting" ? "waiting" : "queued", known = told.length && !events.more ? told : job ? [
    { at: job.created_at, after: tried.length ? "tried" : idle },
    ...tried.map(({ at, error }, number) => ({ at, error, event: "nack", after: number < tried.length - 1 ? "tried" : idle })),
    ...(job.claimed_at ? [{ at: job.claimed_at, after: "in_progress" }] : []),
    ...(end && !tried.some(({ at }) => at === end) ? [{ at: end, event: job.finished_at ? "ack" : "dead" }] : []),
  ].map((event) => ({ ...event, at: secondsOf(event.at) })) : [];
  const found = known.slice(1).flatMap((to, number) => {
    const from = known[number], held = to.wait_seconds !== null && to.at - to.wait_seconds - from.at > 0.1;
    const middle = held ? to.at - to.wait_seconds : from.at;
    return [held && { kind: "scheduled", from: from.at, to: middle }, DID[from.after] && { kind: from.after, from: middle, to: to.at,
      end: ENDED[to.event], error: to.error }].filter(Boolean);
  });
  const last = known.at(-1);
  if (open && last) found.push({ kind: job.status === "scheduled" ? "scheduled" : last.after, from: last.at, to: job.now, open: true });
  return found;
}

function timeline(job, events) {
  const shown = events ? parts(job, events) : [], whole = shown.reduce((sum, { from, to }) => sum + Math.max(to - from, 0), 0) || 1;
  if (!shown.length) return null;
  let at = 0;
  const boxes = shown.map(({ kind, from, to }) => {
    const width = Math.max((Math.max(to - from, 0) / whole) * 1000, 3), box = svg("rect", { x: at, width, height: 10, class: `part-${kind}` });
    at += width;
    return box;
  });
  return [h("h2", {}, "Timeline"), h("div", { class: "block timeline" },
    svg("svg", { viewBox: `0 0 ${at} 10`, preserveAspectRatio: "none", "aria-hidden": "true" }, boxes),
    h("ol", {}, shown.map(({ kind, from, to, end, error, open }) => h("li", {},
      h("span", { class: `key part-${kind}`, "aria-hidden": "true" }), `${DID[kind]?.[open ? 1 : 0] ?? kind} `, h("b", {}, duration(Math.max(to - from, 0))),
      end && [": ", end], h("small", {}, " from ", clock(from)), error && excerpt(error)))))];
}

function errors(job) {
  if (!job.error && !job.errors.length) return null;
  const columns = [figure("Attempt"), "Time", "Error"];
  const rows = [...job.errors].reverse().map((error) => ({ key: `${error.attempt}-${error.at}`, cells: [
    String(error.attempt), clock(error.at), excerpt(error.error)] }));
  return [h("h2", {}, "Errors"),
    job.error && h("pre", { class: "block", tabindex: "0", "aria-label": "Last error" }, visible(job.error)),
    job.error_bytes_dropped ? h("p", { class: "hint" }, `Not kept of it: ${counted(job.error_bytes_dropped, "byte")}.`) : null,
    job.traceback && h("pre", { class: "block", tabindex: "0", "aria-label": "Traceback" }, visible(job.traceback)),
    rows.length ? table("Errors of attempts", columns, rows, "") : null];
}

function steps(job) {
  const rows = job.steps.map((step) => ({ key: `${step.name}-${step.occurrence}`, cells: [
    foreign(step.occurrence > 1 ? `${step.name}, ${step.occurrence}` : step.name), clock(step.at)] }));
  return rows.length ? [h("h2", {}, "Steps done"), table("Steps done", ["Step", "Time"], rows, "")] : null;
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

export function one({ query, job, missing, wrong, events, payload, editable, result, actions, reveal }) {
  const back = h("p", {}, h("a", { href: "#/jobs" }, "← All jobs"));
  const title = h("h1", { tabindex: "-1" }, "Job ", foreign(query.get("id") ?? "", { class: "id" }));
  if (missing) return [back, title, h("p", { class: "empty", role: "status" }, missing), timeline(null, events), life(null, events)];
  if (!job) return [back, heading("Job"), pending(wrong)];
  return [
    back,
    h("div", { class: "title" }, title, badge(job)),
    actions.row(actions.of("job", [job.cancel_requested ? "" : job.status]), targetOf(job)),
    actions.row(actions.of("one job", [job.status]), { ...targetOf(job), values: { payload: editable ?? "" } }),
    facts(job),
    timeline(job, events),
    steps(job),
    errors(job),
    reveal && secret("Payload", payload, () => reveal("payload")),
    reveal && job.has_result && secret("Result", result, () => reveal("result")),
    h("h2", {}, "Events"), life(job, events),
  ];
}
