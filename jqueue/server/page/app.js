// The frame of the page: which view is shown, what it needs from the source, and when it is asked for again.

import { Actions, note } from "./actions.js";
import { SPANS } from "./charts.js";
import { foreign, h, patch, pointsAtRow, visible } from "./dom.js";
import { count, moment } from "./format.js";
import { list, one, payloadText } from "./jobs.js";
import { Samples } from "./statistics.js";
import { dead, limits, overview, pathTo, queues, schedules, store, workers } from "./views.js";

const POLL = 1000; // milliseconds between two polls
const POLL_HIDDEN = 15000; // the same while nobody can see the page
const SLOWEST = 30000; // the same when the source does not answer
const SHARE = 20; // a pause is as many times as long as the answers before it took, so that a viewer costs few percent
const BUSIEST = 10000; // milliseconds of the longest such pause
const LATE = 5000; // milliseconds without an answer after which the page no longer says that it is live

const VIEWS = [
  ["/queues", "Queues", queues], ["/", "Overview", overview], ["/jobs", "Jobs", list], ["/workers", "Workers", workers],
  ["/schedules", "Schedules", schedules], ["/limits", "Limits", limits], ["/dead", "Dead letters", dead],
  ["/store", "Storage", store], ["/job", "Job", one],
];

export class App {
  constructor(source) {
    this.source = source;
    this.samples = new Samples();
    this.actions = new Actions(source, () => this.poll(true));
    this.state = null;
    this.view = {}; // what the current view has loaded, and what is selected in it
    this.failures = 0;
    this.round = 0;
  }

  // `wrong` is the reason why the token of the link was refused, if it was.
  start(wrong = null) {
    this.wrong = wrong;
    const theme = h("button", { type: "button", class: "quiet", id: "theme", onclick: () => this.turnTheme(true) }, "Theme");
    document.body.append(
      h("a", { class: "skip", href: "#main", onclick: (event) => {
        event.preventDefault();
        document.getElementById("main").focus();
      } }, "Skip to the content"),
      h("header", {}, h("div", { class: "bar" },
        h("strong", { class: "brand" }, "jqueue"), h("span", { id: "name" }),
        h("span", { id: "live", class: "live" }, "connecting…"), theme,
        h("button", { type: "button", class: "quiet", id: "sign-out", hidden: true, onclick: () => this.signOut() }, "Sign out"))),
      h("nav", { id: "views", "aria-label": "Views" }, h("ul", {})),
      h("div", { id: "trouble", role: "alert" }),
      h("main", { id: "main", tabindex: "-1" }),
      h("div", { class: "corner" },
        h("div", { id: "alerts", role: "alert" }),
        h("div", { id: "notes", role: "status", "aria-live": "polite" })),
    );
    this.turnTheme(false);
    window.addEventListener("hashchange", () => this.show(true));
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
    this.show(false);
    this.poll();
  }

  // Where the address says that we are.
  place() {
    const [path, query] = location.hash.slice(1).split("?");
    const [known, title, render] = VIEWS.find(([each]) => each === (path || "/")) || VIEWS[1];
    return { path: known, title, render, query: new URLSearchParams(query || "") };
  }

  // Show the theme that was chosen, or the next one: as the system has it, dark, light.
  turnTheme(turn) {
    const themes = ["auto", "dark", "light"], root = document.documentElement;
    let theme = root.dataset.theme || "auto";
    const next = () => (turn ? themes[(themes.indexOf(theme) + 1) % 3] : theme);
    try { // without a storage, or with a full one, the choice holds as long as the page is open
      theme = localStorage.getItem("jqueue-theme") || theme;
      localStorage.setItem("jqueue-theme", next());
    } catch {}
    root.dataset.theme = next();
    document.getElementById("theme").textContent = `Theme: ${root.dataset.theme}`;
  }

