"use strict";
// Shows one view at a time, loads data when it is needed, and opens what the address names.
(() => {
  const body = document.body, views = [...document.querySelectorAll("section.view")];
  const links = [...document.querySelectorAll("#views a")];
  document.documentElement.classList.add("js");

  // -- data: each file calls joinery(name, value); a page opened from disk may not fetch, but it may run scripts
  const asked = new Map();
  window.joinery = (name, value) => asked.get(name).done(value);
  Page.load = (name) => {
    if (!asked.has(name)) {
      const entry = {};
      entry.promise = new Promise((done, failed) => { entry.done = done; entry.failed = failed; });
      asked.set(name, entry);
      const script = document.createElement("script");
      script.src = `${body.dataset.assets}/data/${name}.js`;
      script.onerror = () => entry.failed(new Error(`${name}.js is missing beside the page`));
      document.head.append(script);
    }
    return asked.get(name).promise;
  };

  // -- details below a row
  Page.detail = (row, fill) => {
    const button = row.querySelector("button.open");
    const opened = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(opened));
    if (!row.detail) {
      row.detail = document.createElement("tr");
      row.detail.className = "detail";
      const cell = row.detail.insertCell();
      cell.colSpan = row.cells.length;
      row.after(row.detail);
      cell.textContent = "Loading …";
      row.filled = fill(cell).catch((error) => { cell.textContent = `This cannot be shown: ${error.message}.`; });
    }
    row.detail.hidden = !opened;
  };
  const openSeries = (row) => Page.detail(row, (cell) => Page.trend(cell, row));
  const openClause = (row) => Page.detail(row, (cell) => Page.clause(cell, row.dataset.clause));
  for (const row of document.querySelectorAll("#t-series .row")) {
    row.querySelector("button.open").addEventListener("click", () => openSeries(row));
  }
  for (const row of document.querySelectorAll("#t-matrix .row")) {
    row.querySelector("button.open").addEventListener("click", () => openClause(row));
  }

  // -- the address: #trends, #trends?state=new&machine=0, #series=12, #clause=JOIN-001
  const show = (id) => {
    for (const view of views) view.classList.toggle("shown", view.id === id);
    for (const link of links) {
      if (link.hash === `#${id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (id === "compare") Page.compare();
  };
  const reveal = (row, open) => {
    if (!row) return;
    row.hidden = false;
    if (row.querySelector("button.open").getAttribute("aria-expanded") !== "true") open(row);
    row.querySelector("button.open").focus({ preventScroll: true });
    const scroll = () => row.scrollIntoView({ block: "start" });
    scroll();
    row.filled.then(scroll);  // before that the page may be too short for it
  };
  const decoded = (text) => {
    try { return decodeURIComponent(text); } catch { return text; }  // an address that somebody has cut
  };
  const go = () => {
    const hash = location.hash.slice(1), cut = hash.indexOf("=");
    const name = hash.slice(0, Math.max(cut, 0)), value = decoded(hash.slice(cut + 1));
    if (name === "series") {
      show("trends");
      reveal(document.querySelector(`#t-series [data-key="${CSS.escape(value)}"]`), openSeries);
    } else if (name === "clause") {
      show("guarantees");
      reveal(document.getElementById(`c-${value}`), openClause);
    } else {
      const [view, query] = hash.split("?", 2);
      const inside = document.getElementById(view || "tonight");
      const section = inside && inside.closest("section.view");
      show(section ? section.id : "tonight");
      const form = section && section.querySelector("form.filters[data-table]");
      if (form && query) Page.setFilters(form, new URLSearchParams(query));
      if (section && inside !== section) inside.scrollIntoView(); else if (view) scrollTo(0, 0);
    }
  };
  addEventListener("hashchange", go);

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
    });
  }
  const days = (Date.now() - Date.parse(body.dataset.judged)) / 864e5;
  if (days > 1.5) {
    const stale = document.getElementById("stale");
    stale.textContent = `This page was made ${Math.round(days)} days ago: it says nothing about the nights since.`;
    stale.hidden = false;
  }
  go();
})();
