// Prints the page that the search of a built site gives first for each query: node search.js SITE QUERY...
const fs = require("fs"), vm = require("vm"), [, , site, ...queries] = process.argv;
const page = { addEventListener() {}, querySelector: () => null, getElementById: () => null, documentElement: { dataset: {} } };
const context = { document: page, window: { document: page, location: { search: "" } }, _ready() {}, _: (text) => text,
  DOCUMENTATION_OPTIONS: {}, SPHINX_HIGHLIGHT_ENABLED: false, URLSearchParams };
vm.createContext(context);
const run = (name) => vm.runInContext(fs.readFileSync(`${site}/${name}`, "utf8"), context);
run("_static/language_data.js");
run("_static/searchtools.js");
Object.assign(context, { Stemmer: context.window.Stemmer, stopwords: context.window.stopwords });
vm.runInContext("this.Search = Search; Search.setIndex = (index) => { Search._index = index; };", context);
run("searchindex.js");
for (const query of queries) console.log(context.Search._performSearch(...context.Search._parseQuery(query)).at(-1)?.[0]);
