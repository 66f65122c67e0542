"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const make = (tag, properties, parent) => {
    const element = Object.assign(document.createElement(tag), properties);
    if (parent) parent.append(element);
    return element;
  };
  const draw = (tag, attributes, parent) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (parent) parent.append(element);
    return element;
  };

  // ---- copying a pattern: the clipboard where the browser grants it, else a selected text field
  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = make("textarea", { value: text }, document.body);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const name = button.textContent;
    button.addEventListener("click", async () => {
      await copyText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    });
  }

  const source = at("search-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const candidates = data.candidates;
  const C = candidates.length, N = data.layers;

  // ---- values [step][layer][candidate], 16-bit fractions of 1, little-endian
  const searches = data.searches.map((search) => {
    const bytes = Uint8Array.from(atob(search.values), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const values = new Float32Array(bytes.length / 2);
    for (let k = 0; k < values.length; k += 1) values[k] = view.getUint16(2 * k, true) / 65535;
    return { ...search, values };
  });
  const state = { search: 0, index: searches[0].steps.length - 1, layer: 0, timer: null, cell: [0, 0] };
  const now = () => searches[state.search];
  const probability = (index, layer, candidate) => now().values[(index * N + layer) * C + candidate];
  const winner = (index, layer) => {
    let best = 0;
    for (let c = 1; c < C; c += 1) if (probability(index, layer, c) > probability(index, layer, best)) best = c;
    return best;
  };
  const short = (value) => (value >= 0.995 ? "1.0" : value.toFixed(2).slice(1));
  const price = (candidate) => (candidate.cost === null ? "cost not known" : `${candidate.cost.toLocaleString("en")} ${data.unit}`);
  const share = (index) => {
    const { steps } = now();
    const span = steps[steps.length - 1] - steps[0];
    return span ? (steps[index] - steps[0]) / span : 1;
  };

  // ---- tooltip, for mouse and keyboard alike
  const tip = make("div", { id: "tip", hidden: true, role: "tooltip" }, document.body);
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + box.height + 24 > innerHeight ? Math.max(4, y - box.height - 12) : y + 16}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  const cellText = (layer, c) =>
    `layer ${layer}: ${candidates[c].label}\nprobability ${probability(state.index, layer, c).toFixed(4)} at step ${now().steps[state.index]}\n${price(candidates[c])}`;

  // ---- lines of one layer's probabilities, for the small and the large chart
  const addLines = (svg, layer, { left, top, width, height, points }) => {
    const last = now().steps.length - 1;
    const picked = [];
    for (let k = 0; k <= points; k += 1) picked.push(Math.round((k * last) / points));
    const places = [...new Set(picked)];
    for (let c = C - 1; c >= 0; c -= 1) {
      const path = places
        .map((index, k) => `${k ? "L" : "M"}${(left + share(index) * width).toFixed(1)} ${(top + (1 - probability(index, layer, c)) * height).toFixed(1)}`)
        .join("");
      const common = { d: path, fill: "none", "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" };
      if (candidates[c].light) draw("path", { ...common, stroke: "#777777", "stroke-width": 2.6 }, svg);
      draw("path", { ...common, stroke: candidates[c].color, "stroke-width": 1.6, "stroke-dasharray": candidates[c].dashes, "data-candidate": c }, svg);
    }
  };

  // ---- the grid: one row a layer, one cell a candidate, and the layer's trajectory
  const grid = at("grid");
  const cells = [], covers = [], cursors = [], sparks = [], rows = [];
  const buildGrid = () => {
    const head = make("tr", {}, make("thead", {}, grid));
    make("th", { textContent: "layer", scope: "col" }, head);
    candidates.forEach((candidate) => {
      const cell = make("th", { scope: "col", title: candidate.label }, head);
      const mark = make("span", { className: "swatch", textContent: candidate.tag }, cell);
      mark.style.background = candidate.color;
      mark.style.color = candidate.ink;
      cell.setAttribute("aria-label", candidate.label);
    });
    make("th", { textContent: "over the steps", scope: "col" }, head);
    const body = make("tbody", {}, grid);
    for (let layer = 0; layer < N; layer += 1) buildRow(body, layer);
  };
  const buildRow = (body, layer) => {
    const row = make("tr", {}, body);
    rows.push(row);
    const name = make("button", { type: "button", textContent: layer, title: `show the history of layer ${layer}` }, make("th", { scope: "row" }, row));
    name.addEventListener("click", () => selectLayer(layer));
    cells.push(candidates.map((candidate, c) => {
      const cell = make("td", { className: "cell", tabIndex: layer || c ? -1 : 0 }, row);
      cell.addEventListener("click", () => selectLayer(layer));
      cell.addEventListener("pointermove", (event) => showTip(cellText(layer, c), event.clientX, event.clientY));
      cell.addEventListener("pointerleave", hideTip);
      cell.addEventListener("focus", () => {
        state.cell = [layer, c];
        const box = cell.getBoundingClientRect();
        cell.setAttribute("aria-label", cellText(layer, c));
        showTip(cellText(layer, c), box.left, box.bottom);
      });
      cell.addEventListener("blur", hideTip);
      return cell;
    }));
    const holder = make("td", { className: "spark" }, row);
    holder.addEventListener("click", () => selectLayer(layer));
    sparks.push(draw("svg", { viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, holder));
  };
  const drawSparks = () => {
    sparks.forEach((svg, layer) => {
      svg.replaceChildren();
      addLines(svg, layer, { left: 0, top: 1, width: 120, height: 22, points: 100 });
      covers[layer] = draw("rect", { y: 0, height: 24, fill: "var(--chart)", "fill-opacity": 0.78 }, svg);
      cursors[layer] = draw("line", { y1: 0, y2: 24, stroke: "#111111", "vector-effect": "non-scaling-stroke" }, svg);
    });
  };
  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -C], End: [0, C] };
    if (!event.target.classList.contains("cell")) return;
    if (event.key === "Enter" || event.key === " ") {
      selectLayer(state.cell[0]);
    } else if (moves[event.key]) {
      const layer = Math.min(N - 1, Math.max(0, state.cell[0] + moves[event.key][0]));
      const c = Math.min(C - 1, Math.max(0, state.cell[1] + moves[event.key][1]));
      event.target.tabIndex = -1;
      cells[layer][c].tabIndex = 0;
      cells[layer][c].focus();
    } else {
      return;
    }
    event.preventDefault();
  });

  // ---- the large chart of one layer
  const chart = at("chart"), plot = { left: 44, top: 12, width: 420, height: 190 };
  const readings = candidates.map((candidate) => {
    const row = make("tr", {}, at("readings"));
    const mark = make("span", { className: "swatch", textContent: candidate.tag }, make("td", {}, row));
    mark.style.background = candidate.color;
    mark.style.color = candidate.ink;
    make("td", { textContent: candidate.label }, row);
    const value = make("td", { className: "number" }, row);
    make("td", { className: "number cost", textContent: candidate.cost === null ? "–" : candidate.cost.toLocaleString("en") }, row);
    return value;
  });
  let cursor = null;
  const drawChart = () => {
    const { steps, warmup } = now(), last = steps.length - 1;
    chart.replaceChildren();
    const text = (x, y, content, anchor) => {
      draw("text", { x, y, "text-anchor": anchor, "font-size": 11, fill: "#333333" }, chart).textContent = content;
    };
    const span = steps[last] - steps[0] || 1;
    const warm = Math.max(0, Math.min(1, (warmup - steps[0]) / span));
    draw("rect", { x: plot.left, y: plot.top, width: warm * plot.width, height: plot.height, fill: "#dfe2e6" }, chart);
    if (warm > 0.12) text(plot.left + (warm * plot.width) / 2, plot.top + 14, "warm-up", "middle");
    for (const level of [0, 0.5, 1]) {
      const y = plot.top + (1 - level) * plot.height;
      draw("line", { x1: plot.left, x2: plot.left + plot.width, y1: y, y2: y, stroke: "#c4c9cf", "stroke-width": 0.8 }, chart);
      text(plot.left - 6, y + 4, level, "end");
    }
    text(plot.left, plot.top + plot.height + 16, steps[0], "start");
    text(plot.left + plot.width, plot.top + plot.height + 16, steps[last], "end");
    text(plot.left + plot.width / 2, plot.top + plot.height + 16, "search step", "middle");
    draw("text", { x: 12, y: plot.top + plot.height / 2, "text-anchor": "middle", "font-size": 11, fill: "#333333",
      transform: `rotate(-90 12 ${plot.top + plot.height / 2})` }, chart).textContent = "probability";
    addLines(chart, state.layer, { ...plot, points: 400 });
    cursor = draw("line", { y1: plot.top, y2: plot.top + plot.height, stroke: "#111111" }, chart);
  };
  const indexAt = (event) => {
    const box = chart.getBoundingClientRect();
    const x = (((event.clientX - box.left) / box.width) * 480 - plot.left) / plot.width;
    let best = 0;
    now().steps.forEach((_, index) => { if (Math.abs(share(index) - x) < Math.abs(share(best) - x)) best = index; });
    return best;
  };
  chart.addEventListener("pointermove", (event) => {
    const index = indexAt(event);
    const order = candidates.map((_, c) => c).sort((a, b) => probability(index, state.layer, b) - probability(index, state.layer, a));
    const lines = order.slice(0, 4).map((c) => `${candidates[c].label} ${probability(index, state.layer, c).toFixed(3)}`);
    showTip(`layer ${state.layer}, step ${now().steps[index]}\n${lines.join("\n")}`, event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", hideTip);
  chart.addEventListener("click", (event) => moveTo(indexAt(event)));

  // ---- moving through the steps
  const slider = at("step");
  const update = () => {
    const { steps, warmup } = now(), x = share(state.index), winners = [];
    for (let layer = 0; layer < N; layer += 1) {
      const best = winner(state.index, layer);
      winners.push(candidates[best]);
      for (let c = 0; c < C; c += 1) {
        const value = probability(state.index, layer, c), cell = cells[layer][c];
        cell.style.setProperty("--p", value.toFixed(3));
        cell.textContent = short(value);
        cell.classList.toggle("middle", value > 0.2);
        cell.classList.toggle("high", value > 0.6);
        cell.classList.toggle("winner", c === best);
      }
      covers[layer].setAttribute("x", 120 * x);
      covers[layer].setAttribute("width", 120 * (1 - x));
      cursors[layer].setAttribute("x1", 120 * x);
      cursors[layer].setAttribute("x2", 120 * x);
    }
    cursor.setAttribute("x1", plot.left + x * plot.width);
    cursor.setAttribute("x2", plot.left + x * plot.width);
    readings.forEach((cell, c) => { cell.textContent = probability(state.index, state.layer, c).toFixed(4); });
    const words = `step ${steps[state.index]} of ${steps[steps.length - 1]}${steps[state.index] <= warmup ? ", warm-up" : ""}`;
    at("step-name").textContent = words;
    slider.setAttribute("aria-valuetext", words);
    at("now").replaceChildren(...winners.map((candidate, layer) => {
      const mark = make("li", { textContent: candidate.tag, title: `layer ${layer}: ${candidate.label}` });
      mark.style.background = candidate.color;
      mark.style.color = candidate.ink;
      return mark;
    }));
  };
  const moveTo = (index) => {
    state.index = Math.max(0, Math.min(now().steps.length - 1, index));
    slider.value = state.index;
    update();
  };
  const selectLayer = (layer) => {
    state.layer = layer;
    rows.forEach((row, n) => row.setAttribute("aria-selected", n === layer));
    at("history-name").textContent = `Layer ${layer}`;
    drawChart();
    update();
  };
  const selectSearch = (number) => {
    state.search = number;
    slider.max = now().steps.length - 1;
    state.index = Math.min(state.index, now().steps.length - 1);
    slider.value = state.index;
    drawSparks();
    selectLayer(state.layer);
  };
  const stop = () => {
    clearInterval(state.timer);
    state.timer = null;
    at("play").textContent = "Play";
  };
  at("play").addEventListener("click", () => {
    if (state.timer) { stop(); return; }
    if (state.index === now().steps.length - 1) moveTo(0);
    at("play").textContent = "Pause";
    const stride = Math.max(1, Math.round(now().steps.length / 120));
    state.timer = setInterval(() => {
      moveTo(state.index + stride);
      if (state.index === now().steps.length - 1) stop();
    }, 60);
  });
  slider.addEventListener("input", () => { stop(); moveTo(Number(slider.value)); });
  const choice = at("search-choice");
  if (choice) choice.addEventListener("change", () => selectSearch(Number(choice.value)));

  buildGrid();
  at("explorer").hidden = false;
  selectSearch(0);
  moveTo(now().steps.length - 1);
})();
