// All topics with what is in them, and how much comes and goes.

import { element, field, Table } from "./dom.js";
import { bytes, number, rate } from "./format.js";
import { drawSparkline, makeSparkline } from "./sparkline.js";

export const link = (text, ...parts) => element("a", { href: `#/${parts.map(encodeURIComponent).join("/")}` }, text);

export class Topics {
  title = "Topics";
  #filter = element("input", { type: "search", placeholder: "part of a name", autocomplete: "off" });
  #note = element("p", { class: "note" });
  #seen = [];
  #table = new Table("Topics, updated every two seconds", [
    { title: "Topic", heading: true, short: true, create: (one) => link(one.name, "messages", one.name) },
    { title: "Messages", number: true, text: (one) => number(one.messages) },
    { title: "Bytes", number: true, text: (one) => bytes(one.bytes) },
    { title: "Partitions", number: true, text: (one) => number(one.partitions) },
    { title: "In", number: true, text: (one) => rate(one.rates.in.at(-1) ?? null) },
    { title: "Out", number: true, text: (one) => rate(one.rates.out.at(-1) ?? null) },
    { title: "Last minutes", create: makeSparkline, update: (node, one) => drawSparkline(node, one.rates) },
    { title: "Groups", number: true, text: (one) => number(Object.keys(one.groups).length) },
    {
      title: "Dead letters", number: true,
      create: (one) => link("", "dead-letters", one.name),
      update: (node, one) => {
        const text = one.dead_letters === undefined ? "–" : number(one.dead_letters);
        if (node.textContent !== text) node.textContent = text;
        node.className = one.dead_letters ? "bad" : "";
      },
    },
  ], "There are no topics that this view may show.");

  show(root) {
    this.#filter.addEventListener("input", () => this.#draw());
    const key = element("p", { class: "note" }, "Lines: ", element("span", { class: "key-in" }, "in, solid"), "; ", element("span", { class: "key-out" }, "out to all groups, dashed"),
      "; while this page is open, up to five minutes.");
    root.append(element("div", { class: "fields" }, field("Show topics with", this.#filter)), this.#table.node, key, this.#note);
  }

  update(metrics, history) {
    this.#seen = Object.entries(metrics.topics).map(([name, topic]) => ({ ...topic, name, rates: history.rates(name) }));
    const left = metrics.store?.topics_left_out ?? 0;
    this.#note.textContent = left ? `${number(left)} more topics are not shown: the server lists so many only (metrics_topics_max).` : "";
    this.#draw();
  }

  #draw() {
    const wanted = this.#filter.value.trim().toLowerCase();
    this.#table.update(this.#seen.filter((one) => one.name.toLowerCase().includes(wanted)), (one) => one.name);
  }
}
