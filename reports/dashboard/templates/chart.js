"use strict";
// Draws the trend of one series and the history of one clause.
(() => {
  const NAMES = { m: "missing", l: "learning", s: "steady", n: "new", c: "confirmed", a: "acknowledged", r: "resolved", i: "improved" };
  const CLAUSES = { k: "kept", l: "listed", b: "broken", u: "unsteady", s: "unsupported", n: "not-run", a: "absent" };
  const SVG = "http://www.w3.org/2000/svg";

  const make = (name, attributes, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const draw = (parent, name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  Page.make = make;
  Page.moment = (night) => (night.length > 15 ? `${night.slice(0, 10)} ${night.slice(11, 13)}:${night.slice(13, 15)}` : night);
  Page.percent = (share) => `${share < 0 ? "−" : "+"}${Math.abs(share * 100).toFixed(1)}%`;
  Page.number = (value, ratio) => (value === null ? "–" : ratio ? value.toFixed(3) : String(Number(value.toPrecision(4))));
  Page.NAMES = NAMES;
  Page.expand = (runs) => [...runs.matchAll(/([a-z])(\d+)/g)].flatMap(([, letter, count]) => Array(Number(count)).fill(letter));
  Page.CLAUSES = CLAUSES;
  const rawLink = (path) => {
    const place = path.split("/").map(encodeURIComponent).join("/");
    return make("a", { href: `${document.body.dataset.raw}/${place}` }, path.split("/").pop());
  };

  const steps = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
    return [found, Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step).includes("25") ? 1 : 0))];
  };

  // Nights from `from` on. Returns where a night lies, so that the pointer can be followed.
  const plot = (box, data, nights, from, about) => {
    const width = Math.max(box.clientWidth, 280), height = width < 600 ? 230 : 300;
    const edge = { left: 52, right: 12, top: 26, bottom: 26 };
    const { value, low, high, level, noise, first } = data.columns, count = value.length;
    const spread = [];
    for (let at = from; at < count; at++) {
      if (value[at] === null) continue;
      spread.push(value[at], low[at], high[at]);
      if (level[at] !== null) spread.push(level[at] * Math.exp(2.2 * noise[at]), level[at] * Math.exp(-2.2 * noise[at]));
    }
    if (!spread.length) {
      box.replaceChildren(make("p", {}, "No night of this range has a number."));
      return null;
    }
    let bottom = Math.min(...spread), top = Math.max(...spread);
    const room = Math.max((top - bottom) * 0.08, top * 0.005);
    bottom -= room; top += room;
    const x = (at) => edge.left + ((at - from) / Math.max(count - 1 - from, 1)) * (width - edge.left - edge.right);
    const y = (v) => edge.top + ((top - v) / (top - bottom)) * (height - edge.top - edge.bottom);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("class", "chart");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", about);
    const [marks, digits] = steps(bottom, top, 5);
    for (const mark of marks) {
      draw(svg, "line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(mark), y2: y(mark) });
      draw(svg, "text", { class: "axis", x: edge.left - 7, y: y(mark) + 4, "text-anchor": "end" }, mark.toFixed(digits));
    }
    const labels = Math.max(2, Math.floor(width / 170));
    for (let n = 0; n <= labels; n++) {
      const at = Math.round(from + (n / labels) * (count - 1 - from));
      const anchor = n === 0 ? "start" : n === labels ? "end" : "middle";
      draw(svg, "text", { class: "axis", x: x(at), y: height - 7, "text-anchor": anchor }, nights[data.first + at][0].slice(0, 10));
    }
    changes(svg, data, from, count, x, edge, height);
    band(svg, level, noise, from, count, x, y);
    let path = "", pen = "M";
    for (let at = from; at < count; at++) {
      const [, status, , versions] = nights[data.first + at];
      if (status === "missed") draw(svg, "line", { class: "missed", x1: x(at), x2: x(at), y1: height - edge.bottom - 5, y2: height - edge.bottom });
      if (versions.length) {
        const tick = draw(svg, "path", { class: "versions", d: `M${x(at)} ${height - edge.bottom}l-4 -7h8z` });
        draw(tick, "title", {}, versions.map(([n, a, b]) => `${n}: ${a || "–"} → ${b || "–"}`).join("\n"));
      }
      if (value[at] === null) { pen = "M"; continue; }
      path += `${pen}${x(at).toFixed(1)} ${y(value[at]).toFixed(1)}`;
      pen = "L";
    }
    draw(svg, "path", { class: "line", d: path });
    const fine = count - from <= 130;
    for (let at = from; at < count; at++) {
      if (value[at] === null) continue;
      if (fine) draw(svg, "line", { class: "blocks", x1: x(at), x2: x(at), y1: y(low[at]), y2: y(high[at]) });
      if (fine && first[at] !== null && first[at] >= bottom && first[at] <= top) {
        draw(svg, "circle", { class: "first", cx: x(at), cy: y(first[at]), r: 2.5 });
      }
      draw(svg, "circle", { class: `s-${NAMES[data.states[at]]}`, cx: x(at), cy: y(value[at]), r: fine ? 3 : 2 });
    }
    const cursor = draw(svg, "line", { class: "cursor", x1: 0, x2: 0, y1: edge.top, y2: height - edge.bottom });
    box.replaceChildren(svg);
    return {
      point: (at) => { cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at)); },
      night: (event) => {
        const frame = svg.getBoundingClientRect();
        const share = ((event.clientX - frame.left) * (width / frame.width) - edge.left) / (width - edge.left - edge.right);
        return Math.min(count - 1, Math.max(from, Math.round(from + share * (count - 1 - from))));
      },
      svg,
    };
  };

  const band = (svg, level, noise, from, count, x, y) => {
    for (let at = from; at < count; at++) {
      if (level[at] === null) continue;
      let end = at;
      while (end + 1 < count && level[end + 1] !== null) end += 1;
      const over = [], under = [], line = [];
      for (let each = at; each <= end; each++) {
        over.push(`${x(each).toFixed(1)} ${y(level[each] * Math.exp(2 * noise[each])).toFixed(1)}`);
        under.unshift(`${x(each).toFixed(1)} ${y(level[each] * Math.exp(-2 * noise[each])).toFixed(1)}`);
        line.push(`${x(each).toFixed(1)} ${y(level[each]).toFixed(1)}`);
      }
      draw(svg, "path", { class: "band", d: `M${over.concat(under).join("L")}Z` });
      draw(svg, "path", { class: "level", d: `M${line.join("L")}` });
      at = end;
    }
  };

  const changes = (svg, data, from, count, x, edge, height) => {
    let last = -99;
    for (const change of data.changes) {
      const since = change.since - data.first, until = change.until < 0 ? count - 1 : change.until - data.first;
      if (until < from) continue;
      const left = x(Math.max(since, from)), kind = change.worse ? change.state : "improved";
      if (change.worse && change.state !== "acknowledged") draw(svg, "rect", { class: `span ${kind}`, x: left, y: edge.top, width: Math.max(x(until) - left, 2), height: height - edge.top - edge.bottom });
      if (since < from) continue;
      draw(svg, "line", { class: `change ${kind}`, x1: left, x2: left, y1: edge.top - 4, y2: height - edge.bottom });
      const late = left > x(count - 1) - 90;
      if (Math.abs(left - last) > 60) {
        draw(svg, "text", { class: `change ${kind}`, x: left, y: edge.top - 9, "text-anchor": late ? "end" : "start" },
          `${Page.percent(change.effect[0])}${change.note ? " ✎" : ""}`);
        last = left;
      }
    }
  };

  const listed = (data, nights, ratio) => {
    const list = make("ul", { class: "changes" });
    const name = (at) => Page.moment(nights[at][0]);
    for (const change of [...data.changes].reverse()) {
      const [effect, low, high] = change.effect, [old, now] = change.commits.map((c) => c.replace("+", "").slice(0, 10));
      const told = [`${Page.percent(effect)} (95 %: ${Page.percent(low)} to ${Page.percent(high)}), ${change.state}, since ${name(change.since)}`];
      if (change.found !== change.since) told.push(`found ${name(change.found)}`);
      if (change.until >= 0) told.push(`until ${name(change.until)}`);
      if (old && now) told.push(old === now ? `commit ${old}` : `commits ${old}..${now}`);
      for (const [what, before, after] of change.versions) told.push(`${what} ${before || "–"} → ${after || "–"}`);
      const item = make("li", {}, told.join(" · "));
      if (change.note) item.append(make("q", {}, change.note));
      list.append(item);
    }
    return data.changes.length ? list : make("p", { class: "quiet" }, "No change of level was found in this series.");
  };

  const told = (data, nights, at, row) => {
    const { value, low, high, level, noise, first } = data.columns, ratio = row.dataset.basis !== "time";
    const [name, , commit, , files] = nights[data.first + at];
    const parts = [`${Page.moment(name)}:`];
    if (value[at] === null) parts.push(data.why[at] || "no number");
    else {
      parts.push(`${Page.number(value[at], ratio)} ${row.dataset.unit}`, `(blocks ${Page.number(low[at], ratio)} to ${Page.number(high[at], ratio)})`);
      if (level[at] !== null) parts.push(`· ${Page.percent(value[at] / level[at] - 1)} off its level, noise ${(noise[at] * 100).toFixed(1)} %`);
      if (first[at] !== null) parts.push(`· measured again, at first ${Page.number(first[at], ratio)}`);
    }
    parts.push(`· ${NAMES[data.states[at]]}`, commit ? `· ${commit.slice(0, 10)}` : "");
    return [parts.join(" "), files];
  };

  Page.trend = async (cell, row) => {
    const [data, machines] = await Promise.all([Page.load(`series-${row.dataset.number}`), Page.load("nights")]);
    const nights = machines[Number(row.dataset.machine)].nights, count = data.columns.value.length;
    const name = row.querySelector("button.open").textContent, ratio = row.dataset.basis !== "time";
    const box = make("div", { class: "plot" }), out = make("output", {}), files = make("span", { class: "files" });
    const slider = make("input", { type: "range", min: 0, max: count - 1, value: count - 1, "aria-label": "Night" });
    const ranges = make("div", { class: "ranges", role: "group", "aria-label": "Nights shown" });
    let chart = null, from = Math.max(0, count - 120);
    const point = (at) => {
      const [text, paths] = told(data, nights, at, row);
      slider.value = at;
      slider.setAttribute("aria-valuetext", text);
      out.textContent = text;
      files.replaceChildren(...paths.flatMap((path) => [rawLink(path), " "]));
      if (chart) chart.point(at);
    };
    const redraw = () => {
      const about = `Trend of ${name}: ${count - from} nights, now ${Page.number(data.columns.value[count - 1], ratio)} ${row.dataset.unit}, ${row.dataset.state}; ${data.changes.length} ${data.changes.length === 1 ? "change" : "changes"} found`;
      chart = plot(box, data, nights, from, about);
      slider.min = from;
      if (chart) chart.svg.addEventListener("pointermove", (event) => point(chart.night(event)));
      point(Math.max(from, Number(slider.value)));
    };
    for (const length of [30, 120, 365, count].filter((n, at, all) => n <= count && all.indexOf(n) === at)) {
      const button = make("button", { type: "button", "aria-pressed": String(count - from === length) }, length === count ? `all ${count}` : `${length}`);
      button.addEventListener("click", () => {
        from = count - length;
        for (const each of ranges.children) each.setAttribute("aria-pressed", String(each === button));
        redraw();
      });
      ranges.append(button);
    }
    slider.addEventListener("input", () => point(Number(slider.value)));
    const parameters = make("details", { class: "judged", open: "" }, make("summary", {}, "How this series is judged"));
    parameters.append(document.getElementById("parameters").content.cloneNode(true));
    const key = make("p", { class: "legend quiet" }, "Line: the night's median. Bars: its blocks. Band: level ± 2 × noise. ○ before it was measured again. ▲ versions changed. ✎ has a note.");
    const inside = make("div", { class: "inside" }, ranges, box, slider, make("p", { class: "readout" }, out, " ", files), key, listed(data, nights, ratio));
    inside.append(make("p", { class: "quiet" }, "key ", make("code", {}, row.dataset.key)), parameters);
    cell.replaceChildren(inside);
    redraw();
    let width = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== width) { width = box.clientWidth; redraw(); }
    }).observe(box);
  };

  // -- clauses: one strip for each subject, backend and world
  const strip = (states, nights, about) => {
    const svg = document.createElementNS(SVG, "svg"), count = states.length;
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${count} 10`, preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": about })) svg.setAttribute(key, value);
    for (let at = 0; at < count;) {
      let end = at;
      while (end < count && states[end] === states[at]) end += 1;
      const rect = draw(svg, "rect", { class: `c-${CLAUSES[states[at]]}`, x: at, width: end - at, height: 10 });
      draw(rect, "title", {}, `${CLAUSES[states[at]]}: ${Page.moment(nights[at][0])} to ${Page.moment(nights[end - 1][0])}`);
      at = end;
    }
    return svg;
  };
  Page.clause = async (cell, clause) => {
    const [all, machines] = await Promise.all([Page.load("clauses"), Page.load("nights")]);
    const inside = make("div", { class: "inside strips" });
    for (const [machine, key, runs, note] of all) {
      if (key.split("/")[0] !== clause) continue;
      const states = Page.expand(runs), { name, nights } = machines[machine];
      const turns = states.reduce((n, each, at) => n + (at > 0 && each !== states[at - 1] && each !== "a" && states[at - 1] !== "a"), 0);
      const place = key.split("/").slice(1).join(" · ");
      const about = `${place} on ${name}: ${states.length} nights, changed ${turns} times, now ${CLAUSES[states[states.length - 1]]}`;
      const line = make("div", { class: "strip-line" }, make("span", {}, place, machines.length > 1 ? make("small", {}, name) : ""), strip(states, nights, about));
      if (note) line.append(make("q", {}, note));
      inside.append(line);
    }
    inside.append(make("p", { class: "quiet" }, "Each strip runs from the first night to the latest."));
    cell.replaceChildren(inside);
  };
})();
