// Browse the messages of a topic by offset or time. Nothing is taken from any group.

import { call, path } from "./api.js";
import { showMessageDialog } from "./dialogs.js";
import { button, element, field, Table } from "./dom.js";
import { moment, number } from "./format.js";
import { brief, showMessage } from "./message.js";

const TOGETHER = 50;

export class Messages {
  title = "Messages";
  #page;
  #topic = element("select", { id: "topic" });
  #partition = element("input", { type: "number", min: 0, value: 0, required: true, id: "partition" });
  #offset = element("input", { type: "number", min: 0, placeholder: "offset", id: "offset" });
  #time = element("input", { type: "datetime-local", step: 1, id: "time" });
  #older = button("Older", () => this.#move(Math.max(this.#range.first, this.#shown.first - TOGETHER)), { disabled: true });
  #newer = button("Newer", () => this.#move(this.#shown.next), { disabled: true });
  #note = element("p", { class: "note", role: "status" });
  #metrics = null;
  #shown = { first: 0, next: 0 };
  #range = { first: 0, end: 0 };
  #table = new Table("Messages", [
    { title: "Offset", heading: true, number: true, create: (one) => button(number(one.offset), () => this.#open(one), { class: "link" }) },
    { title: "Time", line: true, text: (one) => moment(one.timestamp) },
    { title: "Key", short: true, create: () => element("span", { class: "data" }), update: (node, one) => { node.textContent = brief(one, "key", 60) ?? "–"; } },
    { title: "Value", short: true, create: () => element("span", { class: "data" }), update: (node, one) => { node.textContent = brief(one, "value") ?? "none (tombstone)"; } },
    { title: "Headers", number: true, text: (one) => number(one.headers.length) },
  ], "Nothing to show here.");

  constructor(page, topic) {
    this.#page = page;
    this.#wanted = topic;
  }

  #wanted;

  show(root) {
    const form = element("form", { class: "fields" },
      field("Topic", this.#topic), field("Partition", this.#partition), field("From offset", this.#offset), field("or from time", this.#time),
      element("button", { type: "submit", class: "main" }, "Show"), button("Newest", () => this.#newest()));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#go();
    });
    this.#topic.addEventListener("change", () => {
      this.#partition.value = 0;
      this.#page.go("messages", this.#topic.value);
    });
    this.#table.update([], String);
    root.append(form, this.#note, this.#table.node, element("p", { class: "buttons" }, this.#older, this.#newer));
  }

  update(metrics) {
    const first = this.#metrics === null;
    this.#metrics = metrics;
    this.#page.fillTopics(this.#topic, Object.keys(metrics.topics), this.#wanted);
    this.#partition.max = (metrics.topics[this.#topic.value]?.partitions ?? 1) - 1;
    if (first && this.#topic.value) this.#newest();
  }

  #newest() {
    const topic = this.#metrics?.topics[this.#topic.value];
    const partition = this.#partition.value;
    const end = topic?.ends[partition] ?? 0;
    this.#move(Math.max(topic?.starts[partition] ?? 0, end - TOGETHER));
  }

  #go() {
    if (this.#offset.value !== "") this.#move(Number(this.#offset.value));
    else if (this.#time.value !== "") this.#load(new Date(this.#time.value).toISOString());
    else this.#load("earliest");
  }

  #move(offset) {
    this.#load(String(offset));
  }

  async #load(start) {
    const [topic, partition] = [this.#topic.value, this.#partition.value];
    await this.#page.doing(async () => {
      const found = await call("GET", path("topics", topic, "partitions", partition, "messages"), { start, max_messages: TOGETHER });
      if (topic !== this.#topic.value) return;
      const first = found.messages[0]?.offset ?? found.next;
      this.#shown = { first, next: found.next };
      this.#range = { first: this.#metrics.topics[topic]?.starts[partition] ?? 0, end: found.end };
      this.#table.update(found.messages, (one) => `${topic} ${one.partition} ${one.offset}`);
      this.#older.disabled = first <= this.#range.first;
      this.#newer.disabled = found.next >= found.end;
      const what = found.messages.length ? `Offsets ${number(first)} to ${number(found.next - 1)}` : "No messages from there on";
      this.#note.textContent = `${what}; the partition has offsets from ${number(this.#range.first)} up to, not with, ${number(found.end)}.`;
    });
  }

  async #open(row) {
    await this.#page.doing(async () => {
      const query = { start: String(row.offset), max_messages: 1, base64: "true" };
      const found = await call("GET", path("topics", row.topic, "partitions", row.partition, "messages"), query);
      const message = found.messages[0];
      if (message?.offset !== row.offset) throw new Error(`the message at offset ${row.offset} is gone: retention or compaction took it`);
      showMessageDialog(`Message ${row.topic} ${row.partition}:${row.offset}`, ...showMessage(message));
    });
  }
}
