"use strict";
// Filters the matrix and opens clauses. Without scripts everything is shown and open.
(() => {
  document.documentElement.classList.add("js");
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
    });
  }

  const matrix = document.getElementById("matrix");
  if (!matrix) return;  // a page without one, such as a comparison
  const by = (id) => document.getElementById(id);
  const form = by("filters"), text = by("f-text"), area = by("f-area"), level = by("f-level");
  const outcome = by("f-outcome"), subject = by("f-subject"), count = by("count"), expand = by("expand");
  const clauses = [...matrix.querySelectorAll("tbody.clause")];
  const areas = [...matrix.querySelectorAll("tbody.area")];
  const words = new Map();  // of each clause, made when first searched
  const columns = matrix.querySelectorAll("thead th").length - 3;

  const show = (clause, opened) => {
    clause.classList.toggle("opened", opened);
    clause.querySelector(".open").setAttribute("aria-expanded", String(opened));
  };
  const textOf = (clause) => {
    if (!words.has(clause)) words.set(clause, clause.textContent.toLowerCase());
    return words.get(clause);
  };
  const chosen = () => (subject.value ? subject.value.split(" ") : [...Array(columns).keys()].map(String));

  const fits = (clause, wanted, parts) => {
    if (area.value && clause.dataset.area !== area.value.replace(/^other$/, "")) return false;
    if (level.value && clause.dataset.level !== level.value) return false;
    if (outcome.value) {
      const states = wanted.flatMap((at) => clause.querySelector(`td.c${at}`).dataset.states.split(" "));
      if (!states.includes(outcome.value)) return false;
    }
    return parts.every((part) => textOf(clause).includes(part));
  };
  const filter = () => {
    const wanted = chosen(), parts = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (let at = 0; at < columns; at++) {
      for (const each of matrix.querySelectorAll(`.c${at}`)) each.hidden = !wanted.includes(String(at));
    }
    let shown = 0;
    const seen = new Set();
    for (const clause of clauses) {
      clause.hidden = !fits(clause, wanted, parts);
      if (!clause.hidden) { shown += 1; seen.add(clause.dataset.area); }
    }
    for (const head of areas) head.hidden = !seen.has(head.dataset.area);
    count.textContent = shown === clauses.length ? `${shown} clauses` : `${shown} of ${clauses.length} clauses`;
    by("nothing").hidden = shown > 0;
    label();
  };
  const visible = () => clauses.filter((clause) => !clause.hidden);
  const allOpen = () => visible().length > 0 && visible().every((clause) => clause.classList.contains("opened"));
  const label = () => { expand.textContent = allOpen() ? "Collapse shown" : "Expand shown"; };
  const reveal = () => {  // #JOIN-025 in the address opens that clause
    const clause = clauses.find((each) => each.id === decodeURIComponent(location.hash.slice(1)));
    if (!clause) return;
    if (clause.hidden) { form.reset(); filter(); }
    show(clause, true);
    clause.scrollIntoView();
  };

  for (const clause of clauses) show(clause, false);
  matrix.addEventListener("click", (event) => {
    const head = event.target.closest("tr.head");
    if (!head || String(getSelection())) return;
    const clause = head.parentElement;
    show(clause, !clause.classList.contains("opened"));
    label();
  });
  for (const kind of ["input", "change"]) form.addEventListener(kind, filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  by("clear").addEventListener("click", () => { form.reset(); filter(); });
  expand.addEventListener("click", () => {
    const open = !allOpen();
    for (const clause of visible()) show(clause, open);
    label();
  });
  for (const button of document.querySelectorAll("button.only")) {
    button.addEventListener("click", () => {
      form.reset();
      outcome.value = button.dataset.outcome;
      subject.value = button.dataset.columns;
      filter();
      by("matrix-title").scrollIntoView();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    text.focus();
  });
  addEventListener("hashchange", reveal);
  filter();
  reveal();
})();
