// All groups: how far they are, and how far behind.

import { element, field, Table } from "./dom.js";
import { duration, number } from "./format.js";
import { link } from "./topics.js";

export class Groups {
  title = "Groups";
  #filter = element("input", { type: "search", placeholder: "part of a name", autocomplete: "off" });
  #seen = [];
  #table = new Table("Groups, updated every two seconds", [
    { title: "Group", heading: true, short: true, text: (one) => one.name },
    { title: "Topic", short: true, create: (one) => link(one.topic, "messages", one.topic) },
    { title: "Position", short: true, text: positionsOf },
    { title: "Lag", number: true, text: (one) => number(one.lag) },
    { title: "Lag in time", number: true, text: (one) => (one.lag ? duration(one.lag_s) : "0 s") },
    { title: "In flight", number: true, text: (one) => number(one.in_flight) },
    { title: "Waiting to retry", number: true, text: (one) => number(one.retrying) },
    { title: "Redelivered", number: true, text: (one) => number(one.redelivered) },
    { title: "Dead-lettered", number: true, text: (one) => number(one.dead_lettered) },
    { title: "Members", number: true, text: (one) => number(one.members), class: (one) => (one.lag && !one.members ? "bad" : "") },
  ], "There are no groups that this view may show.");

  show(root) {
    this.#filter.addEventListener("input", () => this.#draw());
    root.append(
      element("div", { class: "fields" }, field("Show groups or topics with", this.#filter)),
      this.#table.node,
      element("p", { class: "note" }, "Position: the first offset that is not finished, of each partition. Redelivered and dead-lettered: since the server began."),
    );
  }

  update(metrics) {
    this.#seen = Object.entries(metrics.topics).flatMap(([topic, found]) => Object.entries(found.groups).map(([name, group]) => ({ ...group, name, topic })));
    this.#draw();
  }

  #draw() {
    const wanted = this.#filter.value.trim().toLowerCase();
    const fits = (one) => one.name.toLowerCase().includes(wanted) || one.topic.toLowerCase().includes(wanted);
    this.#table.update(this.#seen.filter(fits), (one) => `${one.topic} ${one.name}`);
  }
}

function positionsOf(group) {
  const found = Object.entries(group.positions);
  const some = found.slice(0, 8).map(([partition, offset]) => (found.length === 1 ? number(offset) : `${partition}: ${number(offset)}`));
  return some.join(", ") + (found.length > 8 ? `, and ${found.length - 8} more` : "");
}
