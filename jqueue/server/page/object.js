// The queue as its object in the store tells it: the source of the page without a server. It only reads.

import { FormatError, Queue, base64, parse } from "./blob.js";
import { PATIENCE, Refusal } from "./source.js";

const SHOWN = 65536; // bytes of a payload that are shown

export class ObjectSource {
  // `url` is the public or presigned URL of the object; without one, the page asks for it.
  constructor(url) {
    this.url = url;
    this.readsPayloads = true;
    this.text = null;
    this.queue = null;
  }

  async answer(url) {
    this.url = url;
    this.text = this.queue = null;
  }

  // The name of the object, without the query, which may hold a signature.
  name() {
    return this.url.split(/[?#]/)[0];
  }

  refusal(message, ask = true) {
    const refusal = new Refusal(message, 0, ask ? "ask" : "away");
    if (ask) refusal.ask = { label: "URL of the queue's object", type: "url", button: "Read it" };
    return refusal;
  }

  async overview() {
    if (!this.url) throw this.refusal("Give the public or presigned URL of the queue's object in the store.");
    let answer, bytes;
    try {
      // The browser keeps the object and asks with If-None-Match: an unchanged object is not sent again.
      const signal = AbortSignal.timeout(PATIENCE * 1000);
      answer = await fetch(this.url, { cache: "no-cache", credentials: "omit", referrerPolicy: "no-referrer", signal });
      bytes = await answer.arrayBuffer();
    } catch {
      throw this.refusal(`the browser cannot read ${this.name()}. Is the store reachable, and do its CORS rules allow GET from the origin ${location.origin}?`);
    }
    if (answer.status === 403 || answer.status === 401) {
      throw this.refusal(`the store refuses to show ${this.name()} (status ${answer.status}): a presigned URL has perhaps expired`);
    }
    if (answer.status === 404) throw this.refusal(`there is no object at ${this.name()}`);
    if (!answer.ok) throw this.refusal(`the store answers with status ${answer.status} for ${this.name()}`, false);
    const text = new TextDecoder().decode(bytes), told = Date.parse(answer.headers.get("Date") || "");
    const now = Date.now() / 1000;
    if (text === this.text && now - this.counted < 5) return null;
    try {
      if (text !== this.text) this.content = parse(text);
    } catch (error) {
      if (error instanceof FormatError) throw this.refusal(error.message);
      throw error;
    }
    [this.text, this.counted] = [text, now];
    this.now = Math.max(now, Number.isNaN(told) ? 0 : told / 1000);
    this.queue = new Queue(this.content, bytes.byteLength, this.now);
    return this.queue.overview(this.name(), this.now);
  }

  async jobs(query) {
    return this.queue.list(query, this.now);
  }

  async job(id) {
    const job = this.queue.details(id, this.now);
    const done = Object.hasOwn(this.content.finished || {}, id);
    const missing = this.queue.beyond("", new Set())
      ? "there is no job with this id in the queue's object: it may be in a segment, which this page does not read"
      : "there is no job with this id in the queue";
    if (!job) throw new Refusal(done ? "this job has finished" : missing, 404, "changed");
    return job;
  }

  async payload(id) {
    const { line } = this.queue.jobs.get(id);
    if (line.payload_object) throw new Refusal("this payload is in an object of its own, which this page does not read", 0, "invalid");
    const bytes = base64(line.payload), shown = bytes.slice(0, SHOWN);
    let text = null;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(shown);
    } catch {
      // it is no text
    }
    return { bytes: bytes.length, shown: shown.length, text, base64: line.payload.slice(0, SHOWN) };
  }

  async result(id) {
    const { line } = this.queue.jobs.get(id);
    return { text: line.result_object ? null : JSON.stringify(line.result, null, 2).slice(0, SHOWN) };
  }

  async events(id) {
    return this.queue.events(id);
  }

  async dead() {
    return this.queue.dead(this.now);
  }

  async timeline() {
    return { points: [] }; // the past is in other objects
  }
}
