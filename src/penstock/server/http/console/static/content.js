// The bytes of a value as text, JSON or hexadecimal.

import { visible } from "./format.js";

export const SHOWN_BYTES = 64 * 1024;

export function bytesOf(message, name) {
  const coded = message[`${name}_base64`];
  if (coded !== undefined) return Uint8Array.from(atob(coded), (one) => one.charCodeAt(0));
  return message[name] === null || message[name] === undefined ? null : new TextEncoder().encode(message[name]);
}

// As UTF-8; null if it is none.
export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

// JSON with line ends and indents; null if it is none. Made from the text, not from what JavaScript understands of it: long numbers and
// repeated names stay as they are.
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  const parts = [];
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  for (const [at, token] of tokens.entries()) {
    if (token === "{" || token === "[") {
      depth += 1;
      parts.push(token, "}]".includes(tokens[at + 1]) ? "" : newLine());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      parts.push("{[".includes(tokens[at - 1]) ? "" : newLine(), token);
    } else if (token === ",") parts.push(token, newLine());
    else if (token === ":") parts.push(": ");
    else parts.push(token);
  }
  return parts.join("");
}

export function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const some = Array.from(bytes.subarray(at, at + 16));
    const codes = some.map((one) => one.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const text = some.map((one) => (one >= 0x20 && one < 0x7f ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return lines.join("\n");
}

// The ways in which these bytes can be shown, best first: name -> what makes the text.
export function waysToShow(bytes) {
  const some = bytes.subarray(0, SHOWN_BYTES);
  const text = textOf(bytes);
  const found = new Map();
  if (text !== null) {
    const json = bytes.length <= SHOWN_BYTES ? prettyJson(text) : null;
    if (json !== null) found.set("JSON", () => visible(json, true));
    found.set("Text", () => visible(new TextDecoder().decode(some), true));
  }
  found.set("Hex", () => hexOf(some));
  return found;
}
