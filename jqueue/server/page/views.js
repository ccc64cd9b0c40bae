// The views of figures: overview, workers, cron entries, limits, dead letters, the store. Each returns elements.

import { SPANS, chart, wholeTime } from "./charts.js";
import { excerpt, foreign, h, pointsAtRow, visible } from "./dom.js";
import { absent, ago, bytes, count, counted, duration, local, moment, rate, words } from "./format.js";

export const figure = (label) => ({ label, number: true });
export const hidden = (label) => ({ label, hidden: true });

export function table(caption, labels, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const columns = labels.map((column) => (typeof column === "string" ? { label: column } : column));
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": column.sorted },
    column.hidden ? h("span", { class: "unseen" }, column.label)
      : column.sort ? h("button", { type: "button", onclick: column.sort }, column.label) : column.label)));
  const body = rows.map(({ key, cells }) => h("tr", { "data-key": key }, cells.map((cell, number) =>
    h("td", { "data-label": columns[number].hidden ? null : columns[number].label,
      class: columns[number].number ? "number" : columns[number].hidden ? "actions" : null }, Array.isArray(cell) ? h("span", {}, cell) : cell))));
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body)));
}

// The heading of a view, with its buttons.
export function heading(title, ...buttons) {
  return h("div", { class: "title" }, h("h1", { tabindex: "-1" }, title), h("span", { class: "row-actions" }, buttons));
}

// What a view shows as long as it has nothing to show, with the reason if it was refused.
export function pending(wrong) {
  return wrong ? h("p", { class: "warning", role: "alert" }, foreign(wrong)) : h("p", { class: "empty" }, "Loading…");
}

export const link = (query, ...parts) => h("a", { href: `#/jobs?${new URLSearchParams(query)}` }, ...parts);
export const when = (at, now) => h("time", { title: moment(at) }, ago(at, now));
export const clock = (at) => h("time", { title: moment(at) }, local(at));

function card(label, value, { href = null, tone = "", hint = null } = {}) {
  const body = [h("span", { class: "label" }, label), h("span", { class: "value" }, value), hint && h("small", {}, hint)];
  return h("li", { class: `card ${tone}` }, href ? h("a", { href }, body) : h("div", {}, body));
}

function cards(figures, held) {
  const { totals, rates } = figures, lately = rates?.last_minute;
  return h("ul", { class: "cards" },
    card("Ready", count(figures.ready), { href: "#/jobs?state=ready", hint: held }),
    card("Scheduled", count(figures.scheduled), { href: "#/jobs?state=scheduled" }),
    figures.waiting > 0 && card("Waiting", count(figures.waiting), { href: "#/jobs?state=waiting", hint: "for their parents" }),
    card("In progress", count(figures.in_progress), { href: "#/jobs?state=in_progress" }),
    card("Dead", count(figures.dead), { href: "#/dead", tone: figures.dead ? "bad" : "" }),
    card("Oldest ready", age(figures), { href: "#/jobs?state=ready&order=oldest", hint: "waits for" }),
    totals && card("Done", rate(lately.done), { hint: `${count(totals.done)} in all` }),
    totals && card("Failed", rate(lately.failed), { tone: lately.failed ? "warn" : "", hint: `${count(totals.failed)} in all` }));
}

function charts(points, redraw) {
  const draw = (title, series, format, stacked) => chart(title, points, series, format, redraw, stacked);
  return h("div", { class: "charts" },
    draw("Jobs", [["queued", "queued"], ["in_progress", "in progress"], ["dead", "dead"]], (value) => count(Math.round(value)), true),
    draw("Rates", [["enqueued", "enqueued"], ["done", "done"], ["failed", "failed"]], rate),
    draw("Wait", [["wait50", "median"], ["wait95", "95th percentile"]], duration),
    draw("Run time", [["run50", "median"], ["run95", "95th percentile"]], duration));
}

