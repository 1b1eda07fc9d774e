
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);
  const tip = one("tip");
  let near = null;

  // Points say their values when they are pointed at, and when they have the focus.
  const centre = (point) => {
    const box = point.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const show = (point) => {
    if (near) near.classList.remove("near");
    near = point;
    tip.hidden = !point;
    if (!point) return;
    point.classList.add("near");
    tip.textContent = point.dataset.tip;
    const [x, y] = centre(point);
    const left = Math.min(Math.max(8, x - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 14;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 4 ? above : y + 16}px`;
  };
  const nearest = (points, x, y) => {
    let best = null, least = 16;
    for (const point of points) {
      const [px, py] = centre(point);
      const far = Math.hypot(px - x, py - y);
      if (far < least && !point.classList.contains("dim")) [best, least] = [point, far];
    }
    return best;
  };
  for (const drawing of all(".drawing svg")) {
    const points = all("[data-tip]", drawing);
    if (!points.length) continue;
    const follow = (event) => show(nearest(points, event.clientX, event.clientY));
    drawing.addEventListener("pointermove", follow);
    drawing.addEventListener("pointerdown", follow);
    drawing.addEventListener("pointerleave", () => show(null));
    drawing.addEventListener("focusin", (event) => show(event.target.closest("[data-tip]")));
    drawing.addEventListener("focusout", () => show(null));
    // One stop for the tabulator: arrows go from point to point.
    drawing.addEventListener("keydown", (event) => {
      const at = points.indexOf(document.activeElement);
      const to = {
        ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
        Home: 0, End: points.length - 1,
      }[event.key];
      if (event.key === "Escape") show(null);
      if (at < 0 || to === undefined || !points[to]) return;
      event.preventDefault();
      points[at].setAttribute("tabindex", "-1");
      points[to].setAttribute("tabindex", "0");
      points[to].focus();
    });
  }
  addEventListener("scroll", () => show(null), { capture: true, passive: true });

  // One method at a time, and those clients that are asked for.
  const panels = all(".panel"), method = one("method"), filter = one("filter");
  const update = () => {
    for (const panel of panels) panel.hidden = method !== null && panel.id !== method.value;
    const wanted = filter.value.trim().toLowerCase();
    const fits = (name) => name.toLowerCase().includes(wanted);
    for (const row of all(".clients tbody tr")) row.hidden = !fits(row.cells[0].textContent);
    for (const point of all("[data-client]"))
      point.classList.toggle("dim", !fits(point.dataset.client));
    const rows = all(".clients tbody tr", panels.find((panel) => !panel.hidden));
    const shown = rows.filter((row) => !row.hidden).length;
    one("count").textContent = `${shown} of ${rows.length} clients`;
  };
  one("controls").hidden = false;
  one("controls").addEventListener("submit", (event) => event.preventDefault());
  filter.addEventListener("input", update);
  if (method) method.addEventListener("change", update);
  update();

  // Columns of clients can be sorted; what there is not comes last.
  const value = (row, column) => {
    const text = row.cells[column].textContent;
    const number = parseFloat(text);
    return column === 0 ? text : Number.isNaN(number) ? Infinity : number;
  };
  for (const head of all(".clients thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
      const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
      const order = (a, b) => (a < b ? -turn : a > b ? turn : 0);
      body.append(...[...body.rows].sort((a, b) => order(value(a, column), value(b, column))));
    });
  }
})();
