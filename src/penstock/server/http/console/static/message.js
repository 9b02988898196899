// One message, whole: where it lies, key, headers, and its value as text, JSON or hexadecimal.

import { bytesOf, hexOf, SHOWN_BYTES, textOf, waysToShow } from "./content.js";
import { element } from "./dom.js";
import { bytes, cut, moment, number, visible } from "./format.js";

const data = (text) => element("span", { class: "data" }, text);

// A short piece of data on one line: text if it is any, else its bytes.
export function brief(message, name, length = 120) {
  if (message[`${name}_base64`] === undefined) return message[name] === null || message[name] === undefined ? null : cut(message[name], length);
  const found = bytesOf(message, name);
  const text = textOf(found);
  if (text !== null) return cut(text, length);
  const codes = Array.from(found.subarray(0, 16), (one) => one.toString(16).padStart(2, "0")).join(" ");
  return `bytes ${codes}${found.length > 16 ? " …" : ""}`;
}

export function headerText(message, name) {
  // The last one: dead-lettering adds its own behind those that the message brought.
  const header = message.headers.findLast((one) => one.name === name);
  if (header === undefined) return null;
  return textOf(bytesOf(header, "value"));
}

export function showMessage(message) {
  const facts = [
    ["Topic", message.topic],
    ["Partition", number(message.partition)],
    ["Offset", number(message.offset)],
    ["Time", `${moment(message.timestamp)} (${message.timestamp})`],
  ];
  for (const [title, name] of [["Due", "deliver_at"], ["Expires", "expires_at"], ["Priority", "priority"]]) {
    if (message[name]) facts.push([title, name === "priority" ? message[name] : moment(message[name])]);
  }
  const list = element("dl", {}, ...facts.flatMap(([title, text]) => [element("dt", {}, title), element("dd", {}, text)]));
  list.append(element("dt", {}, "Key"), element("dd", {}, keyOf(message)));
  return [list, ...headersOf(message), ...valueOf(message)];
}

function keyOf(message) {
  const key = bytesOf(message, "key");
  if (key === null) return "none";
  const text = textOf(key);
  return data(text === null ? hexOf(key.subarray(0, SHOWN_BYTES)) : visible(text.slice(0, SHOWN_BYTES), true));
}

function headersOf(message) {
  if (!message.headers.length) return [element("p", { class: "note" }, "No headers.")];
  const rows = message.headers.map((header) => element("tr", {},
    element("th", { scope: "row" }, data(cut(header.name, 200))),
    element("td", {}, data(brief(header, "value", 2_000)))));
  const head = element("tr", {}, element("th", { scope: "col" }, "Name"), element("th", { scope: "col" }, "Value"));
  const table = element("table", {}, element("caption", {}, "Headers"), element("thead", {}, head), element("tbody", {}, ...rows));
  return [element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Headers" }, table)];
}

function valueOf(message) {
  const value = bytesOf(message, "value");
  if (value === null) return [element("h2", {}, "Value"), element("p", {}, "none: a tombstone")];
  const ways = waysToShow(value);
  const shown = element("pre", { class: "data", tabindex: "0", id: "value", "aria-label": "Value" });
  const choices = element("fieldset", {}, element("legend", {}, `Value, ${bytes(value.length)}, as`));
  const show = (way) => {
    shown.textContent = ways.get(way)();
    shown.className = way === "Hex" ? "data hex" : "data";
  };
  for (const [at, way] of [...ways.keys()].entries()) {
    const choice = element("input", { type: "radio", name: "way", value: way, checked: at === 0 });
    choice.addEventListener("change", () => show(way));
    choices.append(element("label", {}, choice, ` ${way}`));
  }
  show(ways.keys().next().value);
  const note = value.length > SHOWN_BYTES ? [element("p", { class: "note" }, `The first ${bytes(SHOWN_BYTES)} are shown.`)] : [];
  return [choices, shown, ...note];
}