const age = ({ oldest_ready_seconds: seconds }) => duration(seconds && Math.floor(seconds));

function pair(low, high) {
  if (absent(low)) return null;
  return low === high ? `≤ ${duration(high)}` : `${duration(low)} / ${duration(high)}`;
}

export function overview({ state, samples, query, actions, view, redraw }) {
  const name = query.get("entrypoint") || "";
  const row = state.rows.find((each) => each.name === name), chosen = row ? name : "";
  const held = state.rows.reduce((sum, each) => sum + (each.why_waiting ? each.ready : 0), 0);
  const choices = state.rows.slice(0, 200), span = query.get("span") || SPANS[0][0], points = samples.points(chosen, span);
  const go = (asked) => {
    const values = Object.entries({ entrypoint: chosen, span, ...asked }).filter(([, value]) => value && value !== SPANS[0][0]);
    location.hash = `#/?${new URLSearchParams(values)}`;
  };
  return [
    h("div", { class: "title" }, h("h1", { tabindex: "-1" }, "Overview"),
      h("label", { class: "choice" }, h("span", { class: "unseen" }, "Time "),
        h("select", { onchange: (event) => go({ span: event.target.value }), value: span },
          SPANS.map(([value, label]) => h("option", { value, selected: value === span }, label)))),
      choices.length > 1 && h("label", { class: "choice" }, h("span", { class: "unseen" }, "Entrypoint "),
        h("select", { onchange: (event) => go({ entrypoint: event.target.value }), value: chosen },
          h("option", { value: "", selected: !chosen }, "all entrypoints"),
          choices.map((each) => h("option", { value: each.name, selected: each.name === chosen }, visible(each.name)))))),
    cards(row ?? state, row ? row.why_waiting : held ? `${count(held)} held up` : null),
    charts(points, redraw),
    h("p", { class: "hint" }, wholeTime(redraw),
      "Rates and percentiles of the last minute. Percentiles are rounded up to the next of 1, 2, 4, 8 …"),
    h("h2", {}, "Entrypoints"),
    entrypoints(state, samples, actions, view, redraw),
  ];
}

function rulesOf({ name, paused, max_running, rate, per, key_rate, key_per }) {
  const seen = { paused, max_running, rate, per, key_rate, key_per };
  return { name, body: { entrypoint: name, seen }, values: seen };
}

const SHOWN = 15; // entrypoints that are shown at first

let order = { label: null, down: true }; // of the entrypoints: by a column, or those with problems first

const why = (row) => row.why_waiting || (row.paused && "paused");
const problems = (row) => (row.dead > 0 || row.rates?.last_minute.failed > 0 ? 2 : 0) + (why(row) ? 1 : 0);

// The entrypoints in the chosen order. While the pointer is over one, they stay where they are.
function ordered(rows, columns, view) {
  const value = columns.find(({ label }) => label === order.label)?.value ?? problems;
  const size = (row) => value(row) ?? -1;
  const compare = (a, b) => (order.down ? 1 : -1) * (size(b) > size(a) ? 1 : size(b) < size(a) ? -1 : 0);
  const place = new Map(pointsAtRow() ? view.order : []);
  const sorted = [...rows].sort((a, b) => (place.get(a.name) ?? Infinity) - (place.get(b.name) ?? Infinity) || compare(a, b));
  view.order = sorted.map((row, number) => [row.name, number]);
  return sorted;
}

