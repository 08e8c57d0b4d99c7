"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const el = (id) => document.getElementById(id);
  const controls = { by: el("by"), figure: el("figure"), logx: el("logx"), logy: el("logy") };
  const tip = el("tip");
  const hidden = new Set(); // names of curves that are switched off
  // Okabe and Ito's colours, which those who see few colours tell apart.
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#7f7f7f"];
  const dashes = ["", "6 3", "2 2", "8 3 2 3"];
  const W = 1000, H = 380, left = 78, right = 16, top = 12, bottom = 42;

  const svg = (name, attributes, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const html = (name, properties, ...children) => {
    const e = Object.assign(document.createElement(name), properties);
    e.append(...children);
    return e;
  };
  const size = (n) => {
    const units = [[2 ** 30, "G"], [2 ** 20, "M"], [2 ** 10, "k"]];
    for (const [u, s] of units) if (n >= u && n % u === 0) return n / u + s;
    return String(n);
  };
  const value = (v) => {
    if (v >= 1e9) return (v / 1e9).toPrecision(4) + "·10⁹";
    if (v >= 1e4) return Math.round(v).toLocaleString("en");
    return v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toPrecision(3);
  };

  // scale maps values to pixels: an empty message is half a byte where sizes are logarithmic.
  const scale = (lo, hi, from, to, log) => {
    const f = log ? (v) => Math.log2(v) : (v) => v;
    const a = f(lo), b = f(hi);
    return (v) => from + (to - from) * (b === a ? 0.5 : (f(v) - a) / (b - a));
  };
  const ticks = (lo, hi, log, base) => {
    const list = [];
    if (log) {
      for (let v = base ** Math.floor(Math.log(lo) / Math.log(base)); v <= hi * 1.0001; v *= base) if (v >= lo * 0.9999) list.push(v);
      if (base === 10 && list.length < 3) {
        const more = [];
        for (let v = 10 ** Math.floor(Math.log10(lo)); v <= hi; v *= 10) for (const m of [1, 2, 5]) if (v * m >= lo && v * m <= hi) more.push(v * m);
        return more;
      }
      while (list.length > 14) list.splice(0, list.length, ...list.filter((_, i) => i % 2 === 0));
      return list;
    }
    const raw = (hi - lo) / 6, unit = 10 ** Math.floor(Math.log10(raw || 1));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw) || unit;
    for (let v = Math.ceil(lo / step) * step; v <= hi * 1.0001; v += step) list.push(v);
    return list;
  };

  const divided = () => {
    const key = controls.by.value;
    const out = [];
    for (const c of data.charts) {
      if (key === "all") { out.push({ ...c, of: "" }); continue; }
      const parts = new Map();
      for (const s of c.curves) {
        if (!parts.has(s[key])) parts.set(s[key], []);
        parts.get(s[key]).push(s);
      }
      for (const [of, curves] of parts) out.push({ ...c, of, curves });
    }
    return out;
  };
  const titles = { lat: "latency", bw: "bandwidth", bibw: "bandwidth, both ways", rate: "message rate", halo: "halo exchange", ring: "ring, time of a hop",
    local: "message to oneself", addslice: "terms added to an exact sum", exact: "exact sum" };

  const hover = (mark, text) => {
    mark.addEventListener("pointermove", (e) => {
      tip.textContent = text;
      tip.hidden = false;
      tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    });
    mark.addEventListener("pointerleave", () => { tip.hidden = true; });
  };

  const draw = (chart) => {
    const figure = controls.figure.value, logx = controls.logx.checked, logy = controls.logy.checked;
    const box = html("figure", {}), legend = html("div", { className: "legend" });
    const title = (titles[chart.pattern] || chart.pattern) + (chart.ranks > 2 ? ", " + chart.ranks + " ranks" : "") + (chart.of ? ", " + chart.of : "");
    box.dataset.chart = title;
    box.append(html("figcaption", { textContent: title + " [" + chart.unit + "], " + (chart.lower ? "lower" : "higher") + " is better" }));
    const seen = chart.curves.filter((s) => !hidden.has(s.name));
    const px = (p) => logx ? Math.max(p.bytes, 0.5) : p.bytes;
    const points = seen.flatMap((s) => s.points).filter((p) => p[figure] > 0);
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
    if (points.length) {
      let x0 = Math.min(...points.map(px)), x1 = Math.max(...points.map(px));
      if (x0 === x1) { x0 = logx ? x0 / 2 : 0; x1 = x1 * 2 || 1; }
      const ys = points.map((p) => p[figure]);
      const y0 = logy ? Math.min(...ys) / 1.15 : 0, y1 = Math.max(...ys) * (logy ? 1.15 : 1.05);
      const x = scale(x0, x1, left, W - right, logx), y = scale(y0, y1, H - bottom, top, logy);
      for (const v of ticks(y0, y1, logy, 10)) {
        picture.append(svg("line", { class: "grid", x1: left, x2: W - right, y1: y(v), y2: y(v) }), svg("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, value(v)));
      }
      for (const v of ticks(x0, x1, logx, 2)) {
        picture.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: top, y2: H - bottom }), svg("text", { x: x(v), y: H - bottom + 18, "text-anchor": "middle" }, v < 1 ? "0" : size(Math.round(v))));
      }
      picture.append(svg("line", { class: "axis", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }), svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: H - bottom }),
        svg("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, "bytes"));
      chart.curves.forEach((s, i) => {
        if (hidden.has(s.name)) return;
        const colour = colours[i % colours.length], dash = dashes[Math.floor(i / colours.length) % dashes.length];
        const good = s.points.filter((p) => p[figure] > 0);
        const line = svg("polyline", { points: good.map((p) => x(px(p)) + "," + y(p[figure])).join(" "), fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash });
        line.dataset.curve = s.name;
        picture.append(line);
        for (const p of good) {
          const dot = svg("circle", { cx: x(px(p)), cy: y(p[figure]), r: 4, fill: colour });
          hover(dot, `${s.name}\n${size(p.bytes)} bytes, ${chart.unit}\nmin    ${value(p.min)}\np50    ${value(p.p50)}\np99    ${value(p.p99)}\np99.9  ${value(p.p999)}\nmax    ${value(p.max)}\nmean   ${value(p.mean)}\n${p.samples} samples` + (p.spread ? `, spread ${(100 * p.spread).toFixed(1)} %` : ""));
          picture.append(dot);
        }
      });
    } else {
      picture.append(svg("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing is switched on"));
    }
    chart.curves.forEach((s, i) => {
      const mark = html("span", { className: "mark" });
      mark.style.background = colours[i % colours.length];
      const button = html("button", { type: "button" }, mark, s.name);
      button.setAttribute("aria-pressed", String(!hidden.has(s.name)));
      button.addEventListener("click", () => { hidden.has(s.name) ? hidden.delete(s.name) : hidden.add(s.name); render(); });
      legend.append(button);
    });
    box.append(picture, legend);
    return box;
  };

  // ratios are bars from 1 outwards, to the right where we are ahead.
  const ratios = () => {
    const list = data.comparisons;
    if (!list.length) return;
    const row = 20, from = 430, wide = W - from - 90, h = list.length * row + 30;
    const ahead = (c, ratio) => Math.log2(c.better === "lower" ? 1 / ratio : ratio);
    const most = Math.max(1, ...list.map((c) => Math.abs(ahead(c, c.ratio))));
    const x = (v) => from + wide / 2 + (wide / 2) * Math.max(-1, Math.min(1, v / most));
    const picture = svg("svg", { viewBox: `0 0 ${W} ${h}`, role: "img", "aria-label": "ratios" });
    list.forEach((c, i) => {
      const y = 14 + i * row, v = ahead(c, c.ratio);
      const colour = c.met === undefined ? "#7f7f7f" : c.met ? "#15803d" : "#b91c1c";
      const name = [c.provider, c.suite, c.pattern, c.axis, c.ranks ? c.ranks + " ranks" : "", c.op, c.list > 1 ? "×" + c.list : "", size(c.bytes)].filter(Boolean).join(" ") + " : " + c.peer;
      picture.append(svg("text", { x: from - 10, y: y + 5, "text-anchor": "end" }, name));
      const mark = svg("rect", { x: Math.min(x(0), x(v)), y: y - 6, width: Math.max(Math.abs(x(v) - x(0)), 1), height: 12, fill: colour });
      mark.dataset.ratio = name;
      const bar = c.bar === undefined ? "" : `\nheld to ${c.better === "lower" ? "≤" : "≥"} ${c.bar}×: ${c.met ? "met" : "missed"}`;
      hover(mark, `${name}\nours ${value(c.ours)} ${c.unit}, theirs ${value(c.theirs)} ${c.unit}\nratio ${c.ratio.toFixed(2)}×` + bar);
      picture.append(mark, svg("text", { x: W - 80, y: y + 5 }, c.ratio.toFixed(2) + "×"));
      if (c.bar !== undefined) picture.append(svg("line", { class: "bar", x1: x(ahead(c, c.bar)), x2: x(ahead(c, c.bar)), y1: y - 8, y2: y + 8 }));
    });
    picture.append(svg("line", { class: "axis", x1: x(0), x2: x(0), y1: 2, y2: h - 24 }), svg("text", { x: x(0), y: h - 6, "text-anchor": "middle" }, "← behind · as fast · ahead →"));
    const box = html("figure", {}, html("figcaption", { textContent: "ratios to peers: green has met its bar, red has missed it, grey is held to none" }), picture);
    box.dataset.chart = "ratios";
    el("ratios").append(box);
  };

  const render = () => { el("charts").replaceChildren(...divided().map(draw)); };
  for (const c of Object.values(controls)) c.addEventListener("change", render);
  render();
  ratios();
})();
