// The queue as the server beside this page tells it, and the start of the page.

import { App } from "./app.js";

const PATIENCE = 90; // seconds for an answer: longer than the server waits for the store

const KINDS = { 401: "token", 404: "changed", 409: "changed" }; // of refusals; without a status, nothing was answered

function refusal(message, status = 0) {
  return Object.assign(new Error(message), { status, kind: KINDS[status] ?? (status >= 400 && status < 500 ? "refused" : "away") });
}

async function call(path, options = {}) {
  let answer, text;
  try {
    const signal = AbortSignal.timeout(PATIENCE * 1000);
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", redirect: "error", signal, ...options });
    text = await answer.text();
  } catch (error) {
    const late = `the dashboard's server has not answered for ${PATIENCE} s. Look at what has been done before you try again`;
    throw refusal(error.name === "TimeoutError" ? late : "the dashboard's server does not answer: is it still running?");
  }
  if (answer.status === 304) return { values: null };
  let values;
  try {
    values = JSON.parse(text);
  } catch {
    throw refusal(`the server gave an answer that is no JSON (status ${answer.status})`);
  }
  if (!answer.ok) throw refusal(values.detail || `status ${answer.status}`, answer.status);
  return { values, etag: answer.headers.get("ETag") };
}

function send(path, body) {
  const headers = { "Content-Type": "application/json", "X-Jqueue-Dashboard": "1" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) });
}

class ServerSource {
  etag = null;

  // Exchange the token of the printed link for a cookie. The token stands after the "#", which no server is sent.
  async signIn(token) {
    await send("api/session", { token });
    this.etag = null;
  }

  async signOut() {
    await call("api/session", { method: "DELETE", headers: { "X-Jqueue-Dashboard": "1" } });
    this.etag = null;
  }

  // Everything but the jobs; null if nothing has changed since the last call.
  async overview() {
    const { values, etag } = await call("api/overview", this.etag ? { headers: { "If-None-Match": this.etag } } : {});
    if (values) this.etag = etag;
    return values;
  }

  // The overview of another queue, whose page is at a path.
  async overviewOf(path) {
    return (await call(`${path}api/overview`)).values;
  }

  // Values by their path. A part of a payload stands in the body of the request: logs show addresses.
  async get(path, query = {}) {
    const reads = Object.keys(query).some((name) => name === "payload" || name.startsWith("args."));
    const answer = reads ? send(`api/${path}`, query) : call(`api/${path}?${new URLSearchParams(query)}`);
    return (await answer).values;
  }

  async act(name, body) {
    const { values } = await send(`api/actions/${name}`, body);
    this.etag = null;
    return values;
  }
}

const source = new ServerSource(), app = new App(source);
const token = location.hash.startsWith("#token=") ? decodeURIComponent(location.hash.slice(7)) : null;
if (token !== null) history.replaceState(null, "", location.pathname + location.search);
const wrong = token !== null && await source.signIn(token).then(() => null, (error) => error);
app.start(wrong?.message);
