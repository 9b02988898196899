// What the page has seen while it was open: rates of topics and groups, and latencies of the last minutes.
//
// The server keeps no history. It has counts since it began; two of them and the time between make a rate.

const POINTS = 150;
const SPAN_US = 300e6;

export class History {
  #series = new Map();
  #times = new Map();
  #last = null;

  add(metrics) {
    if (this.#last !== null && metrics.now_us <= this.#last) return;
    const seconds = this.#last === null ? null : (metrics.now_us - this.#last) / 1e6;
    this.#last = metrics.now_us;
    const seen = new Set();
    for (const [name, topic] of Object.entries(metrics.topics)) {
      seen.add(name);
      const delivered = Object.values(topic.groups).reduce((sum, group) => sum + group.delivered, 0);
      this.#count(name, topic.published, delivered, seconds);
      this.#observe(`publish ${name}`, topic.publish, metrics.now_us);
    }
    for (const name of this.#series.keys()) if (!seen.has(name)) this.#series.delete(name);
    for (const name of this.#times.keys()) {
      if (name.startsWith("publish ") && !seen.has(name.slice(8))) this.#times.delete(name);
    }
    this.#observe("fsync", metrics.store?.fsync, metrics.now_us);
  }

  #count(name, published, delivered, seconds) {
    const one = this.#series.get(name);
    if (one === undefined || seconds === null || published < one.published || delivered < one.delivered) {
      // New, or the server has begun anew, or a group is gone: there is nothing to compare with.
      this.#series.set(name, { published, delivered, in: one?.in ?? [], out: one?.out ?? [] });
      return;
    }
    one.in.push((published - one.published) / seconds);
    one.out.push((delivered - one.delivered) / seconds);
    if (one.in.length > POINTS) { one.in.shift(); one.out.shift(); }
    one.published = published;
    one.delivered = delivered;
  }

  #observe(name, latency, now) {
    if (!latency) return;
    const seen = this.#times.get(name) ?? [];
    const last = seen.at(-1);
    if (last && latency.counts.some((count, at) => count < last.counts[at])) seen.length = 0;
    // One in ten seconds is kept, and the newest.
    if (seen.length > 1 && last.at - seen.at(-2).at < 10e6) seen.pop();
    seen.push({ at: now, counts: latency.counts });
    while (seen.length > 2 && now - seen[1].at > SPAN_US) seen.shift();
    this.#times.set(name, seen);
  }

  rates(topic) {
    const found = this.#series.get(topic);
    return { in: found?.in ?? [], out: found?.out ?? [] };
  }

  // What was observed in the last minutes, or, if that is nothing, since the server began.
  latency(name) {
    const seen = this.#times.get(name);
    if (!seen) return null;
    const [first, last] = [seen[0], seen.at(-1)];
    const recent = last.counts.map((count, at) => count - first.counts[at]);
    const any = recent.some((count) => count > 0);
    return any ? { counts: recent, seconds: (last.at - first.at) / 1e6 } : { counts: last.counts, seconds: null };
  }
}