  // Go to another view. Its heading gets the focus, so that a screen reader says where we are.
  show(moved) {
    if (moved && location.hash.startsWith("#token=")) return;
    this.view = { chosen: new Set() };
    document.querySelector("dialog")?.close();
    this.render();
    this.load();
    if (moved) {
      window.scrollTo(0, 0);
      document.querySelector("main h1")?.focus({ preventScroll: true });
    }
    document.title = `${this.place().title} · jqueue`;
  }

  // Ask the source for news, and then again and again.
  async poll(now = false) {
    clearTimeout(this.timer);
    clearTimeout(this.late);
    const late = () => this.failures || this.trouble(new Error(`There has been no answer for ${LATE / 1000} s`)); // else we know why
    this.late = setTimeout(late, LATE);
    const round = ++this.round, asked = performance.now();
    try {
      const values = await this.source.overview();
      if (round !== this.round) return;
      this.failures = 0;
      this.heard = Date.now();
      if (values) {
        const rows = Object.entries(values.entrypoints).map(([name, row]) => ({ name, ...row }));
        this.state = { ...values, rows };
        this.samples.add(this.state);
        this.actions.table = values.actions;
      }
      this.trouble(null);
      const searches = this.view.page?.beyond > 0 && this.place().query.has("all");
      if (values || now || this.view.behind || searches) await this.load(now);
      this.render();
    } catch (error) {
      if (round !== this.round) return;
      this.failures += 1;
      this.trouble(error);
    }
    if (round !== this.round) return;
    clearTimeout(this.late);
    const took = Math.min(BUSIEST, SHARE * (performance.now() - asked));
    const pause = this.failures ? Math.min(SLOWEST, POLL * 2 ** this.failures) : document.hidden ? POLL_HIDDEN : Math.max(POLL, took);
    this.timer = setTimeout(() => this.poll(), pause);
  }

  // Load what the current view needs besides the overview.
  async load(now = false) {
    if (!this.state) return;
    const { path, query } = this.place(), { view, source } = this;
    const held = view.page?.jobs.some(({ id }) => view.chosen.has(id)) || pointsAtRow();
    view.behind = path === "/jobs" && view.page && !now && held; // rows do not move under the pointer
    try {
      if (path === "/") this.loadTimeline(query.get("entrypoint") || "", query.get("span") || SPANS[0][0]);
      if (path === "/jobs" && !view.behind) view.page = await source.get("jobs", Object.fromEntries(query));
      if (path === "/queues") this.loadQueues(view);
      if (path === "/dead") view.groups = await source.get("dead");
      if (path === "/job") await this.loadJob(view, query.get("id") || "");
      view.wrong = null;
    } catch (error) {
      if (view !== this.view) return;
      if (error.kind === "refused") view.wrong = error.message;
      else this.trouble(error);
    }
    if (view === this.view) this.render();
  }

  // The figures of all queues. One that does not answer holds up none of the others.
  loadQueues(view) {
    Object.assign(view, { others: view.others ?? [], asked: view.asked ?? new Set() });
    (this.state.queues ?? []).forEach(async (_, number) => {
      if (view.asked.has(number)) return;
      view.asked.add(number);
      const answer = this.source.overviewOf(pathTo(this.state, number));
      view.others[number] = await answer.then((values) => ({ values }), ({ message }) => ({ error: message }));
      view.asked.delete(number);
      if (view === this.view) this.render();
    });
  }

  async loadJob(view, id) {
    const read = (path) => this.source.get(path, { id }).then((value) => ({ value }), (reason) => ({ reason }));
    const { value, reason } = await read("job"), seen = JSON.stringify(value?.seen);
    if (reason && reason.status !== 404) throw reason;
    if (!view.events || view.seen !== seen) { // nothing else has happened to the job
      const events = await read("job/events");
      view.events = events.value ?? { events: [], missing: events.reason.message };
    }
    Object.assign(view, { seen, job: value, missing: reason && `Not here any longer: ${reason.message}.` });
  }

  // A part of the past from the history, once for each entrypoint.
  async loadTimeline(entrypoint, span) {
    const key = span + entrypoint;
    if (this.samples.earlier.has(key)) return;
    this.samples.earlier.set(key, []);
    try {
      this.samples.earlier.set(key, (await this.source.get("timeline", { entrypoint, span })).points);
      this.render();
    } catch (error) {
      note(["The past could not be read: ", foreign(error.message)], { error: true });
    }
  }

