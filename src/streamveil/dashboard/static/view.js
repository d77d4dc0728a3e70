"use strict";
// Draws the charts of the page from released numbers. Nothing is computed here but where things are.
(() => {
  const INK = "var(--data)", SOFT = "var(--soft)", HIDDEN = "var(--hidden)";
  const LINE = "var(--line)", UP = "var(--ok)", DOWN = "var(--down)";
  const FEW = 40;  // releases that are drawn as dots
  const LETTER = 7.4;  // pixels of a capital in labels
  const page = { view: JSON.parse(document.getElementById("view").textContent), width: 0 };

  const number = d3.format(",.4~r");
  const tick = (v) => d3.format(Math.abs(v) >= 1000 ? "~s" : ".6~g")(v);  // 2k and 0.35, not 350m
  const shown = (v) => (v === null ? "unbounded" : Math.abs(v) >= 1e4 ? d3.format(",.0f")(v) : number(v));
  const base = (width, more) => ({
    width, marginLeft: 52, marginRight: 18, style: { background: "none", fontSize: "11px" }, ...more,
  });

  function timeAxis(chart, width) {
    if (chart.timed) return { x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)) } };
    const every = Math.ceil(chart.ticks.length / Math.max(2, Math.floor(width / 110)));
    return {
      x: {
        type: "linear", label: null, ticks: chart.x.filter((_, i) => i % every === 0),
        tickFormat: (at) => chart.ticks[chart.x.indexOf(at)] ?? "",
      },
    };
  }

  const place = (chart, at) => (chart.timed ? new Date(at) : at);

  function panel(chart, line, width) {
    const points = line.points.map((p) => ({ ...p, at: place(chart, p.x) }));
    const alone = points.filter((p) => p.alone);
    const hidden = line.hidden.map((span) => ({ from: place(chart, span.from), to: place(chart, span.to) }));
    const wide = (span) => (span.to - span.from) / (chart.x.at(-1) - chart.x[0] || 1) > 0.22;
    const middle = (span) => place(chart, (+span.from + +span.to) / 2);
    const say = (p) => `${line.label}\n${p.tick}\n${shown(p.v)}\n${chart.level}: ${shown(p.lo)} to ${shown(p.hi)}`;
    return Plot.plot(base(width, {
      height: 190, ...timeAxis(chart, width), y: { label: null, grid: true, nice: true, ticks: 4, tickFormat: chart.share ? "~%" : tick },
      ariaLabel: `${chart.name} of ${line.label} over time`,
      marks: [
        Plot.rectX(hidden, { x1: "from", x2: "to", fill: HIDDEN, title: () => chart.hiddenBecause }),
        Plot.text(hidden.filter(wide), {
          x: middle, frameAnchor: "middle", fill: SOFT, text: () => "not shown",
        }),
        Plot.ruleX(chart.breaks.map((at) => place(chart, at)), { stroke: LINE, strokeDasharray: "2,3" }),
        Plot.areaY(points, { x: "at", y1: "lo", y2: "hi", z: "run", fill: INK, fillOpacity: 0.2 }),
        Plot.ruleX(alone, { x: "at", y1: "lo", y2: "hi", stroke: INK, strokeOpacity: 0.35, strokeWidth: 3 }),
        Plot.lineY(points, { x: "at", y: "v", z: "run", stroke: INK, strokeWidth: 1.4 }),
        Plot.dot(chart.x.length < FEW ? points : alone, { x: "at", y: "v", fill: INK, r: 2.2 }),
        Plot.tip(points, Plot.pointerX({ x: "at", y: "v", title: say })),
      ],
    }));
  }

  function intervals(rows, width, options) {
    const longest = Math.max(...rows.map((row) => row.label.length), 1);
    const left = Math.min(longest * LETTER + 14, width * 0.42);
    const letters = Math.floor((left - 14) / LETTER + 0.01);  // rounding takes none
    const cut = (label) => (label.length > letters ? label.slice(0, letters - 1) + "…" : label);
    const colour = (row) => (!options.signed ? INK : row.lo > 0 ? UP : row.hi < 0 ? DOWN : SOFT);
    const say = (row) => `${row.label}\n${shown(row.v)}\n${shown(row.lo)} to ${shown(row.hi)}`;
    const ends = rows.filter((row) => row.lo !== null && row.hi !== null);
    return Plot.plot(base(width, {
      height: rows.length * 19 + 44, marginLeft: left, ariaLabel: options.title,
      x: { label: null, grid: true, tickFormat: tick, ticks: Math.max(2, Math.round(width / 110)) },
      y: { label: null, domain: rows.map((row) => row.label), tickFormat: cut, tickSize: 0 },
      marks: [
        ...(options.signed ? [Plot.ruleX([0], { stroke: SOFT })] : []),
        Plot.ruleY(ends, { y: "label", x1: "lo", x2: "hi", stroke: colour, strokeOpacity: 0.4, strokeWidth: 5 }),
        Plot.dot(rows, { y: "label", x: "v", fill: colour, r: 3 }),
        Plot.tip(rows, Plot.pointerY({ y: "label", x: "v", title: say })),
      ],
    }));
  }

  function spending(spent, width) {
    const steps = spent.points.map((p) => ({ ...p, at: new Date(p.at) }));
    const last = steps.at(-1);
    return Plot.plot(base(width, {
      height: 190, x: { type: "utc", label: null, ticks: Math.max(2, Math.round(width / 110)) },
      y: { label: "epsilon", grid: true, domain: [0, Math.max(spent.limit ?? 0, last.spent) * 1.05 || 1], ticks: 4 },
      ariaLabel: "epsilon spent over time",
      marks: [
        ...(spent.limit === null ? [] : [
          Plot.ruleY([spent.limit], { stroke: DOWN, strokeDasharray: "4,3" }),
          Plot.text([spent.limit], { y: (d) => d, frameAnchor: "right", text: () => "limit", dy: -7, dx: -2, fill: DOWN }),
        ]),
        Plot.areaY(steps, { x: "at", y: "spent", curve: "step-after", fill: INK, fillOpacity: 0.2 }),
        Plot.lineY(steps, { x: "at", y: "spent", curve: "step-after", stroke: INK }),
        Plot.dot(steps, { x: "at", y: "spent", fill: INK, r: 3 }),
        Plot.tip(steps, Plot.pointerX({ x: "at", y: "spent", title: (p) => `${p.name}\n${number(p.spent)} so far` })),
      ],
    }));
  }

  const DRAWERS = {
    panel: (box, view) => {
      const chart = view.charts[box.dataset.chart];
      return panel(chart, chart.lines[box.dataset.line], box.clientWidth);
    },
    rows: (box, view) => intervals(view[box.dataset.rows].rows, box.clientWidth, view[box.dataset.rows]),
    spent: (box, view) => spending(view.spent[box.dataset.ledger], box.clientWidth),
  };

  function draw() {
    for (const box of document.querySelectorAll("[data-draw]")) {
      box.replaceChildren(DRAWERS[box.dataset.draw](box, page.view));
    }
    page.width = document.body.clientWidth;
    document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
    document.body.dataset.drawn = page.view.version;
  }

  async function follow() {
    const state = document.getElementById("live");
    try {
      const answer = await fetch("view.json?since=" + encodeURIComponent(page.view.version), { cache: "no-store" });
      if (answer.status === 200) {
        page.view = await answer.json();
        document.getElementById("page").innerHTML = page.view.body;
        draw();
      }
      state.textContent = answer.ok || answer.status === 304 ? "live" : "the page cannot be read now";
    } catch {
      state.textContent = "the server has stopped";
    }
  }

  draw();
  addEventListener("resize", () => {
    if (Math.abs(document.body.clientWidth - page.width) > 1) draw();
  });
  if (document.body.dataset.live) setInterval(follow, 1000 * Number(document.body.dataset.live));
})();