function entrypoints(state, samples, actions, view, redraw) {
  const lately = (row) => samples.lately(row.name), rates = (row) => row.rates?.last_minute;
  const columns = [
    ["Entrypoint", (row) => row.name], ["Ready", (row) => row.ready], ["Scheduled", (row) => row.scheduled],
    ["In progress", (row) => row.in_progress], ["Dead", (row) => row.dead], ["Oldest", (row) => row.oldest_ready_seconds],
    ["Done", (row) => rates(row)?.done], ["Failed", (row) => rates(row)?.failed],
    ["Wait p50/p95", (row) => lately(row).wait95], ["Run p50/p95", (row) => lately(row).run95],
  ].map(([label, value], number) => ({ label, value, number: number > 0,
    sorted: order.label !== label ? "none" : order.down ? "descending" : "ascending",
    sort: () => {
      order = { label, down: order.label === label ? !order.down : number > 0 };
      delete view.order;
      redraw();
    } }));
  const all = ordered(state.rows, columns, view), shown = view.all ? all : all.slice(0, SHOWN), more = all.slice(shown.length);
  const rows = shown.map((row) => {
    const cell = (name) => row[name] > 0 && link({ state: name, entrypoint: row.name }, count(row[name]));
    return { key: `e:${row.name}`, cells: [
      h("span", { class: "named" }, link({ entrypoint: row.name }, foreign(row.name)),
        why(row) && h("span", { class: "badge paused" }, why(row))),
      cell("ready"), cell("scheduled"), cell("in_progress"), cell("dead"), row.ready > 0 && age(row),
      rates(row)?.done > 0 && rate(rates(row).done), rates(row)?.failed > 0 && rate(rates(row).failed),
      pair(lately(row).wait50, lately(row).wait95), pair(lately(row).run50, lately(row).run95),
      actions.button(row.paused ? "resume" : "pause", rulesOf(row)),
    ] };
  });
  const bad = more.filter(problems).length, ready = more.reduce((sum, row) => sum + row.ready, 0);
  return [table("Entrypoints", [...columns, hidden("Actions")], rows, "No entrypoints yet: the first job brings one."),
    more.length > 0 && h("p", { class: "pager" }, h("button", { type: "button", onclick: () => [view.all = true, redraw()] },
      `Show ${counted(more.length, "more entrypoint")}: ${counted(ready, "ready job")}, ${bad ? `${count(bad)} with problems` : "no problems"}`))];
}

// The path from this queue's page to that of another one.
export const pathTo = (state, number) => `${state.place ? "../../" : "./"}${number ? `queues/${number}/` : ""}`;

export function queues({ state, others = [] }) {
  const columns = ["Queue", figure("Ready"), figure("Scheduled"), figure("In progress"), figure("Dead"), figure("Oldest"),
    figure("Done"), figure("Failed"), figure("Workers"), "Problems"];
  const rows = state.queues.map((name, number) => {
    const { values, error } = others[number] ?? {}, lately = values?.rates?.last_minute, to = pathTo(state, number);
    const cell = (field) => values?.[field] > 0 && h("a", { href: `${to}#/jobs?state=${field}` }, count(values[field]));
    return { key: `q:${number}`, cells: [h("a", { href: `${to}#/` }, foreign(name)), cell("ready"), cell("scheduled"), cell("in_progress"),
      values?.dead > 0 && h("a", { href: `${to}#/dead` }, count(values.dead)), values?.ready > 0 && age(values),
      lately && rate(lately.done), lately && rate(lately.failed), values && count(values.workers),
      excerpt(error ?? values?.warnings.join(" ")) ?? (values ? null : "Loading…")] };
  });
  return [heading("Queues"), table("Queues", columns, rows, "")];
}

