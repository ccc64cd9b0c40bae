// A worker in JavaScript, with nothing but `fetch`: node examples/worker.mjs
// JQUEUE_BROKER is the address of `jqueue serve`, and JQUEUE_TOKEN a token with the role worker, if the broker needs one.
import { randomUUID } from "node:crypto";

const broker = process.env.JQUEUE_BROKER ?? "http://127.0.0.1:8470";
const token = process.env.JQUEUE_TOKEN;
const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort());

const handlers = {
  // A handler may run twice: at-least-once is the promise of every queue.
  async resize(job) {
    const { image, width } = JSON.parse(job.text);
    if (!(width > 0)) throw new Error(`cannot resize ${image} to ${width}`);
    return { image, width };
  },
};

const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function call(path, body, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(broker + path, { method: "POST", headers, body: JSON.stringify(body), ...options });
  if (response.ok) return response.status === 204 ? null : response.json();
  const problem = await response.json().catch(() => ({ title: "NoProblem", detail: response.statusText }));
  const error = new Error(`${problem.title}: ${problem.detail}`);
  error.title = problem.title;
  error.wait = Number(response.headers.get("Retry-After")) || 0; // 429 and 503: nothing was done
  throw error;
}

async function work(job) {
  const claim = `/v1/claims/${encodeURIComponent(job.id)}/${job.attempt}`;
  const beat = setInterval(() => call(`${claim}/heartbeat`, {}).catch((error) => console.error(error.message)), 10_000);
  try {
    const result = await handlers[job.entrypoint](job);
    await call(`${claim}/ack`, { result });
  } catch (error) {
    if (error.title === "ClaimLostError") return; // another worker has the job now
    await call(`${claim}/nack`, { error: String(error), delay: 1 });
  } finally {
    clearInterval(beat);
  }
}

let name = randomUUID(); // if the answer of a claim is lost, the next claim with its name gets the same jobs
while (!stop.signal.aborted) {
  try {
    const wish = { entrypoints: Object.keys(handlers), batch_size: 8, claim_timeout: 60, call: name };
    const { jobs } = await call("/v1/claims?wait=30", wish, { signal: stop.signal });
    name = randomUUID();
    await Promise.all(jobs.map(work));
  } catch (error) {
    if (stop.signal.aborted) break;
    console.error(error.message);
    await sleep(error.wait || 1);
  }
}
