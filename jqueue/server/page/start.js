// Starts the page on its server. The token of the printed link is exchanged for a cookie, and leaves the address.

import { App } from "./app.js";
import { note } from "./actions.js";
import { ServerSource } from "./source.js";

async function start() {
  const source = new ServerSource();
  const token = location.hash.startsWith("#token=") ? decodeURIComponent(location.hash.slice(7)) : null;
  if (token !== null) history.replaceState(null, "", location.pathname + location.search);
  const app = new App(source);
  let wrong = null;
  if (token !== null) await source.answer(token).catch((error) => (wrong = error));
  app.start();
  if (wrong) note(wrong.message, { error: true });
}

start();
