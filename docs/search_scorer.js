// Order of the search results: guides first, then operations, the reference and the API, then decisions and records.
const PLACES = [
  [/^(guide\/migrating|operations)\//, 13],
  [/^guide\/|^questions$|^project\/platforms$/, 15],
  [/^decisions\/|^project\/changelog$|^reference\/(README|testing|architecture)$/, -20],
];

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    // A name with an underscore is one of the API: its own entry comes before the pages that use it.
    if (kind === "object" && score > 15 && title.split(".").pop().includes("_")) return score + 30;
    return score + (PLACES.find(([place]) => place.test(docname))?.[1] ?? 0);
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
