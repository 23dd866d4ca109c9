// Zooms into the pictures over time. Without it the page shows them whole.
// The arithmetic is that of envelope.py and scales.py.
'use strict';
(() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const LEAST_POINTS = 2;

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const unpack = ({ low, step, codes }) => Float64Array.from(
    new Uint16Array(bytes(codes)),
    (code) => (code < 2 ? (code ? 0 : NaN) : low * Math.exp((code - 2) * step)),
  );

  const seconds = (value) => {
    if (Number.isNaN(value)) return 'unknown';
    if (value > 0 && value < 0.0001) return `${(1e6 * value).toFixed(0)} us`;
    if (value < 0.1) return `${(1000 * value).toFixed(1)} ms`;
    if (value < 10) return `${value.toFixed(3)} s`;
    return value < 600 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
  };
  const figure = (value, unit) => (unit === 's' ? seconds(value)
    : Number.isNaN(value) ? 'unknown' : `${value.toFixed(0)} %`);
  const clock = (value) => {
    const whole = Math.round(value);
    if (Math.abs(value - whole) > 1e-6 && value < 60) return `0:${value < 10 ? '0' : ''}${value.toFixed(2)}`;
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
    const two = (number) => String(number).padStart(2, '0');
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };

  const roundTicks = (high, most) => {
    if (!(high > 0)) return [0, 1];
    const raw = high / most;
    const magnitude = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((s) => s * magnitude).find((s) => s >= raw * (1 - 1e-9));
    const count = Math.min(Math.max(Math.ceil(high / step - 1e-9), 1), most);
    return Array.from({ length: count + 1 }, (_, n) => n * step);
  };
  const clockTicks = (low, high, most) => {
    const raw = (high - low) / most;
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
    const step = raw < 1 ? roundTicks(high - low, most)[1]
      : steps.find((s) => s >= raw) || Math.ceil(raw / 86400) * 86400;
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n += 1) ticks.push(n * step);
    return ticks;
  };
  const unitOf = (high) => (high < 0.001 ? [1e6, 'us'] : high < 1 ? [1e3, 'ms']
    : high < 600 ? [1, 's'] : [1 / 60, 'min']);

  const element = (name, attributes, words) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    return made;
  };
  const px = (value) => String(Math.round(value * 10) / 10);
  const path = (points, more) => element('path', {
    d: `M${points.map(([x, y]) => `${px(x)},${px(y)}`).join('L')}`, fill: 'none', ...more,
  });
  const label = (x, y, words, more = {}) => element('text', {
    x: px(x), y: px(y), 'font-size': 12, fill: 'var(--faint)', ...more,
  }, words);
  const outline = (kind, x, y) => ({
    triangle: [[x - 4.5, y - 4.5], [x + 4.5, y - 4.5], [x, y + 4.5]],
    diamond: [[x, y - 4.5], [x + 4.5, y], [x, y + 4.5], [x - 4.5, y]],
    bar: [[x - 1, y - 4.5], [x + 1, y - 4.5], [x + 1, y + 4.5], [x - 1, y + 4.5]],
  }[kind]);

  class Run {
    constructor(data) {
      this.starts = new Float32Array(bytes(data.starts));
      this.ends = new Float32Array(bytes(data.ends));
      this.iterations = new Uint32Array(bytes(data.iterations));
      this.lasts = new Uint32Array(bytes(data.lasts));
      this.moments = data.moments;
      this.layouts = data.layouts;
      this.tracks = data.tracks.map(({ title, unit, role, reach, mean, low, high }) => {
        const means = unpack(mean);
        return { title, unit, role, reach, mean: means, low: low ? unpack(low) : means, high: high ? unpack(high) : means };
      });
      [this.low, this.high] = [data.begin, this.ends[this.ends.length - 1]];
    }

    // First point that ends after a moment.
    at(moment) {
      let [from, to] = [0, this.ends.length - 1];
      while (from < to) {
        const middle = (from + to) >> 1;
        if (this.ends[middle] > moment) to = middle; else from = middle + 1;
      }
      return from;
    }

    merge(track, from, to) {
      let [sum, weights, low, high] = [0, 0, Infinity, -Infinity];
      for (let n = from; n < to; n += 1) {
        if (Number.isNaN(track.mean[n])) continue;
        const weight = track.unit === '%' ? this.ends[n] - this.starts[n] : this.iterations[n];
        sum += track.mean[n] * weight;
        weights += weight;
        low = Math.min(low, track.low[n]);
        high = Math.max(high, track.high[n]);
      }
      return weights ? { mean: sum / weights, low, high } : { mean: NaN, low: NaN, high: NaN };
    }

    // What is drawn between two moments, in `most` columns or, when they are fewer, as it is.
    columns(track, low, high, most) {
      const [first, last] = [this.at(low), this.at(high)];
      const made = [];
      if (last - first < most) {
        for (let n = first; n <= last; n += 1) {
          made.push({ begin: this.starts[n], end: this.ends[n], ...this.merge(track, n, n + 1) });
        }
        return made;
      }
      const width = (high - low) / most;
      const place = (n) => Math.floor(((this.starts[n] + this.ends[n]) / 2 - low) / width);
      for (let n = first; n <= last;) {
        const column = place(n);
        let next = n + 1;
        while (next <= last && place(next) === column) next += 1;
        made.push({ begin: this.starts[n], end: this.ends[next - 1], ...this.merge(track, n, next) });
        n = next;
      }
      return made;
    }
  }

  class Plot {
    constructor(root, run) {
      this.root = root;
      this.run = run;
      this.view = [run.low, run.high];
      this.cursor = null;
      this.drag = null;
      this.fingers = new Map();
      const panel = root.parentElement;
      this.reading = panel.querySelector('.reading');
      this.buttons = panel.querySelector('.buttons');
      this.buttons.hidden = false;
      panel.querySelector('.keys').hidden = false;
      const about = {
        tabindex: 0, role: 'application', 'aria-label': root.dataset.label,
        'aria-roledescription': 'zoomable picture', 'aria-describedby': panel.querySelector('.keys').id,
      };
      for (const [key, value] of Object.entries(about)) root.setAttribute(key, value);
      this.listen();
      this.mark();
    }

    get svg() {
      return [...this.root.querySelectorAll('svg')].find((svg) => svg.getBoundingClientRect().width);
    }

    get layout() {
      return Object.entries(this.run.layouts).find(([css]) => this.svg.classList.contains(css))[1];
    }

    get isWhole() { return this.view[0] <= this.run.low && this.view[1] >= this.run.high; }

    x(moment) {
      const { left, right } = this.layout;
      return left + ((moment - this.view[0]) / (this.view[1] - this.view[0])) * (right - left);
    }

    moment(event) {
      const { left, right, width } = this.layout;
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * width;
      const share = Math.min(Math.max((x - left) / (right - left), 0), 1);
      return this.view[0] + share * (this.view[1] - this.view[0]);
    }

    // Never beyond the run, never closer than some points.
    show(low, high) {
      const { run } = this;
      const least = Math.min((LEAST_POINTS * (run.high - run.low)) / run.ends.length, run.high - run.low);
      const span = Math.min(Math.max(high - low, least), run.high - run.low);
      const begin = Math.min(Math.max((low + high - span) / 2, run.low), run.high - span);
      this.view = [begin, begin + span];
      this.draw();
    }

    zoom(factor, around = this.cursor ?? (this.view[0] + this.view[1]) / 2) {
      this.show(around - (around - this.view[0]) * factor, around + (this.view[1] - around) * factor);
    }

    pan(share) {
      const by = share * (this.view[1] - this.view[0]);
      const [low, high] = this.view;
      const bound = Math.max(this.run.low - low, Math.min(by, this.run.high - high));
      this.show(low + bound, high + bound);
    }

    whole() { this.show(this.run.low, this.run.high); }

    draw() {
      const moving = this.svg.querySelector('[data-layer=moving]');
      moving.replaceChildren(...this.axis(), ...this.marks(), ...this.run.tracks.flatMap(
        (track, place) => this.track(track, this.layout.rooms[place]),
      ));
      this.mark();
      this.point();
      this.root.dataset.view = this.view.join(' ');
    }

    mark() {
      for (const button of this.buttons.children) {
        const isIdle = this.isWhole && button.dataset.do !== 'in';
        button.setAttribute('aria-disabled', isIdle);
      }
    }

    axis() {
      const { rooms, right, width } = this.layout;
      const { bottom } = rooms[rooms.length - 1];
      const ticks = clockTicks(...this.view, width > 500 ? 8 : 4).flatMap((moment) => {
        const x = this.x(moment);
        return [path([[x, bottom], [x, bottom + 5]], { stroke: 'var(--faint)' }),
          label(x, bottom + 18, clock(moment), { 'text-anchor': 'middle' })];
      });
      return [...ticks, label(right, bottom + 34, 'time since training began', { 'text-anchor': 'end' })];
    }

    marks() {
      const { rooms, lane } = this.layout;
      const made = [];
      for (const { kind, mark, role, at, words, counts } of this.run.moments) {
        let last = -Infinity;
        at.forEach((moment, n) => {
          if (moment < this.view[0] || moment > this.view[1]) return;
          const x = this.x(moment);
          if (x - last < 6) return;
          last = x;
          if (kind === 'epoch') made.push(path([[x, lane - 6], [x, rooms[rooms.length - 1].bottom]], { stroke: 'var(--rule)' }));
          const sign = path(outline(mark, x, lane), { fill: `var(--${role})` });
          const more = counts[n] > 1 ? ` and ${counts[n] - 1} more` : '';
          sign.append(element('title', {}, `${words[n]}${more}, at ${clock(moment)}`));
          made.push(sign);
        });
      }
      return made;
    }

    track(track, { top, bottom }) {
      const { left, right } = this.layout;
      const columns = this.run.columns(track, ...this.view, Math.floor((right - left) / 2));
      const highs = columns.map((c) => c.high).filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
      const usual = highs[Math.floor(0.98 * (highs.length - 1))] || 0;
      const peak = highs[highs.length - 1] || 0;
      const own = peak > 4 * usual && usual > 0 ? 2 * usual : peak;
      const reach = this.isWhole ? track.reach : own;
      const [factor, unit] = track.unit === '%' ? [1, '%'] : unitOf(reach);
      const ticks = track.unit === '%' ? [0, 50, 100] : roundTicks(reach * factor, 3);
      const limit = ticks[ticks.length - 1] / factor;
      const y = (value) => bottom - (Math.min(value, limit) / limit) * (bottom - top);
      const made = [label(left, top - 9, `${track.title}, ${unit}${unit === '%' ? '' : ' per iteration'}`, { fill: 'var(--ink)', 'font-weight': 600 })];
      for (const tick of ticks) {
        const height = y(tick / factor);
        if (tick) made.push(path([[left, height], [right, height]], { stroke: 'var(--rule)' }));
        made.push(label(left - 7, height + 4, String(+tick.toPrecision(6)), { 'text-anchor': 'end' }));
      }
      const clip = (moment) => Math.min(Math.max(this.x(moment), left), right);
      let stretch = [];
      const finish = () => {
        if (!stretch.length) return;
        const side = (key) => stretch.flatMap((c) => [[clip(c.begin), y(c[key])], [clip(c.end), y(c[key])]]);
        if (stretch.some((c) => c.low !== c.high)) {
          made.push(path([...side('high'), ...side('low').reverse()], { fill: `var(--${track.role})`, 'fill-opacity': 0.25 }));
        }
        made.push(path(side('mean'), { stroke: `var(--${track.role})`, 'stroke-width': 1.6, 'stroke-linejoin': 'round' }));
        stretch = [];
      };
      for (const column of columns) {
        if (Number.isNaN(column.mean)) finish(); else stretch.push(column);
      }
      finish();
      const cut = columns.filter((c) => c.high > limit * (1 + 1e-9));
      for (const column of cut) {
        const x = (clip(column.begin) + clip(column.end)) / 2;
        made.push(element('rect', { x: px(x - 2), y: px(top - 3), width: 4, height: 3, fill: 'var(--problem)' }));
      }
      if (cut.length) {
        const [times, name] = unitOf(peak);
        made.push(label(right, top - 9, `cut off: up to ${+(peak * times).toPrecision(3)} ${name}`, { 'text-anchor': 'end', fill: 'var(--problem)' }));
      }
      return made;
    }

    // The reading line and what it says.
    point() {
      this.svg.querySelector('.cursor')?.remove();
      if (this.cursor === null) return;
      const { run } = this;
      const n = run.at(this.cursor);
      const { lane, rooms } = this.layout;
      const x = this.x(this.cursor);
      const line = path([[x, lane], [x, rooms[rooms.length - 1].bottom]], { stroke: 'var(--ink)', 'stroke-dasharray': '3 3' });
      line.setAttribute('class', 'cursor');
      this.svg.append(line);
      const figures = run.tracks.map(({ title, unit, mean }) => `${title} ${figure(mean[n], unit)}`);
      this.reading.textContent = `At ${clock(this.cursor)}, iteration ${run.lasts[n]}: ${figures.join(', ')}`;
    }

    look(moment) {
      this.cursor = Math.min(Math.max(moment, this.view[0]), this.view[1]);
      this.point();
    }

    // By points when few are shown, else by pixels.
    step(direction) {
      const { run } = this;
      const here = run.at(this.cursor ?? this.view[0]);
      const shown = run.at(this.view[1]) - run.at(this.view[0]) + 1;
      const next = Math.min(Math.max(here + direction * Math.max(Math.round(shown / 200), 1), 0), run.ends.length - 1);
      const moment = (run.starts[next] + run.ends[next]) / 2;
      if (moment > this.view[1]) this.pan(0.5);
      if (moment < this.view[0]) this.pan(-0.5);
      this.look(moment);
    }

    act(name) {
      ({
        in: () => this.zoom(0.5), out: () => this.zoom(2), earlier: () => this.pan(-0.5),
        later: () => this.pan(0.5), whole: () => this.whole(),
      })[name]();
      const [low, high] = this.view;
      this.reading.textContent = this.isWhole ? 'The whole run is shown.' : `Shown: ${clock(low)} to ${clock(high)}.`;
    }

    band(moment) {
      this.svg.querySelector('.band')?.remove();
      if (moment === null) return;
      const { rooms } = this.layout;
      const [a, b] = [this.x(this.drag.moment), this.x(moment)].sort((one, other) => one - other);
      const { bottom } = rooms[rooms.length - 1];
      this.svg.append(element('rect', {
        class: 'band', x: px(a), y: px(rooms[0].top), width: px(b - a), height: px(bottom - rooms[0].top),
        fill: 'var(--accent)', 'fill-opacity': 0.15,
      }));
    }

    listen() {
      const { root } = this;
      this.buttons.addEventListener('click', ({ target }) => {
        if (target.dataset.do && target.getAttribute('aria-disabled') !== 'true') this.act(target.dataset.do);
      });
      root.addEventListener('keydown', (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || event.target !== root) return;
        const keys = {
          '+': () => this.act('in'), '=': () => this.act('in'), '-': () => this.act('out'),
          0: () => this.act('whole'), Home: () => this.act('whole'),
          ArrowLeft: () => (event.shiftKey ? this.act('earlier') : this.step(-1)),
          ArrowRight: () => (event.shiftKey ? this.act('later') : this.step(1)),
        };
        if (!keys[event.key]) return;
        keys[event.key]();
        event.preventDefault();
      });
      root.addEventListener('wheel', (event) => {
        if (!event.ctrlKey) return; // the page scrolls
        event.preventDefault();
        this.zoom(2 ** (event.deltaY / 200), this.moment(event));
      }, { passive: false });
      root.addEventListener('dblclick', () => this.whole());
      root.addEventListener('pointerdown', (event) => this.press(event));
      root.addEventListener('pointermove', (event) => this.move(event));
      for (const name of ['pointerup', 'pointercancel']) root.addEventListener(name, (event) => this.release(event));
      new ResizeObserver(() => { if (!this.isWhole && this.svg) this.draw(); }).observe(root);
    }

    press(event) {
      if (event.button || event.target.closest('details, summary')) return;
      this.fingers.set(event.pointerId, this.moment(event));
      const isTouch = event.pointerType === 'touch';
      this.drag = { moment: this.moment(event), isPan: isTouch || event.shiftKey };
      if (!isTouch) this.root.setPointerCapture(event.pointerId);
      this.look(this.moment(event));
    }

    move(event) {
      const moment = this.moment(event);
      if (this.fingers.size === 2 && this.fingers.has(event.pointerId)) {
        this.pinch(event, moment);
      } else if (this.drag?.isPan && this.fingers.has(event.pointerId)) {
        const by = this.drag.moment - moment;
        if (!this.isWhole) this.pan(by / (this.view[1] - this.view[0]));
      } else {
        if (this.drag) this.band(moment);
        this.look(moment);
      }
    }

    // The moments under both fingers stay under them.
    pinch(event, moment) {
      const [other] = [...this.fingers].filter(([id]) => id !== event.pointerId);
      const before = Math.abs(this.fingers.get(event.pointerId) - other[1]);
      const now = Math.abs(moment - other[1]);
      if (before > 0 && now > 0) this.zoom(Math.min(Math.max(before / now, 0.5), 2), other[1]);
    }

    release(event) {
      const { drag } = this;
      const moment = this.moment(event);
      if (drag && !drag.isPan && event.type === 'pointerup') {
        this.band(null);
        if (Math.abs(this.x(moment) - this.x(drag.moment)) > 6) {
          this.show(Math.min(moment, drag.moment), Math.max(moment, drag.moment));
        }
      }
      this.fingers.delete(event.pointerId);
      this.drag = null;
    }
  }

  const data = JSON.parse(document.getElementById('data').textContent);
  for (const root of document.querySelectorAll('[data-plot]')) {
    const run = new Run(data[root.dataset.plot]);
    if (run.high > run.low) new Plot(root, run);
  }

  // Paper cannot open what is closed.
  const shut = () => [...document.querySelectorAll('details:not([open])')];
  let opened = [];
  addEventListener('beforeprint', () => { opened = shut(); opened.forEach((one) => { one.open = true; }); });
  addEventListener('afterprint', () => { opened.forEach((one) => { one.open = false; }); });
})();
