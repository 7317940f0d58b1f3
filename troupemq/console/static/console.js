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

  // Skip a refresh while the user selects text or has the focus in what it replaces.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const place = event.detail.elt;
    if (place.matches("input")) return;
    const content = place.id === "main" ? document.getElementById("content") : place;
    const busy = document.hidden || !document.getSelection().isCollapsed ||
      (content && content.contains(document.activeElement));
    if (busy) event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    // Copy a text; where the browser forbids it, without TLS, select it.
    const copy = event.target.closest("button.copy");
    if (copy) {
      const text = document.getElementById(copy.dataset.copies);
      const done = () => { copy.textContent = "Copied"; };
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, () => {});
      else { document.getSelection().selectAllChildren(text); if (document.execCommand("copy")) done(); }
    }
    // The checkbox in the head of a table selects all rows.
    if (event.target.matches("input.all")) {
      event.target.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((each) => { each.checked = event.target.checked; });
    }
  });

  // Charts: the element holds their description, a JSON path has their rows.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const figure = (value) => value == null ? "-" : value.toLocaleString("en", { maximumFractionDigits: 1 });
  async function draw(place) {
    const chart = JSON.parse(place.dataset.chart);
    let rows;
    try {
      const answer = await fetch(place.dataset.path, { credentials: "same-origin" });
      if (!answer.ok) return;
      rows = (await answer.json())[chart.rows];
    } catch { return; }
    const data = [
      rows.map((each) => each.time_ms / 1000),
      ...chart.lines.map((line) => rows.map((each) => each[line.key])),
    ];
    if (place.plot) { place.plot.setData(data); return; }
    const ink = colour("--faint"), grid = { stroke: colour("--line"), width: 1 };
    const axes = [{ stroke: ink, grid }, { stroke: ink, grid, size: 70 }];
    if (chart.lines.some((line) => line.on_the_right)) {
      axes.push({ stroke: ink, grid: { show: false }, side: 1, scale: "right", size: 80 });
    }
    place.plot = new uPlot({
      width: place.clientWidth - 16, height: 190,
      series: [{}, ...chart.lines.map((line) => ({
        label: line.label, stroke: colour("--" + line.colour), width: 2,
        dash: line.dash[0] ? line.dash : undefined, scale: line.on_the_right ? "right" : "y",
        points: chart.with_points ? { show: true, size: 7 } : {}, value: (u, v) => figure(v),
      }))],
      axes,
      scales: { x: { range: (u, min, max) => min == null ? [0, 60] : max - min < 60 ? [max - 60, max] : [min, max] } },
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
