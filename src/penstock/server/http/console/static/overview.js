// The server: whether it is well, what it is, and how long things take.

import { element, setText, Table } from "./dom.js";
import { duration, moment, number, quantile } from "./format.js";

const percentile = (share) => ({
  title: `P${share * 100}`, number: true,
  text: (one) => {
    const found = quantile(one.counts, one.bounds, share);
    return found === null ? "–" : duration(found);
  },
});

export class Overview {
  title = "Server";
  #facts = new Map();
  #list = element("dl");
  #table = new Table("Latencies: syncs of the journal, and publishing, one observation for each batch", [
    { title: "What", heading: true, short: true, text: (one) => one.name },
    percentile(0.5), percentile(0.95), percentile(0.99),
    { title: "Observations", number: true, text: (one) => number(one.counts.reduce((sum, count) => sum + count, 0)) },
    { title: "Over", text: (one) => (one.seconds === null ? "all since the server began" : `the last ${duration(one.seconds)}`) },
  ], "No times: the server does not measure (--no-measure), nothing was published yet, or the token may not see them.");

  show(root) {
    root.append(this.#list, this.#table.node);
  }

  update(metrics, history) {
    const store = metrics.store;
    const hidden = "needs the right read on all topics";
    const path = store === undefined ? hidden : store.path ?? "needs the right admin on all topics";
    this.#tell("State", metrics.ready ? "ready" : store?.is_full ? "the disk is full: publishing is refused, consuming goes on" : store?.failed ? "the disk failed: the store takes no writes" : "takes no work");
    if (store?.failure) this.#tell("Failure", store.failure);
    this.#tell("Version", metrics.version);
    this.#tell("Store", path);
    this.#tell("Commit cycles", store === undefined ? hidden : number(store.commits));
    this.#tell("Topics", number(Object.keys(metrics.topics).length + (store?.topics_left_out ?? 0)));
    this.#tell("Server's time", moment(metrics.now_us / 1e3));
    const names = ["fsync", ...Object.keys(metrics.topics).map((name) => `publish ${name}`)];
    const rows = names.map((name) => ({ name, bounds: metrics.bounds_s, ...history.latency(name) })).filter((one) => one.counts);
    this.#table.update(rows, (one) => one.name);
  }

  #tell(title, text) {
    if (!this.#facts.has(title)) {
      const shown = element("dd");
      this.#facts.set(title, shown);
      this.#list.append(element("dt", {}, title), shown);
    }
    setText(this.#facts.get(title), text);
  }
}
