// The dead letters of a topic: look at them, send them back, or throw them away, each after a question.

import { call, path } from "./api.js";
import { closeMessageDialog, confirm, showMessageDialog } from "./dialogs.js";
import { button, element, field, Table } from "./dom.js";
import { counted, cut, moment, number } from "./format.js";
import { brief, headerText, showMessage } from "./message.js";

const TOGETHER = 50;
// With a filter that little fits, one request looks at no more than so many.
const LOOKED_AT = 10_000;

const told = (letter, name) => headerText(letter, `x-dlq-${name}`);

export class DeadLetters {
  title = "Dead letters";
  #page;
  #wanted;
  #topic = element("select", { id: "topic" });
  #inputs = {
    reason: element("input", { type: "search", maxlength: 256, id: "reason" }),
    group: element("input", { type: "search", maxlength: 196 }),
    partition: element("input", { type: "number", min: 0 }),
    key: element("input", { type: "search" }),
    header: element("input", { type: "search", placeholder: "NAME or NAME=VALUE" }),
    since: element("input", { type: "datetime-local", step: 1 }),
    until: element("input", { type: "datetime-local", step: 1 }),
  };
  #filter = {};
  #metrics = null;
  #listed = 0;
  #state = "";
  #starts = [0];
  #next = null;
  #letters = [];
  #chosen = new Set();
  #note = element("p", { class: "note", role: "status" });
  #all = element("input", { type: "checkbox", "aria-label": "Choose all on this page" });
  #back = button("Previous page", () => { this.#starts.pop(); this.#load(); }, { disabled: true });
  #on = button("Next page", () => { this.#starts.push(this.#next); this.#load(); }, { disabled: true });
  #replayChosen = button("Replay chosen", () => this.#takeChosen("replay"), { disabled: true });
  #discardChosen = button("Discard chosen", () => this.#takeChosen("discard"), { disabled: true, class: "danger" });
  #replayAll = button("Replay all", () => this.#takeAll("replay"));
  #discardAll = button("Discard all", () => this.#takeAll("discard"), { class: "danger" });
  #table = new Table("Dead letters, oldest first", [
    { title: "Choose", head: this.#all, create: (one) => this.#checkbox(one), update: (node, one) => { node.checked = this.#chosen.has(one.offset); } },
    { title: "Id", heading: true, number: true, create: (one) => button(number(one.offset), () => this.#open(one.offset), { class: "link", "aria-label": `Open dead letter ${one.offset}` }) },
    { title: "Reason", short: true, create: () => element("span", { class: "data" }), update: (node, one) => { node.textContent = cut(told(one, "reason") ?? "", 256) || "–"; } },
    { title: "Group", short: true, text: (one) => cut(told(one, "group") ?? "–", 196) },
    { title: "Source", create: () => element("span", { class: "line" }), update: (node, one) => { node.textContent = cut(`${told(one, "source-partition") ?? "?"}:${told(one, "source-offset") ?? "?"}`, 40); } },
    { title: "Failed", line: true, text: (one) => moment(told(one, "last-failure") ?? one.timestamp) },
    { title: "Deliveries", number: true, text: (one) => cut(told(one, "deliveries") ?? "–", 20) },
    { title: "Key", short: true, create: () => element("span", { class: "data" }), update: (node, one) => { node.textContent = brief(one, "key", 60) ?? "–"; } },
  ], "There are no dead letters here.");

  constructor(page, topic) {
    this.#page = page;
    this.#wanted = topic;
  }

  show(root) {
    const titles = { reason: "Reason has, or fits with * ?", group: "Group", partition: "From partition", key: "Key", header: "Header", since: "Failed from", until: "Failed before" };
    const form = element("form", { class: "fields" },
      ...Object.entries(this.#inputs).map(([name, input]) => field(titles[name], input)),
      element("button", { type: "submit", class: "main" }, "Use the filter"), button("No filter", () => { form.reset(); this.#useFilter(); }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#useFilter();
    });
    this.#topic.addEventListener("change", () => this.#page.go("dead-letters", this.#topic.value));
    this.#all.addEventListener("change", () => {
      this.#chosen = new Set(this.#all.checked ? this.#letters.map((one) => one.offset) : []);
      this.#draw();
    });
    this.#table.update([], String);
    root.append(
      element("div", { class: "fields" }, field("Dead letters of topic", this.#topic)),
      element("details", {}, element("summary", {}, "Filter"), form),
      element("p", { class: "buttons" }, this.#replayChosen, this.#discardChosen, this.#replayAll, this.#discardAll),
      this.#note, this.#table.node, element("p", { class: "buttons" }, this.#back, this.#on),
    );
    this.#draw();
  }

  update(metrics) {
    this.#metrics = metrics;
    const topics = Object.entries(metrics.topics).filter(([name, one]) => one.dead_letters || name === this.#wanted || name === this.#topic.value);
    const texts = new Map(topics.map(([name, one]) => [name, `${name} (${one.dead_letters === undefined ? "?" : number(one.dead_letters)})`]));
    this.#page.fillTopics(this.#topic, [...texts.keys()], this.#wanted, texts);
    const topic = this.#topic.value;
    // Asked for only when there is something new: letters may be large.
    const state = `${topic} ${metrics.topics[topic]?.dead_letters} ${metrics.topics[`${topic}.dlq`]?.ends[0]}`;
    if (topic && state !== this.#state) {
      this.#state = state;
      this.#load(true);
    }
  }

  #useFilter() {
    const { since, until, ...plain } = Object.fromEntries(Object.entries(this.#inputs).map(([name, input]) => [name, input.value]));
    const time = (text) => (text === "" ? "" : String(new Date(text).getTime() * 1000));
    this.#filter = Object.fromEntries(Object.entries({ ...plain, since_us: time(since), until_us: time(until) }).filter(([, value]) => value !== ""));
    this.#starts = [0];
    this.#chosen.clear();
    this.#load();
  }

  async #load(unasked = false) {
    const topic = this.#topic.value;
    await this.#page.doing(async () => {
      const query = { ...this.#filter, start: this.#starts.at(-1), max_messages: TOGETHER, look: LOOKED_AT };
      const found = await call("GET", path("topics", topic, "dlq"), query);
      if (topic !== this.#topic.value) return;
      this.#letters = found.messages;
      this.#next = found.next ?? null;
      this.#listed = found.now_us;
      const here = new Set(this.#letters.map((one) => one.offset));
      this.#chosen = new Set([...this.#chosen].filter((offset) => here.has(offset)));
      const filtered = Object.keys(this.#filter).length ? ` ${number(found.messages.length)} that fit the filter are on this page.` : "";
      const more = this.#next !== null && found.messages.length < TOGETHER ? " There may be more on the next page." : "";
      this.#note.textContent = `${counted(found.count, "dead letter")} of ${topic}.${filtered}${more}`;
      this.#draw();
    }, unasked);
  }

  #draw() {
    this.#table.update(this.#letters, (one) => `${one.topic} ${one.offset}`);
    this.#all.checked = this.#letters.length > 0 && this.#chosen.size === this.#letters.length;
    for (const one of [this.#replayChosen, this.#discardChosen]) one.disabled = this.#chosen.size === 0;
    for (const one of [this.#replayAll, this.#discardAll]) one.disabled = this.#letters.length === 0;
    const what = Object.keys(this.#filter).length ? "all that fit the filter" : "all";
    this.#replayAll.textContent = `Replay ${what}`;
    this.#discardAll.textContent = `Discard ${what}`;
    this.#back.disabled = this.#starts.length < 2;
    this.#on.disabled = this.#next === null;
  }

  #checkbox(letter) {
    const made = element("input", { type: "checkbox", "aria-label": `Choose dead letter ${letter.offset}` });
    made.addEventListener("change", () => {
      if (made.checked) this.#chosen.add(letter.offset);
      else this.#chosen.delete(letter.offset);
      this.#draw();
    });
    return made;
  }

  async #open(id) {
    const topic = this.#topic.value;
    await this.#page.doing(async () => {
      const letter = await call("GET", path("topics", topic, "dlq", id), { base64: "true" });
      const act = (what) => async () => {
        if (await this.#take(topic, what, [id])) closeMessageDialog();
      };
      const buttons = element("p", { class: "buttons" },
        button("Replay", act("replay"), { class: "main" }), button("Discard", act("discard"), { class: "danger" }));
      showMessageDialog(`Dead letter ${id} of ${topic}`, buttons, ...showMessage(letter));
    });
  }

  #takeChosen(what) {
    return this.#take(this.#topic.value, what, [...this.#chosen].sort((one, other) => one - other));
  }

  // Whether it was meant, and begun.
  async #take(topic, what, ids) {
    const which = ids.length === 1 ? `dead letter ${ids[0]}` : counted(ids.length, "dead letter");
    if (!await confirm(...question(what, which, topic, []))) return false;
    await this.#acting(topic, what, async (done) => {
      for (const id of ids) {
        if (what === "replay") await call("POST", `${path("topics", topic, "dlq", id)}/replay`);
        else await call("DELETE", path("topics", topic, "dlq", id));
        done(1);
      }
    });
    return true;
  }

  async #takeAll(what) {
    const topic = this.#topic.value;
    // Not those that came after the list, or while the question is open: who answers it has not seen them.
    const until = Math.min(Number(this.#filter.until_us ?? Infinity), this.#listed);
    const query = { ...this.#filter, until_us: until };
    const given = Object.entries(this.#filter);
    const named = given.length
      ? ["Those that fit: ", ...given.flatMap(([name, value], at) => [at ? ", " : "", `${name.replace("_us", "")} `, { data: cut(shownValue(name, value)) }]), ". "]
      : [];
    const count = this.#metrics.topics[topic]?.dead_letters;
    const which = given.length ? "all dead letters that fit" : `all ${counted(count ?? this.#letters.length, "dead letter")}`;
    if (!await confirm(...question(what, which, topic, named))) return;
    await this.#acting(topic, what, async (done) => {
      done((await call("POST", `${path("topics", topic, "dlq")}/${what}-all`, query)).count);
    });
  }

  async #acting(topic, what, work) {
    let count = 0;
    await this.#page.doing(() => work((more) => { count += more; }));
    if (count) this.#page.tell(`${counted(count, "dead letter")} ${count === 1 ? "was" : "were"} ${what === "replay" ? `sent back to ${topic}` : "thrown away"}.`);
    this.#chosen.clear();
    this.#starts = [0];
    this.#state = "";
    await this.#page.refresh();
    this.#page.keepFocus();
  }
}

const shownValue = (name, value) => (name.endsWith("_us") ? moment(Number(value) / 1000) : value);

function question(what, which, topic, named) {
  if (what === "replay") return [`Replay ${which}?`, [...named, `They are sent back to ${topic} as new messages, and every group of it gets them.`], "Replay", false];
  return [`Discard ${which}?`, [...named, `They are thrown away for good. Dead letters of ${topic}.`], "Discard", true];
}