  async reveal(kind) {
    const { view } = this, id = this.place().query.get("id") || "";
    try {
      const values = await this.source.get(`job/${kind}`, { id });
      if (kind === "payload" && values.bytes === values.shown) view.editable = values.text;
      view[kind] = kind === "payload" ? payloadText(values) : values.text ?? "It is too large to be shown here.";
    } catch (error) {
      note(foreign(error.message), { error: true });
    }
    this.render();
  }

  trouble(error) {
    const live = document.getElementById("live"), place = document.getElementById("trouble"), { state } = this;
    live.className = error ? "live lost" : "live";
    live.textContent = error ? "not up to date" : state ? `live, version ${count(state.version)}` : "connecting…";
    const kind = error?.message ?? "";
    document.body.classList.toggle("signed-out", error?.kind === "token");
    if (place.dataset.kind === kind) return;
    place.dataset.kind = kind;
    const since = this.heard ? `. The figures are from ${moment(this.heard / 1000)}.` : "";
    place.replaceChildren(...(error ? [h("div", { class: "warning" }, h("p", {}, foreign(kind), since),
      error.kind === "token" && this.question())] : []));
  }

  async signOut() {
    await this.source.signOut().catch((error) => note(foreign(error.message), { error: true }));
    this.wrong = null;
    this.poll(true);
  }

  // Ask for a token, without which the source does not go on.
  question() {
    const said = h("p", { role: "alert" }, this.wrong && foreign(this.wrong));
    const submit = async (event) => {
      event.preventDefault();
      try {
        await this.source.signIn(event.target.elements.token.value.trim());
        this.poll(true);
      } catch (error) {
        said.replaceChildren(foreign(error.message));
      }
    };
    return h("form", { class: "question", onsubmit: submit },
      h("label", {}, "Token", h("input", { type: "password", name: "token", autocomplete: "off", required: true })),
      h("button", { type: "submit", class: "primary" }, "Sign in"), said);
  }

  render() {
    const { path, render, query } = this.place(), { state, view } = this, main = document.getElementById("main");
    const links = VIEWS.filter(([each]) => each !== "/job" && (each !== "/queues" || state?.queues?.length > 1)).map(([each, title]) => {
      const current = each === path || (path === "/job" && each === "/jobs");
      return h("li", {}, h("a", { href: `#${each}`, "aria-current": current ? "page" : null }, title,
        each === "/dead" && state?.dead ? h("span", { class: "badge dead number-badge" }, count(state.dead)) : null));
    });
    patch(document.querySelector("#views ul"), h("ul", {}, links));
    if (!state) {
      if (!main.firstChild) main.append(h("p", { class: "empty" }, "Loading…"));
      return;
    }
    const viewer = state.role === "viewer";
    document.getElementById("sign-out").hidden = !state.session;
    const other = ({ target }) => location.assign(`${pathTo(state, Number(target.value))}#/`);
    patch(document.getElementById("name"), h("span", { id: "name" }, state.queues?.length > 1
      ? h("select", { onchange: other, "aria-label": "Queue" }, state.queues.map((name, number) =>
        h("option", { value: number, selected: number === state.place }, visible(name)))) : foreign(state.queue),
    viewer && h("span", { class: "badge" }, "read only")));
    const shown = render({ state, samples: this.samples, actions: this.actions, query, ...view, view,
      redraw: () => this.render(), reveal: viewer ? null : (kind) => this.reveal(kind) });
    const warnings = state.warnings.map((text) => h("p", { class: "warning", role: "alert" }, foreign(text)));
    patch(main, h("main", { id: "main", tabindex: "-1" }, warnings, shown));
    for (const select of main.querySelectorAll("select")) {
      if (select !== document.activeElement) select.value = select.querySelector("option[selected]")?.value ?? select.value;
    }
  }
}