export function workers({ state, actions }) {
  const columns = ["Worker", "Host", figure("Busy"), "Entrypoints", "Started", "Seen", "Version", hidden("Actions")];
  const rows = state.workers_seen.filter((each) => each.worker).map((worker) => ({ key: `w:${worker.holder}`, cells: [
    foreign(worker.name), h("span", { class: "whole" }, foreign(worker.host), `:${worker.pid}`),
    link({ holder: worker.holder }, `${worker.jobs} of ${worker.slots}`),
    h("span", { class: "list", title: visible(worker.entrypoints.join(", ")) }, worker.entrypoints.map((name, number, all) => [h("span", {}, foreign(name), number < all.length - 1 && ","), " "])),
    when(state.now - worker.runs_seconds, state.now), [worker.lost && "lost, ", when(worker.last_commit_at, state.now)],
    foreign(worker.version),
    worker.stopping ? h("span", { class: "badge paused" }, "told to stop")
      : actions.row(actions.of("worker"), { name: worker.holder, body: { worker: worker.holder } }),
  ] }));
  const others = state.workers_seen.filter((each) => !each.worker);
  return [heading("Workers"),
    h("p", { class: "hint" }, "A worker commits once a minute. One that was not seen for two minutes is lost, and is shown for an hour."),
    table("Workers", columns, rows, "No worker was seen within the last hour."),
    others.length ? [h("h2", {}, "Other holders of jobs"),
      table("Other holders of jobs", ["Holder", figure("Jobs")], others.map(({ holder, jobs }) =>
        ({ key: `h:${holder}`, cells: [foreign(holder), link({ holder }, count(jobs))] })), "")] : null];
}

const origin = (rule) => rule.by_operator && [" ", h("small", {}, "set by an operator")];
const hides = (rule) => [rule.paused ? "pause-schedule" : "resume-schedule", !rule.by_operator && "reset-schedule"];

export function schedules({ state, actions }) {
  const columns = ["Name", "Cron", "Time zone", "Entrypoint", "Last", "Next", hidden("Actions")];
  const last = (run) => run && h("span", {}, h("a", { href: `#/job?${new URLSearchParams({ id: run.id })}` }, when(run.at, state.now)),
    run.state && [" ", h("span", { class: `badge ${run.state}` }, words(run.state))]);
  const rows = state.schedules.map((entry) => ({ key: `s:${entry.name}`, cells: [
    [foreign(entry.name), origin(entry)], h("code", { class: "whole", title: visible(entry.cron) }, visible(entry.cron)), foreign(entry.timezone),
    link({ entrypoint: entry.entrypoint }, foreign(entry.entrypoint)),
    last(state.last_runs[entry.name]),
    entry.paused ? h("span", { class: "badge paused" }, "paused") : [when(entry.next_at, state.now), " ", h("small", {}, clock(entry.next_at))],
    actions.row(actions.of("entry").filter((name) => !hides(entry).includes(name)), { name: entry.name, of: entry.entrypoint, values: entry,
      body: { name: entry.name, seen: [entry.cron, entry.timezone, entry.entrypoint, entry.priority] } }),
  ] }));
  return [heading("Schedules", actions.button("schedule", { body: { seen: null } }, "Add a cron entry…")),
    table("Cron entries", columns, rows, "No cron entries. A program sets one with queue.schedule(…).")];
}

export function limits({ state, actions, view, redraw }) {
  const limited = (row) => row.paused || row.by_operator || [row.max_running, row.rate, row.key_rate].some((each) => each !== null);
  const all = state.rows.filter(limited);
  all.push(...state.rows.filter((row) => !limited(row)));
  const shown = view.all ? all : all.slice(0, Math.max(SHOWN, all.filter(limited).length)), more = all.length - shown.length;
  const columns = ["Entrypoint", figure("In progress"), figure("At most"), figure("Rate"), "Claims", hidden("Actions")];
  const rows = shown.map((row) => ({ key: `l:${row.name}`, cells: [
    [foreign(row.name), origin(row)], count(row.in_progress), row.max_running === null ? "no limit" : count(row.max_running),
    (row.rate === null ? "no limit" : `${count(row.rate)} in ${duration(row.per)}`) +
      (row.key_rate === null ? "" : `; ${count(row.key_rate)} in ${duration(row.key_per)} by key`),
    row.paused ? h("span", { class: "badge paused" }, "paused") : "open",
    actions.row(["limit", row.by_operator && "reset-limits", row.paused ? "resume" : "pause"], rulesOf(row)),
  ] }));
  const open = { body: { seen: { paused: false, max_running: null, rate: null, per: null,
    key_rate: null, key_per: null } } };
  return [heading("Limits", actions.button("limit", open, "Another entrypoint…")),
    table("Limits of entrypoints", columns, rows, "No entrypoints yet."),
    more > 0 && h("p", { class: "pager" }, h("button", { type: "button", onclick: () => [view.all = true, redraw()] },
      `Show ${counted(more, "more entrypoint")} without limits`))];
}

