// The queue as the server beside this page tells it. snapshot.js has the same methods without a server.

export class Refusal extends Error {
  constructor(message, status, kind) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

export const PATIENCE = 90; // seconds for an answer: longer than the server waits for the store

async function call(path, options = {}) {
  let answer, text;
  try {
    const signal = AbortSignal.timeout(PATIENCE * 1000);
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", redirect: "error", signal, ...options });
    text = await answer.text();
  } catch (error) {
    const late = `the dashboard's server has not answered for ${PATIENCE} s. Look at what has been done before you try again`;
    throw new Refusal(error.name === "TimeoutError" ? late : "the dashboard's server does not answer: is it still running?", 0, "away");
  }
  if (answer.status === 304) return { unchanged: true };
  let values = null;
  try {
    values = JSON.parse(text);
  } catch {
    throw new Refusal(`the server gave an answer that is no JSON (status ${answer.status})`, answer.status, "away");
  }
  if (!answer.ok) {
    const refusal = new Refusal(values.error || `status ${answer.status}`, answer.status, values.kind);
    if (values.kind === "token") refusal.ask = { label: "Token", type: "password", button: "Sign in" };
    throw refusal;
  }
  return { values, etag: answer.headers.get("ETag") };
}

function send(path, body) {
  const headers = { "Content-Type": "application/json", "X-Jqueue-Dashboard": "1" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) });
}

export class ServerSource {
  constructor() {
    this.etag = null;
  }

  // Exchange the token of the printed link for a cookie. The token stands after the "#", which no server is sent.
  async answer(token) {
    await send("api/session", { token });
    this.etag = null;
  }

  // Everything but the jobs; null if nothing has changed since the last call.
  async overview() {
    const found = await call("api/overview", this.etag ? { headers: { "If-None-Match": this.etag } } : {});
    if (found.unchanged) return null;
    this.etag = found.etag;
    return found.values;
  }

  // Values by their path. A part of a payload stands in the body of the request: logs show addresses.
  async get(path, query = {}) {
    const answer = query.payload ? send(`api/${path}`, query) : call(`api/${path}?${new URLSearchParams(query)}`);
    return (await answer).values;
  }

  async act(name, body) {
    const { values } = await send(`api/actions/${name}`, body);
    this.etag = null;
    return values;
  }
}
