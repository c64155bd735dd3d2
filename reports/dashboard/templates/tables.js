"use strict";
// Tables that can be filtered, sorted and saved.
window.Page = {};
(() => {
  const rowsOf = (table) => [...table.querySelectorAll("tbody tr.row")];
  const put = (row, hidden) => {
    row.hidden = hidden;
    if (row.detail) row.detail.hidden = hidden || row.querySelector("button.open").getAttribute("aria-expanded") !== "true";
  };

  // -- filters: a field's name is the name of the data that it asks about
  const asked = (form) => [...form.elements].filter((field) => field.name && field.value !== "");
  const fits = (row, fields) => fields.every(({ name, value }) => {
    if (name === "text") return value.toLowerCase().split(/\s+/).every((word) => row.dataset.text.includes(word));
    return !(name in row.dataset) || row.dataset[name] === value;
  });
  // The matrix: subject, backend and world choose columns and marks, and a state must be among what is left.
  const narrow = (table, form) => {
    const { subject, backend, world } = Object.fromEntries(["subject", "backend", "world"].map((n) => [n, form.elements[n].value]));
    for (const cell of table.querySelectorAll(".col")) {
      cell.hidden = Boolean((subject && cell.dataset.subject !== subject) || (backend && cell.dataset.backend !== backend));
    }
    for (const mark of table.querySelectorAll(".mark")) mark.hidden = Boolean(world && mark.dataset.world !== world);
    const state = form.elements.states.value;
    return (row) => !state || [...row.querySelectorAll(`.mark.c-${state}`)].some((m) => !m.hidden && !m.parentElement.hidden);
  };
  const filter = (form) => {
    const table = document.getElementById(form.dataset.table);
    const matrix = table.id === "t-matrix";
    const also = matrix ? narrow(table, form) : () => true;
    const fields = asked(form).filter(({ name }) => name !== "states");
    const rows = rowsOf(table);
    let shown = 0;
    for (const row of rows) {
      const fit = fits(row, fields) && also(row);
      put(row, !fit);
      shown += fit;
    }
    form.querySelector(".count").textContent = shown === rows.length ? `${shown}` : `${shown} of ${rows.length}`;
    const nothing = table.closest("section").querySelector(".nothing");
    if (nothing && nothing.previousElementSibling === table.parentElement) nothing.hidden = shown > 0;
  };
  Page.setFilters = (form, query) => {
    form.reset();
    for (const [name, value] of query) if (form.elements[name]) form.elements[name].value = value;
    filter(form);
  };
  for (const form of document.querySelectorAll("form.filters[data-table]")) {
    for (const kind of ["input", "change"]) form.addEventListener(kind, () => filter(form));
    form.addEventListener("reset", () => setTimeout(() => filter(form)));
    form.addEventListener("submit", (event) => event.preventDefault());
    const clear = form.closest("section").querySelector("button.clear");
    if (clear) clear.addEventListener("click", () => form.reset());
    filter(form);
  }

  // -- sorting; what has no value goes last, both ways
  const keyOf = (row, at, number) => {
    const cell = row.cells[at], text = cell.dataset.v ?? cell.textContent.trim().toLowerCase();
    if (!number) return text;
    return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
  };
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.sort");
    if (!button) return;
    const head = button.closest("th"), table = button.closest("table"), at = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rowsOf(table).map((row) => [keyOf(row, at, button.dataset.kind === "number"), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return down ? order(b, a) : order(a, b);
    });
    const body = table.tBodies[0];
    for (const [, row] of keyed) {
      body.append(row);
      if (row.detail) body.append(row.detail);
    }
  });

  // -- saving what is shown
  const words = (node) => node.textContent.replace(/\s+/g, " ").trim();
  const collect = (table) => {
    const heads = [...table.tHead.rows[0].cells].filter((head) => !head.hidden);
    const rows = rowsOf(table).filter((row) => !row.hidden);
    const keyed = rows.some((row) => row.dataset.key);
    const names = [...(keyed ? ["key"] : []), ...heads.map(words)];
    return [names, rows.map((row) => [
      ...(keyed ? [row.dataset.key || ""] : []),
      ...heads.map(({ cellIndex }) => {
        const cell = row.cells[cellIndex];
        return "v" in cell.dataset ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : words(cell);
      }),
    ])];
  };
  const field = (value) => {
    let text = value === null ? "" : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;  // no formula for a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  Page.saved = (table, form) => {
    const [names, rows] = collect(table);
    if (form === "csv") return [names, ...rows].map((row) => row.map(field).join(",")).join("\n") + "\n";
    const told = rows.map((row) => Object.fromEntries(row.map((value, at) => [names[at], value])));
    return JSON.stringify({ judged: document.body.dataset.judged, rows: told }, null, 1) + "\n";
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.save");
    if (!button) return;
    const { table, form } = button.dataset;
    const kind = form === "csv" ? "text/csv" : "application/json";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([Page.saved(document.getElementById(table), form)], { type: kind }));
    link.download = `${table.slice(2)}.${form}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
})();
