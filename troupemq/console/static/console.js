"use strict";
(() => {
  // Send the time zone in a cookie: the server formats times in it.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes("troupemq_zone=" + encodeURIComponent(zone))) {
    document.cookie = "troupemq_zone=" + encodeURIComponent(zone) + ";path=/;max-age=31536000;samesite=strict" + (location.protocol === "https:" ? ";secure" : "");
  }

  // Keys: / focuses the first field, g and a letter open a page, Escape closes the glossary.
  let went = 0;
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      const field = document.querySelector("main form.fields input:not([type=hidden])");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "Escape") {
      const glossary = document.querySelector(".glossary[open]");
      if (glossary) glossary.open = false;
    } else if (event.key === "g") {
      went = event.timeStamp;
    } else if (went && event.timeStamp - went < 1500) {
      went = 0;
      const link = document.querySelector('nav a[data-key="' + CSS.escape(event.key) + '"]');
      if (link) link.click();
    }
  });

  // Skip a refresh while the user selects text or has the focus in what it replaces, except in a fold.
  const FOLD = "summary, input.more";
  document.addEventListener("htmx:beforeRequest", (event) => {
    const place = event.detail.elt;
    if (place.matches("input, [data-once]")) return;
    const content = place.id === "main" ? document.getElementById("content") : place, at = document.activeElement;
    const busy = document.hidden || !document.getSelection().isCollapsed ||
      (content && content.contains(at) && !at.matches(FOLD));
    if (busy) event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    // Copy a text; where the browser forbids it, without TLS, select it.
    const copy = event.target.closest("button.copy");
    if (copy) {
      const text = copy.dataset.copies ? document.getElementById(copy.dataset.copies) : copy.previousElementSibling;
      const done = () => { copy.textContent = "Copied"; };
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, () => {});
      else { document.getSelection().selectAllChildren(text); if (document.execCommand("copy")) done(); }
    }
    // The checkbox in the head of a table selects all rows.
    if (event.target.matches("input.all")) {
      event.target.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((each) => { each.checked = event.target.checked; });
    }
  });

  // Keep open folds open over a refresh, and the focus on its fold.
  const folds = () => [...document.querySelectorAll("#content details[id], #content input.more")];
  let open = [], focused = "";
  document.addEventListener("htmx:beforeSwap", () => {
    open = folds().filter((each) => each.open || each.checked).map((each) => each.id);
    const at = document.activeElement;
    focused = at.matches("summary") ? at.parentElement.id : at.matches(FOLD) ? at.id : "";
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const each of folds()) {
      if (open.includes(each.id)) each.tagName === "DETAILS" ? each.open = true : each.checked = true;
      if (focused && each.id === focused) (each.querySelector("summary") || each).focus({ preventScroll: true });
    }
  });

  // Say that a refresh failed: what the page shows is then older than it seems.
  const stale = (is) => { const note = document.getElementById("stale"); if (note) note.hidden = !is; };
  document.addEventListener("htmx:sendError", () => stale(true));
  document.addEventListener("htmx:responseError", () => stale(true));
  document.addEventListener("htmx:afterSwap", () => stale(false));

  // Charts: the element holds their description, a JSON path has their rows.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const two = (count) => String(count).padStart(2, "0");
  const day = (at_s) => { const at = new Date(at_s * 1000); return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`; };
  const clock = (at_s) => new Date(at_s * 1000).toTimeString().slice(0, 8);
  const moments = (u, all, axis, space, step) => all.map((each, at) =>
    (step < 60 ? clock(each) : clock(each).slice(0, 5)) +
    (at && day(each) === day(all[at - 1]) ? "" : "\n" + day(each)));
  const fromZero = (u, min, max) => min == null ? [0, 1] : [Math.min(0, min), max > 0 ? max * 1.08 : 1];
  const figure = (value) => value == null ? "-" : value.toLocaleString("en", { maximumFractionDigits: 1 });
  async function draw(place) {
    const chart = JSON.parse(place.dataset.chart);
    let rows;
    try {
      const answer = await fetch(place.dataset.path, { credentials: "same-origin" });
      if (!answer.ok) return;
      rows = (await answer.json())[chart.rows];
    } catch { return; }
    if (rows.length === 1) rows.unshift({ time_ms: rows[0].time_ms - 60000 });  // uPlot shows years around one point
    const data = [
      rows.map((each) => each.time_ms / 1000),
      ...chart.lines.map((line) => rows.map((each) => each[line.key] ?? null)),
    ];
    if (place.plot) { place.plot.setData(data); return; }
    const ink = colour("--faint"), grid = { stroke: colour("--line"), width: 1 };
    const axes = [{ stroke: ink, grid, space: 80, values: moments }, { stroke: ink, grid, size: 70 }];
    if (chart.lines.some((line) => line.on_the_right)) {
      axes.push({ stroke: ink, grid: { show: false }, side: 1, scale: "right", size: 80 });
    }
    place.plot = new uPlot({
      width: place.clientWidth - 16, height: 190,
      series: [{ label: "Time", value: (u, at) => at == null ? "-" : `${day(at)} ${clock(at)}` }, ...chart.lines.map((line) => ({
        label: line.label, stroke: colour("--" + line.colour), width: 2,
        dash: line.dash[0] ? line.dash : undefined, scale: line.on_the_right ? "right" : "y",
        points: chart.with_points ? { show: true, size: 7 } : { show: (u, series, from, to) => to - from < 3 }, value: (u, v) => figure(v),
      }))],
      axes,
      scales: { x: { range: (u, min, max) => min == null ? [0, 60] : max - min < 60 ? [max - 60, max] : [min, max] }, y: { range: fromZero }, right: { range: fromZero } },
    }, data, place);
  }
  const drawAll = () => document.querySelectorAll(".chart").forEach(draw);
  window.addEventListener("resize", () => document.querySelectorAll(".chart").forEach((place) => {
    if (place.plot) place.plot.setSize({ width: place.clientWidth - 16, height: 190 });
  }));
  document.addEventListener("htmx:afterSettle", drawAll);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawAll);
  else drawAll();
})();
