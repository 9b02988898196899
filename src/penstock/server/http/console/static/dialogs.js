// Questions to the person: a token, and whether something is really meant.

import { byId, element } from "./dom.js";

// Shows a dialog; resolves with whether it was sent off, not cancelled or closed by Escape.
function ask(dialog) {
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    let sent = false;
    const submit = () => { sent = true; };
    form.addEventListener("submit", submit);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", submit);
      resolve(sent);
    }, { once: true });
    dialog.showModal();
  });
}

export function prepareDialogs() {
  for (const cancel of document.querySelectorAll("dialog [data-cancel]")) {
    cancel.addEventListener("click", () => cancel.closest("dialog").close());
  }
}

export async function askForToken(reason) {
  const [dialog, input] = [byId("token-dialog"), byId("token")];
  byId("token-reason").textContent = reason;
  input.value = "";
  const given = await ask(dialog);
  const token = input.value.trim();
  input.value = "";
  return given && token ? token : null;
}

// Nothing is sent back or thrown away without a yes; Cancel has the focus.
export function confirm(title, text, verb, danger) {
  byId("confirm-title").textContent = title;
  byId("confirm-text").replaceChildren(...text.map((part) => (part.data === undefined ? part : element("span", { class: "data" }, part.data))));
  const yes = byId("confirm-yes");
  yes.textContent = verb;
  yes.className = danger ? "danger" : "main";
  return ask(byId("confirm-dialog"));
}

export function showMessageDialog(title, ...content) {
  const dialog = byId("message-dialog");
  byId("message-title").textContent = title;
  byId("message-body").replaceChildren(...content);
  if (!dialog.open) dialog.showModal();
}

export const closeMessageDialog = () => byId("message-dialog").close();
