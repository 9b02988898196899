// The frame: which view is shown, the numbers every two seconds while the page can be seen, and what went wrong.

import { call, forgetToken, hasToken, needToken, path, whenTokenIsNeeded } from "./api.js";
import { DeadLetters } from "./dead_letters.js";
import { askForToken, prepareDialogs } from "./dialogs.js";
import { byId, element } from "./dom.js";
import { moment } from "./format.js";
import { Groups } from "./groups.js";
import { History } from "./history.js";
import { Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Topics } from "./topics.js";

const EVERY_MS = 2_000;
const EVERY_MS_MOST = 15_000;
const VIEWS = { topics: Topics, groups: Groups, "dead-letters": DeadLetters, messages: Messages, server: Overview };

let history = new History();
let view = null;
let metrics = null;
let timer = null;
let failures = 0;
let polling = null;
let telling = null;

// What views may use of the frame.
const page = {
  go(...parts) {
    location.hash = `#/${parts.map(encodeURIComponent).join("/")}`;
  },

  // Run *work*; what goes wrong is told. What went wrong before stays told if nobody asked for this.
  async doing(work, unasked = false) {
    try {
      if (!unasked) byId("alert").hidden = true;
      await work();
    } catch (problem) {
      page.alert(explained(problem));
    }
  },

  alert(text) {
    byId("alert").textContent = text;
    byId("alert").hidden = false;
  },

  tell(text) {
    clearTimeout(telling);
    byId("told").textContent = text;
    byId("told").hidden = false;
    telling = setTimeout(() => { byId("told").hidden = true; }, 15_000);
  },

  refresh: () => poll(),

  // What had the focus may be gone: a reader should not be thrown to the top of the page.
  keepFocus() {
    if (document.activeElement === document.body || document.activeElement === null) document.querySelector("h1")?.focus();
  },

  fillTopics(select, names, wanted, texts = new Map()) {
    const all = wanted && !names.includes(wanted) ? [wanted, ...names] : names;
    const before = select.value;
    all.forEach((name, at) => {
      let option = select.options[at];
      if (!option) {
        option = element("option");
        select.append(option);
      }
      const text = texts.get(name) ?? name;
      if (option.value !== name || option.textContent !== text) {
        option.value = name;
        option.textContent = text;
      }
    });
    while (select.options.length > all.length) select.options[select.options.length - 1].remove();
    const value = wanted && !before ? wanted : before;
    if (all.includes(value)) select.value = value;
  },
};

function explained(problem) {
  if (problem.status === 401) return "No valid token was given, so the server tells nothing.";
  if (problem.status === 403) return `The token does not allow that: ${problem.message}`;
  return problem.code ? `${problem.message} [${problem.code}]` : String(problem.message ?? problem);
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  const [name, topic] = parts.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return "";
    }
  });
  const chosen = Object.hasOwn(VIEWS, name) ? name : "topics";
  view = new VIEWS[chosen](page, topic || null);
  const heading = element("h1", { tabindex: "-1" }, view.title);
  byId("view").replaceChildren(heading);
  byId("alert").hidden = true;
  document.title = `${view.title} – Penstock`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.show(byId("view"));
  if (metrics !== null) view.update(metrics, history);
  return heading;
}

// One at a time; those who ask meanwhile get the next answer.
async function poll() {
  while (polling !== null) await polling;
  polling = ask().finally(() => { polling = null; });
  await polling;
}

async function ask() {
  clearTimeout(timer);
  const before = history;
  try {
    const found = await call("GET", path("metrics"));
    // The token was forgotten meanwhile, and with it what it let us see; whoever forgot it asks anew.
    if (history !== before) return;
    metrics = found;
    failures = 0;
    history.add(metrics);
    tellState();
    view.update(metrics, history);
  } catch (problem) {
    failures += 1;
    byId("state").className = "bad";
    byId("state").textContent = `${explained(problem)}${metrics === null ? "" : `; numbers of ${moment(metrics.now_us / 1e3)}`}`;
    byId("give-token").hidden = problem.status !== 401;
    if (problem.status === 401) {
      // Nobody wants to be asked every two seconds.
      return;
    }
  } finally {
    byId("forget-token").hidden = !hasToken();
  }
  if (!document.hidden) timer = setTimeout(poll, Math.min(EVERY_MS_MOST, EVERY_MS * 2 ** Math.min(failures, 4)));
}

function tellState() {
  byId("give-token").hidden = true;
  const nothing = metrics.store === undefined && Object.keys(metrics.topics).length === 0;
  const state = byId("state");
  state.className = metrics.ready && !nothing ? "" : "bad";
  if (nothing) state.textContent = "This token has the right to read no topic, so there is nothing to show. Use one with the right read.";
  else state.textContent = `${metrics.ready ? "ready" : "takes no work"}, version ${metrics.version}`;
}

function begin() {
  prepareDialogs();
  whenTokenIsNeeded(askForToken);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  byId("give-token").addEventListener("click", async () => {
    if (await needToken("")) await poll();
  });
  byId("forget-token").addEventListener("click", () => {
    forgetToken();
    // What the token let us see goes with it.
    metrics = null;
    history = new History();
    byId("told").hidden = true;
    route();
    poll();
  });
  addEventListener("hashchange", () => route().focus());
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) poll();
    else clearTimeout(timer);
  });
  route();
  poll();
}

begin();
