// Folds frames into what is shown now. A row replaces the row of its key.
export const CLASSES = ["mpi", "staging", "io", "wan"];
const EVENTS = 200;

export class Model {
  constructor() { this.clear(); }

  clear() {
    this.t = 0;
    this.topology = null;
    this.sections = new Map();
    this.events = [];
    this.counts = {};
  }

  rows(section) {
    let found = this.sections.get(section);
    if (!found) this.sections.set(section, (found = new Map()));
    return found;
  }

  get status() { return this.rows("status").get("now") ?? { rates: {} }; }

  // The sections that changed; of a whole frame all, and "topology".
  fold(frame) {
    const changed = new Set();
    if (frame.whole) {
      this.clear();
      for (const section of ["links", "switches", "jobs", "flows", "io", "storage", "wide", "decisions", "publishers"]) changed.add(section);
      changed.add("topology");
    }
    this.t = frame.t ?? 0;
    if (frame.topology) {
      this.topology = frame.topology;
      this.rows("links").clear();
      changed.add("topology").add("links");
    }
    for (const [section, keys] of Object.entries(frame.gone ?? {})) {
      for (const key of keys) this.rows(section).delete(key);
      changed.add(section);
    }
    for (const [section, rows] of Object.entries(frame.set ?? {})) {
      const known = this.rows(section);
      for (const [key, row] of Object.entries(rows)) known.set(key, row);
      changed.add(section);
    }
    if (frame.events?.length) {
      this.events = [...this.events, ...frame.events].slice(-EVENTS);
      changed.add("events");
    } else if (frame.whole) changed.add("events");
    if (frame.counts) this.counts = frame.counts;
    return changed;
  }
}
