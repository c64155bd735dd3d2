"use strict";
// Compares any two nights, of one machine or of two.
(() => {
  let ready = null;
  const form = document.getElementById("f-compare"), table = document.getElementById("t-compare");
  const about = document.getElementById("compared"), field = (name) => form.elements[name];
  const { make } = Page;

  const fill = (machines, side, last) => {
    const { nights } = machines[Number(field(`machine-${side}`).value)];
    const there = nights.map((night, at) => [night, at]).filter(([night]) => night[1] !== "missed").reverse();
    field(`night-${side}`).replaceChildren(...there.map(([night, at]) => make("option", { value: at }, `${Page.moment(night[0])}${night[1] === "half" ? " (half)" : ""}`)));
    field(`night-${side}`).selectedIndex = Math.min(last, there.length - 1);
  };
  const at = (series, night) => {
    const value = series.values[night - series.first];
    return value === undefined ? null : value;
  };
  const nameOf = (row) => [row.querySelector("button.open").textContent, row.dataset.unit, row.dataset.basis].join("\n");

  const seriesOf = (values, machine, night) => {
    const found = new Map();
    for (const row of document.querySelectorAll("#t-series .row")) {
      if (Number(row.dataset.machine) !== machine) continue;
      const series = values[Number(row.dataset.number)], value = at(series, night);
      if (value !== null) found.set(nameOf(row), { value, noise: series.noise, row });
    }
    return found;
  };
  const statesOf = (clauses, machine, night) => {
    const found = new Map();
    for (const [home, key, runs] of clauses) if (home === machine) found.set(key, Page.expand(runs)[night]);
    return found;
  };

  const line = (cells, name, text) => {
    const row = make("tr", { class: "row", "data-text": text.toLowerCase() });
    row.append(make("th", { scope: "row" }, ...name), ...cells);
    return row;
  };
  const figure = (text, value) => make("td", { class: "num", "data-v": value === null ? "" : value }, text);

  const compare = ([values, machines, clauses]) => {
    const side = (name) => ({ machine: Number(field(`machine-${name}`).value), night: Number(field(`night-${name}`).value) });
    const a = side("a"), b = side("b"), only = field("only").value, rows = [];
    const before = seriesOf(values, a.machine, a.night), after = seriesOf(values, b.machine, b.night);
    let apart = 0;
    for (const [name, one] of before) {
      const other = after.get(name);
      if (!other) continue;
      const [title, unit, basis] = name.split("\n"), ratio = basis !== "time";
      const share = other.value / one.value - 1, noise = Math.max(one.noise || 0, other.noise || 0);
      // of a difference of two single nights
      const times = noise ? Math.log(other.value / one.value) / (noise * Math.SQRT2) : null;
      const far = times !== null && Math.abs(times) > 3;
      apart += far;
      if (only === "clauses" || (only === "apart" && !far)) continue;
      rows.push([-Math.abs(times || 0), line([
        figure(Page.number(one.value, ratio), one.value), figure(Page.number(other.value, ratio), other.value),
        figure(Page.percent(share), share), figure(times === null ? "–" : times.toFixed(1).replace("-", "−"), times),
      ], [make("a", { href: `#series=${encodeURIComponent(other.row.dataset.key)}` }, title), " ", make("small", {}, unit)], title)]);
      if (far) rows[rows.length - 1][1].classList.add(share > 0 ? "slower" : "faster");
    }
    const was = statesOf(clauses, a.machine, a.night), is = statesOf(clauses, b.machine, b.night);
    let differ = 0;
    for (const [key, old] of was) {
      const now = is.get(key);
      if (now === undefined || now === old) continue;
      differ += 1;
      if (only === "apart") continue;
      const mark = (letter) => make("td", {}, make("span", { class: `mark c-${Page.CLAUSES[letter]}` }, Page.CLAUSES[letter].replace("-", " ")));
      rows.push([-1e9, line([mark(old), mark(now), make("td", {}, "–"), make("td", {}, "–")],
        [make("a", { href: `#clause=${encodeURIComponent(key.split("/")[0])}` }, key)], key)]);
    }
    rows.sort(([x], [y]) => x - y);
    table.tBodies[0].replaceChildren(...rows.map(([, row]) => row));
    for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
    const [x, y] = [machines[a.machine].nights[a.night], machines[b.machine].nights[b.night]];
    const shared = [...before.keys()].filter((name) => after.has(name)).length;
    const commits = x[2] === y[2] ? `the same commit ${x[2].slice(0, 10) || "(unknown)"}` : `commits ${x[2].slice(0, 10)} and ${y[2].slice(0, 10)}`;
    about.replaceChildren(make("p", {}, make("strong", {}, `${apart} of ${shared} series`), ` differ by more than 3 times the noise of a difference; `,
      make("strong", {}, `${differ}`), ` clause results differ; ${commits}.`));
    search();
  };
  const search = () => {
    const words = field("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !words.every((word) => row.dataset.text.includes(word));
      shown += !row.hidden;
    }
    form.querySelector(".count").textContent = `${shown} of ${table.tBodies[0].rows.length}`;
  };

  Page.compare = async () => {
    if (ready || !field("machine-a").options.length) return;
    ready = true;
    try {
      const loaded = await Promise.all([Page.load("values"), Page.load("nights"), Page.load("clauses")]);
      const latest = loaded[1].reduce((best, each, n) => (each.nights[each.nights.length - 1][0] > loaded[1][best].nights[loaded[1][best].nights.length - 1][0] ? n : best), 0);
      for (const side of ["a", "b"]) {
        field(`machine-${side}`).value = latest;
        field(`machine-${side}`).addEventListener("change", () => { fill(loaded[1], side, 0); compare(loaded); });
        field(`night-${side}`).addEventListener("change", () => compare(loaded));
        fill(loaded[1], side, side === "a" ? 1 : 0);
      }
      field("only").addEventListener("change", () => compare(loaded));
      field("text").addEventListener("input", search);
      document.getElementById("swap").addEventListener("click", () => {
        const was = ["machine-a", "night-a", "machine-b", "night-b"].map((name) => field(name).value);
        field("machine-a").value = was[2]; field("machine-b").value = was[0];
        fill(loaded[1], "a", 0); fill(loaded[1], "b", 0);
        field("night-a").value = was[3]; field("night-b").value = was[1];
        compare(loaded);
      });
      compare(loaded);
    } catch (error) {
      about.textContent = `Nights cannot be compared: ${error.message}.`;
    }
  };
  form.addEventListener("submit", (event) => event.preventDefault());
})();
