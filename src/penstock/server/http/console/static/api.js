// Calls of the server. The token lies in sessionStorage: in this tab, until it is closed or the token is forgotten.

const KEY = "penstock-token";
const PATIENCE_MS = 60_000;

export class Problem extends Error {
  constructor(status, code, detail, fields = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.fields = fields;
  }
}

let asking = null;
let askForToken = async () => null;

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const forgetToken = () => sessionStorage.removeItem(KEY);
export const whenTokenIsNeeded = (ask) => { askForToken = ask; };

// All who wait for a token wait for the same answer. Whether there is one now.
export function needToken(reason) {
  asking ??= askForToken(reason).then((token) => {
    if (token !== null) sessionStorage.setItem(KEY, token);
    return token !== null;
  }).finally(() => { asking = null; });
  return asking;
}

// The parts of a path are data: `/` and `..` in them stay what they are.
export const path = (...parts) => ["v1", ...parts.map((part) => encodeURIComponent(part))].join("/");

export async function call(method, where, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  for (;;) {
    if (asking) await asking;
    const token = sessionStorage.getItem(KEY);
    const response = await send(method, text ? `${where}?${text}` : where, token);
    if (response.ok) return response.status === 204 ? null : response.json();
    const problem = await problemOf(response);
    if (problem.status !== 401) throw problem;
    // Another request may have brought a new one meanwhile.
    if (sessionStorage.getItem(KEY) !== token) continue;
    const reason = token === null ? "" : `The token that you gave is not valid: ${problem.message}`;
    if (!await needToken(reason)) throw problem;
  }
}

async function send(method, url, token) {
  const headers = { Accept: "application/json" };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  try {
    return await fetch(url, {
      method, headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch {
    throw new Problem(0, "NO_ANSWER", "the server does not answer");
  }
}

async function problemOf(response) {
  try {
    const fields = await response.json();
    return new Problem(response.status, String(fields.code), String(fields.detail), fields);
  } catch {
    return new Problem(response.status, "UNKNOWN", `the server answers ${response.status}`);
  }
}
