"use strict";
(function () {
  const root = document.documentElement;
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

  /* Theme: the system's, until the reader chooses; a page from disk may have no storage. */
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const store = {
    get() { try { return localStorage.getItem("cachemark-theme"); } catch (_) { return null; } },
    set(value) { try { localStorage.setItem("cachemark-theme", value); } catch (_) { /* not kept */ } },
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  const chosen = store.get();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  button.hidden = false;
  label();
  system.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store.set(root.dataset.theme);
    label();
  });

  /* Sorting: best first, worst first, as it was. Rows without the figure stay last. */
  function value(row, key) {
    if (key === "name") return row.querySelector("th").textContent.trim();
    const cell = row.querySelector('td[data-k="' + key + '"]');
    return cell && cell.dataset.v !== undefined ? Number(cell.dataset.v) : null;
  }
  function order(rows, key, sign) {
    return rows.slice().sort((a, b) => {
      const x = value(a, key), y = value(b, key);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }
  all("table.headline").forEach((table) => {
    const body = table.querySelector("tbody.arms"), original = all("tr", body);
    const heads = all("th[data-k]", table);
    const firsts = original.filter((row) => row.classList.contains("first"));
    heads.forEach((head) => {
      const knob = document.createElement("button");
      knob.type = "button";
      knob.append(...head.childNodes);
      head.append(knob);
      head.setAttribute("aria-sort", "none");
      const best = head.dataset.best === "higher" ? "descending" : "ascending";
      const worst = best === "descending" ? "ascending" : "descending";
      knob.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === "none" ? best : now === best ? worst : "none";
        heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
        firsts.forEach((row) => row.classList.toggle("first", next === "none"));
        body.append(...(next === "none" ? original : order(original, head.dataset.k, next === "ascending" ? 1 : -1)));
      });
    });
  });

  /* Charts: what a mark says, and one method lit among the others. */
  const tip = document.getElementById("tip");
  all(".chart svg [data-series]").forEach((mark) => {
    const title = mark.querySelector("title");
    const lines = title.textContent.split(" · ");
    title.remove();
    const show = (event) => {
      const name = document.createElement("b");
      name.textContent = lines[0];
      tip.replaceChildren(name, ...lines.slice(1).flatMap((line, k) => (k ? [document.createElement("br"), line] : [line])));
      tip.hidden = false;
      const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
      const y = event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
      tip.style.left = Math.max(4, x) + "px";
      tip.style.top = y + "px";
    };
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("pointermove", show);
    mark.addEventListener("pointerleave", () => { tip.hidden = true; });
  });
  all(".legend").forEach((legend) => {
    const charts = legend.nextElementSibling, keys = all(".key", legend);
    const light = (key) => {
      charts.classList.toggle("chosen", Boolean(key));
      all("svg [data-series]", charts).forEach((mark) => mark.classList.toggle("lit", Boolean(key) && mark.dataset.series === key.dataset.series));
    };
    const held = () => keys.find((key) => key.getAttribute("aria-pressed") === "true");
    keys.forEach((key) => {
      key.addEventListener("click", () => {
        const on = key.getAttribute("aria-pressed") !== "true";
        keys.forEach((other) => other.setAttribute("aria-pressed", String(on && other === key)));
        light(held());
      });
      key.addEventListener("pointerenter", () => light(key));
      key.addEventListener("pointerleave", () => light(held()));
    });
  });

  /* Images: one seed of a sprite, full cache beside method; arrows go to the next seed. */
  const zoom = document.getElementById("zoom"), crops = all(".crop", zoom);
  let strip = null, at = 0;
  function draw() {
    const hits = all(".hits button", strip), count = hits.length, source = strip.querySelector(".frame img").src;
    at = (at + count) % count;
    document.getElementById("zoom-title").textContent = hits[at].dataset.title;
    document.getElementById("zoom-name").textContent = strip.dataset.name;
    crops.forEach((crop, line) => {
      const image = crop.querySelector("img");
      image.src = source;
      image.style.imageRendering = strip.classList.contains("smooth") ? "auto" : "pixelated";
      image.style.width = "calc(var(--z) * " + count + ")";
      image.style.height = "calc(var(--z) * 2)";
      image.style.transform = "translate(calc(var(--z) * " + -at + "), calc(var(--z) * " + -line + "))";
    });
  }
  all(".strip").forEach((held) => all(".hits button", held).forEach((hit) => hit.addEventListener("click", () => {
    strip = held;
    at = Number(hit.dataset.tile);
    draw();
    zoom.showModal();
  })));
  all("[data-step]", zoom).forEach((knob) => knob.addEventListener("click", () => { at += Number(knob.dataset.step); draw(); }));
  zoom.querySelector("[data-close]").addEventListener("click", () => zoom.close());
  zoom.addEventListener("click", (event) => { if (event.target === zoom) zoom.close(); });
  zoom.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { at += step; draw(); }
  });

  /* Print: open what is folded, and fold it again. */
  let folded = [];
  window.addEventListener("beforeprint", () => { folded = all("details:not([open])"); folded.forEach((part) => { part.open = true; }); });
  window.addEventListener("afterprint", () => { folded.forEach((part) => { part.open = false; }); });
})();
