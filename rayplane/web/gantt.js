// Zooms the timelines of the page. The server drew the whole step; from where few enough bars are in sight, they are drawn one by one.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const WORDS = {F: "forward", B: "backward", I: "gradient of the input", W: "gradients of the weights", R: "reduction of the gradients",
    O: "optimizer step", SF: "send of the activation", RF: "receive of the activation", SB: "send of its gradient", RB: "receive of its gradient"};
  const ALL = new Set(["R", "O"]);  // what concerns no single microbatch

  const time = s => s >= 1 || s === 0 ? s.toFixed(2) + " s" : s >= 1e-3 ? +(s * 1e3).toPrecision(3) + " ms" : +(s * 1e6).toPrecision(3) + " µs";

  function unpack(data) {
    return data.ranks.map(({kinds, bars}) => {
      const made = [], due = {};
      let now = 0, given = null;
      for (const number of bars) {
        if (number < 0) { given = -1 - number; continue; }
        const [op, chunk, gap, length] = kinds[number], key = op + chunk, microbatch = given ?? due[key] ?? 0;
        made.push({op, chunk, microbatch, start: now + gap, end: now + gap + length});
        now += gap + length; due[key] = microbatch + 1; given = null;
      }
      return made;
    });
  }

  function firstAfter(bars, at) {  // the first bar that ends after `at`
    let low = 0, high = bars.length;
    while (low < high) { const mid = (low + high) >> 1; if (bars[mid].end > at) high = mid; else low = mid + 1; }
    return low;
  }

  function element(name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function zoomable(figure) {
    const source = figure.querySelector("script[type='application/json']");
    if (!source) return;
    const data = JSON.parse(source.textContent), ranks = unpack(data), END = data.ticks;
    const view = figure.querySelector(".view"), layer = view.querySelector(".bars"), told = figure.querySelector(".told");
    const marks = view.querySelector(".marks"), times = view.querySelector(".times"), hint = told.textContent;
    const whole = [...layer.childNodes], {row, pitch, bar, near} = figure.dataset;
    const height = ranks.length * pitch, seconds = ticks => ticks * data.end_s / END;
    let from = 0, to = END, asked = 0;

    function words(rank, b) {
      const of = ALL.has(b.op) ? "" : `, microbatch ${b.microbatch}`;
      return `${row} ${rank}: ${WORDS[b.op]}, chunk ${b.chunk}${of}: ${time(seconds(b.end - b.start))} from ${time(seconds(b.start))}`;
    }

    function inSight() {
      const seen = [];
      ranks.forEach((bars, rank) => {
        for (let i = firstAfter(bars, from); i < bars.length && bars[i].start < to; i++) {
          seen.push([rank, bars[i]]);
          if (seen.length > near) return;
        }
      });
      return seen;
    }

    function draw() {
      asked = 0;
      const width = view.getBoundingClientRect().width || 1, seen = inSight(), each = seen.length <= near;
      layer.setAttribute("viewBox", `${from} 0 ${to - from} ${height}`);
      if (each) layer.replaceChildren(...seen.map(([rank, b]) => {
        const rect = element("rect", {x: b.start, y: rank * pitch, width: b.end - b.start, height: bar, class: data.colours[b.op]});
        rect.append(element("title", {}, words(rank, b)));
        return rect;
      }));
      else if (layer.firstChild !== whole[0]) layer.replaceChildren(...whole);
      marks.replaceChildren(...(each && pitch >= 14 ? seen : []).flatMap(([rank, b]) => {
        const left = Math.max(b.start, from), right = Math.min(b.end, to), name = ALL.has(b.op) ? b.op : String(b.microbatch);
        if ((right - left) / (to - from) * width < 8 + 7 * name.length) return [];
        const place = {x: 100 * ((left + right) / 2 - from) / (to - from) + "%", y: rank * pitch + bar / 2, dy: "0.35em",
          "text-anchor": "middle", class: "on-" + data.colours[b.op]};
        return [element("text", place, name)];
      }));
      drawTimes(width);
      figure.dataset.from = from; figure.dataset.to = to; figure.dataset.each = each;
    }

    function drawTimes(width) {
      const start = seconds(from), long = seconds(to) - start, rough = long / Math.max(2, Math.floor(width / 130));
      const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
      const made = [];
      for (let i = Math.ceil(start / step - 1e-9); i * step <= start + long * 1.0001; i++) {
        const x = 100 * (i * step - start) / long, place = {x1: x + "%", x2: x + "%", y1: 0, y2: height + 4, class: "grid"};
        const anchor = x > 94 ? "end" : x < 3 ? "start" : "middle";
        const unit = start + long >= 1 ? 1 : start + long >= 1e-3 ? 1e3 : 1e6, name = {1: " s", 1e3: " ms", 1e6: " µs"}[unit];
        const digits = Math.max(0, -Math.floor(Math.log10(step * unit) + 1e-9));
        made.push(element("line", place), element("text", {x: x + "%", y: height + 18, class: "tick", "text-anchor": anchor},
          (i * step * unit).toFixed(digits) + name));
      }
      times.replaceChildren(...made);
    }

    function show(newFrom, newTo) {
      const long = Math.min(END, Math.max(END / 5000, 20, newTo - newFrom));
      from = Math.min(Math.max(0, newFrom), END - long); to = from + long;
      asked ||= requestAnimationFrame(draw);
    }
    const zoom = (by, share = 0.5) => { const at = from + share * (to - from); show(at - share * (to - from) * by, at + (1 - share) * (to - from) * by); };
    const move = by => show(from + by * (to - from), to + by * (to - from));
    const DO = {in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => show(0, END)};
    const KEYS = {"+": "in", "=": "in", "-": "out", "ArrowLeft": "left", "ArrowRight": "right", "0": "all", "Home": "all"};

    figure.querySelectorAll("[data-do]").forEach(button => button.addEventListener("click", DO[button.dataset.do]));
    view.addEventListener("keydown", event => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault(); DO[KEYS[event.key]]();
    });
    const shareAt = event => { const box = layer.getBoundingClientRect(), own = view.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - own.left) / (own.width || box.width))); };
    view.addEventListener("wheel", event => {  // the page scrolls on, unless the picture was chosen
      if (document.activeElement !== view && !event.ctrlKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
      else zoom(Math.exp(event.deltaY / 400), shareAt(event));
    }, {passive: false});

    let held = null;
    view.addEventListener("pointerdown", event => { held = {x: event.clientX, from, to}; view.focus({preventScroll: true}); });
    window.addEventListener("pointerup", () => { held = null; });
    view.addEventListener("pointermove", event => {
      if (held && event.buttons) {
        const by = (held.x - event.clientX) / view.getBoundingClientRect().width * (held.to - held.from);
        if (Math.abs(held.x - event.clientX) > 3) show(held.from + by, held.to + by);
        return;
      }
      const rank = Math.floor((event.clientY - view.getBoundingClientRect().top) / pitch), bars = ranks[rank];
      if (!bars) { told.textContent = hint; return; }
      const at = from + shareAt(event) * (to - from), found = bars[firstAfter(bars, at)];
      told.textContent = found && found.start <= at ? words(rank, found) : `${row} ${rank} waits at ${time(seconds(at))}`;
    });
    view.addEventListener("pointerleave", () => { told.textContent = hint; });
    new ResizeObserver(() => { asked ||= requestAnimationFrame(draw); }).observe(view);
    draw();
  }

  document.querySelectorAll("figure.gantt").forEach(zoomable);
})();
