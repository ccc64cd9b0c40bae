// Actions: the server's table says which there are. A question first, one request, a word on how it went, and a way back.

import { foreign, h } from "./dom.js";
import { count, duration } from "./format.js";

const NOTE_SECONDS = 12;

function inputOf({ name, kind, required }, value) {
  const shared = { id: `field-${name}`, name, required, autocomplete: "off" };
  if (kind === "payload") return h("textarea", { ...shared, rows: 6, spellcheck: "false" }, value);
  if (kind === "tick") return h("input", { ...shared, type: "checkbox" });
  if (kind === "integer") return h("input", { ...shared, type: "number", step: 1, value });
  return h("input", { ...shared, value: typeof value === "number" ? `${value}s` : value });
}

function valueOf(input) {
  if (input.type === "checkbox") return input.checked;
  if (input.nodeName === "TEXTAREA") return input.value;
  const text = input.value.trim();
  return input.type === "number" && text ? Number(text) : text || null;
}

// Ask a question in a dialog. `send` gets the values of the form, and a function that says how far it is and returns
// whether the dialog is still open. It returns why the values were refused: the dialog stays, and they can be corrected.
function ask({ title, text, fields, values, confirm, danger }, send) {
  const inputs = fields.map((field) => inputOf(field, values[field.name]));
  const said = h("p", { class: "warning", role: "alert", hidden: true });
  const yes = h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm);
  const form = h("form", { method: "dialog" },
    h("h2", { id: "question" }, title),
    h("div", { class: "text" }, text),
    fields.map(({ label, hint, kind }, number) => h("p", { class: `field ${kind}` },
      h("label", { for: inputs[number].id }, label), inputs[number], hint && h("small", {}, hint))),
    said,
    h("p", { class: "buttons" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Keep as it is"), yes));
  const say = (words) => {
    said.hidden = false;
    said.replaceChildren(foreign(words));
    return dialog.open;
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    const since = Date.now(), wait = () => yes.replaceChildren(`Waiting ${duration(Math.floor((Date.now() - since) / 1000))} …`);
    const waiting = setInterval(wait, 1000);
    yes.disabled = true;
    wait();
    const refused = await send(Object.fromEntries(inputs.map((input) => [input.name, valueOf(input)])), say);
    clearInterval(waiting);
    yes.disabled = false;
    yes.replaceChildren(confirm);
    if (!refused) dialog.close();
    else if (!say(refused)) note(foreign(refused), { error: true });
  };
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": "question" }, form);
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  if (!inputs.length) form.querySelector("button").focus();
}

// Say something in the corner, with a button if it can be undone.
export function note(parts, { undo = null, error = false } = {}) {
  const place = document.getElementById(error ? "alerts" : "notes");
  const box = h("div", { class: error ? "note error" : "note" }, h("span", {}, parts));
  const leave = () => box.remove();
  const back = () => [leave(), undo()];
  box.append(...(undo ? [h("button", { type: "button", onclick: back }, "Undo")] : []),
    h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: leave }, "×"));
  place.append(box);
  while (place.children.length > 4) place.firstChild.remove();
  if (!error) setTimeout(leave, NOTE_SECONDS * 1000);
}

function these(jobs) {
  if (jobs === null) return "all jobs that match";
  return jobs === 1 ? "this job" : `these ${count(jobs)} jobs`;
}

// What an action is done to, its *target*: `name` and `of` are shown, `jobs` is their number (null if it is not known),
// `body` goes with the request, `values` are in the form at first.
export class Actions {
  // `source` carries them out; `refresh` is called after each, whatever came of it.
  constructor(source, refresh) {
    this.source = source;
    this.refresh = refresh;
    this.table = {};
  }

  // The names of the actions on a kind of thing; of jobs, those for at least one of some states.
  of(on, states = null) {
    const fits = (action) => action.on === on && (!states || action.states.some((state) => states.includes(state)));
    return Object.keys(this.table).filter((name) => fits(this.table[name]));
  }

  // The buttons of some actions.
  row(names, target) {
    return h("span", { class: "row-actions" }, names.map((name) => this.button(name, target)));
  }

  // The button of an action; nothing if the user or the queue does not have it.
  button(name, target, label = this.table[name]?.label) {
    return this.table[name] && h("button", { type: "button", class: this.table[name].danger ? "danger" : null,
      onclick: () => this.start(name, target) },
    label, target.name ? h("span", { class: "unseen" }, " ", foreign(target.name)) : null);
  }

  start(name, { name: target, of, jobs = 1, body, values = {} }) {
    const { title, text, fields, confirm, danger, done } = this.table[name];
    ask({ title: title.replace("{these}", these(jobs)), values, confirm, danger,
      fields: fields.filter((field) => !(field.name in body)),
      text: [target && h("p", {}, foreign(target, { class: "id" }), of && [" of ", foreign(of)]), text && h("p", {}, text),
        jobs !== 1 && h("p", {}, "Jobs that have changed since you looked, or came since, stay as they are.")] },
    async (entered, say) => {
      const error = await this.send(name, { ...body, ...entered }, done, say);
      return error?.kind === "refused" ? error.message : this.tell(error);
    });
  }

  // Carry out an action, again while jobs are left. Returns the error if it was refused.
  async send(name, body, done, say = null) {
    let answer, number = 0;
    try {
      do {
        answer = await this.source.act(name, body);
        number += answer.done;
        body = { ...body, ...answer.again };
      } while (answer.left && answer.done && say?.(`${done}: ${count(number)}. More are left …`));
      const more = (words, many) => (many ? `; ${count(many)} ${words}` : "");
      note([`${done}: `, answer.name ? foreign(answer.name) : count(number), more("had changed meanwhile", answer.changed),
        more("were refused", answer.refused), answer.why && ["; ", foreign(answer.why)], answer.left && "; more are left"],
      { undo: say && answer.undo && (() => this.undo(answer.undo)) });
      return null;
    } catch (error) {
      if (number) note(`${done}: ${count(number)}`);
      return error;
    } finally {
      this.refresh();
    }
  }

  async undo({ action, body }) {
    this.tell(await this.send(action, body, "Undone"));
  }

  tell(error) {
    if (error) note([error.kind === "changed" ? "Nothing was done: " : "", foreign(error.message)], { error: true });
  }
}