const GROUPS = 20; // groups of dead letters that are shown at first

export function dead({ state, groups, query, actions, wrong }) {
  if (!groups) return [heading("Dead letters"), pending(wrong)];
  const shown = query.get("all") ? groups.groups : groups.groups.slice(0, GROUPS);
  const columns = ["Error", "Entrypoint", figure("Jobs"), "First", "Last", hidden("Actions")];
  const rows = shown.map((group) => {
    const { entrypoint, pattern } = group, filters = { state: "dead", entrypoint, pattern };
    const target = { name: pattern, of: entrypoint, jobs: group.jobs, body: { query: filters, seen_at: groups.now } };
    return { key: `d:${JSON.stringify([entrypoint, pattern])}`, cells: [
      excerpt(pattern) || "no error was kept", foreign(entrypoint), link(filters, count(group.jobs)),
      when(group.first, state.now),
      h("a", { href: `#/job?${new URLSearchParams({ id: group.example })}` }, when(group.last, state.now)),
      actions.row(actions.of("job", ["dead"]), target),
    ] };
  });
  return [
    heading("Dead letters", groups.total > 0 && actions.of("job", ["dead"]).map((name) => actions.button(name,
      { jobs: groups.total, body: { query: { state: "dead" }, seen_at: groups.now } },
      name === "remove" ? "Remove all…" : "Queue all again…"))),
    h("p", { class: "hint" }, groups.total
      ? `${counted(groups.total, "job")} with ${counted(groups.groups_total, "error", "different errors")}. `
        + "Numbers and ids in an error count as the same: #."
      : ""),
    table("Dead letters by error", columns, rows, "No dead letters."),
    shown.length < groups.groups.length && h("p", { class: "pager" },
      h("a", { href: "#/dead?all=1" }, `Show ${count(groups.groups.length - shown.length)} more errors`)),
  ];
}

export function store({ state }) {
  const { store: facts, size, size_limit: most } = state;
  const row = (label, ...value) => [h("dt", {}, label), h("dd", {}, ...value)];
  return [
    heading("Storage"),
    h("dl", { class: "facts" },
      row("Object", foreign(state.queue)),
      row("Size", most > 0 && h("meter", { min: 0, max: 1, low: 0.5, high: 0.8, optimum: 0, value: (size / most).toFixed(3),
        "aria-label": "share of the limit" }), most ? ` ${bytes(size)} of ${bytes(most)}` : bytes(size)),
      state.segments ? row("Segments", `${counted(state.segment_jobs, "job waits", "jobs wait")} in `
        + `${counted(state.segments, "more object")}, ${bytes(state.segment_bytes)}`) : null,
      state.version ? row("Version", count(state.version)) : null,
      facts.id ? row("Queue id", h("code", {}, foreign(facts.id))) : null,
      row("Unreadable lines", count(state.unreadable)),
      row("Features", facts.critical.length ? foreign(facts.critical.join(", ")) : "none beyond the basic ones"),
      row("History", facts.history === null ? "off: queue.configure(history=…) switches it on"
        : `kept for ${duration(facts.history)}, ${counted(facts.history_events, "event")} so far`
          + (facts.history_lost ? `, ${count(facts.history_lost)} lost` : "")),
      row("Dead jobs are kept", absent(state.dead_retention) ? "until they are removed" : duration(state.dead_retention)),
      row("Remembered", `${counted(facts.finished, "finished id")}, ${counted(facts.holds, "unique key")}`)),
  ];
}
