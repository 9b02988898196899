// Elements are made of names and text, never of HTML: what a message, a key or a reason says stays text.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") || name === "style") throw new TypeError(`no attribute ${name}: use listeners and classes`);
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function button(text, action, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", action);
  return made;
}

export const field = (text, control) => element("label", {}, text, control);

export function setText(node, text) {
  // Unchanged text is left alone: a selection in it stays.
  if (node.textContent !== text) node.textContent = text;
}

// A table whose rows stay the same elements while their numbers change, so that focus and selection stay too.
//
// A column has a title, and either text(item) or create(item) with update(node, item).
export class Table {
  #rows = new Map();
  #columns;
  #body = element("tbody");
  #empty;

  constructor(caption, columns, empty) {
    this.#columns = columns;
    const heads = columns.map((column) => element("th", { scope: "col", class: classOf(column) }, column.head ?? column.title));
    this.#empty = element("p", { class: "note" }, empty);
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), this.#body);
    // Wide tables are scrolled by themselves, by the keyboard too.
    this.scroll = element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, table);
    this.node = element("div", {}, this.scroll, this.#empty);
  }

  update(items, keyOf) {
    const before = this.#rows;
    this.#rows = new Map();
    for (const item of items) {
      const key = keyOf(item);
      const row = before.get(key) ?? this.#make(item);
      before.delete(key);
      this.#rows.set(key, row);
      this.#columns.forEach((column, at) => {
        if (column.text) setText(row.cells[at], column.text(item));
        else column.update?.(row.cells[at], item);
        if (column.class) row.nodes[at].className = `${classOf(column)} ${column.class(item)}`.trim();
      });
    }
    for (const row of before.values()) row.line.remove();
    let at = this.#body.firstChild;
    for (const { line } of this.#rows.values()) {
      if (line === at) at = at.nextSibling;
      else this.#body.insertBefore(line, at);
    }
    this.scroll.hidden = this.#rows.size === 0;
    this.#empty.hidden = this.#rows.size > 0;
  }

  #make(item) {
    const nodes = this.#columns.map((column) => element(column.heading ? "th" : "td", { class: classOf(column), scope: column.heading ? "row" : null }));
    const cells = this.#columns.map((column, at) => {
      if (!column.create) return nodes[at];
      const made = column.create(item);
      nodes[at].append(made);
      return made;
    });
    return { line: element("tr", {}, ...nodes), nodes, cells };
  }
}

const classOf = (column) => [column.number ? "number" : "", column.short ? "short" : "", column.line ? "line" : ""].join(" ").trim();
