// Numbers, times and text for people.

const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => NUMBER.format(value);

export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function rate(value) {
  if (value === null) return "–";
  return `${value >= 10 || value === 0 ? number(Math.round(value)) : value.toFixed(1)}/s`;
}

// A length of time, from microseconds to days.
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3_600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

// A moment in the zone of who looks, to the second or the millisecond.
export function moment(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return visible(text);
  const two = (part, digits = 2) => String(part).padStart(digits, "0");
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const fraction = date.getMilliseconds() ? `.${two(date.getMilliseconds(), 3)}` : "";
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}${fraction}`;
}

// Characters that cannot be seen, or that turn others round, are shown by their numbers; line ends and tabs stay if they may.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text, lines = false) {
  const shown = text.replace(UNSEEN, (one) => (lines && one === "\r" ? "␍" : `\\u{${one.codePointAt(0).toString(16)}}`));
  return lines ? shown : shown.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

export function cut(text, length = 120) {
  // By characters, not by halves of them.
  const some = Array.from(text.slice(0, length * 2));
  return some.length > length || text.length > length * 2 ? `${visible(some.slice(0, length).join(""))}…` : visible(text);
}

// The seconds within which a share of what a histogram counted was done, guessed between the bounds of a bucket; null without any.
export function quantile(counts, bounds, share) {
  const wanted = share * counts.reduce((sum, one) => sum + one, 0);
  let seen = 0;
  let low = 0;
  for (const [at, count] of counts.entries()) {
    const high = bounds[Math.min(at, bounds.length - 1)];
    if (count && seen + count >= wanted) return low + (high - low) * (wanted - seen) / count;
    seen += count;
    low = high;
  }
  return null;
}
