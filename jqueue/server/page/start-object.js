// Starts the page without a server. The element <html> has the URL of the object.

import { App } from "./app.js";
import { ObjectSource } from "./object.js";

new App(new ObjectSource(document.documentElement.dataset.object || "")).start();
